/* The launch contract of the families that layout mma-1 has beside those of launch.h, and its grids. C and C++, host
 * and device. Letters as in launch.h; R rotary channels, B = 1 + (greatest position) / 64 base rows. */
#ifndef KVCC_FORMATS_LAYOUT_MMA_LAUNCH_H_
#define KVCC_FORMATS_LAYOUT_MMA_LAUNCH_H_

#include "formats/layout/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  KVCC_MMA_MAX_GROUP_TILE = 16, /* query heads a block of the mma families serves at most */
  KVCC_ROPE_BLOCK = 64          /* positions of a base row */
};

/* Rotary tables relative to blocks of 64 positions, made by the host in double from the model's own frequencies, so
 * that no angle loses precision with the context. RoPE_p = RoPE_{64 i} RoPE_r with p = 64 i + r. All null without RoPE.
 */
typedef struct KvccRope {
  const float* base_cosine; /* [B, R / 2] of position 64 i, times the attention factor of scalings that have one */
  const float* base_sine;   /* likewise */
  const uint16_t* relative_cosine; /* [128, R / 2] fp16, of position r, without the factor */
  const uint16_t* relative_sine;   /* likewise */
} KvccRope;

/* key_scores: scores[s, h * group + g, p] = multiplier * <query, RoPE_p(key)> for visible p < lengths[s]. */
typedef struct KvccMmaKeyScoresParams {
  KvccCache cache;
  KvccRope rope;
  const void* query;     /* [S, H * group, D] of the configuration's dtype, rotated already */
  float* scores;         /* [S, H * group, scores_stride] */
  int64_t scores_stride; /* in elements, >= the largest length */
  float multiplier;      /* of the softmax, e.g. 1 / sqrt(D) */
  int32_t group;         /* query heads of a KV head */
  int32_t splits;        /* >= 1; parts of the context, chosen by the host */
  int32_t window;        /* positions below length - window are not visible and not written; 0: all are visible */
} KvccMmaKeyScoresParams;

/* attention: out[s, h * group + g, :] = sum over visible p of softmax_p(multiplier * <query, RoPE_p(key)>) value[p].
 * With splits > 1 the kernel writes partial results, and its second entry (NAME_merge) combines them in order. A
 * sequence of length 0 gives zeros. */
typedef struct KvccAttentionParams {
  KvccCache key;
  KvccCache value; /* page_table, lengths, sink, residual, sequences, heads, layer as of the keys */
  KvccRope rope;
  const void* query; /* [S, H * group, D] of the configuration's dtype, rotated already */
  float* partial;    /* [S, splits, H * group, Dv + 2]: sum of values, maximum (log2), sum; null when splits is 1 */
  float* out;        /* [S, H * group, Dv] */
  float multiplier;  /* of the softmax, e.g. 1 / sqrt(D) */
  int32_t group;     /* query heads of a KV head */
  int32_t splits;    /* >= 1; parts of the context, chosen by the host */
  int32_t window;    /* positions below length - window are not visible; 0: all are */
} KvccAttentionParams;

/* copy_pages: pages[from] of one pool to pages[to] of another (or the same one; a page is not both). The capacities of
 * the records may differ: each list is copied up to the smaller one. Both layouts, any configuration. */
typedef struct KvccCopyPagesParams {
  const uint8_t* source; /* [pages, source_page_bytes] */
  uint8_t* target;       /* [pages, target_page_bytes] */
  const int32_t* pairs;  /* [count, 2] page numbers: from, to */
  int64_t source_page_bytes;
  int64_t target_page_bytes;
  int64_t fixed_bytes;     /* of a page before its records: codes, ranges, row or class ends; a multiple of 4 */
  int32_t lists;           /* record lists of a page: H (mma-1), 1 (linear-1), 0 without sparse part */
  int32_t source_capacity; /* records of a list */
  int32_t target_capacity;
  int32_t count;
} KvccCopyPagesParams;

/* Query heads that a block of the mma families serves: a decoded row is shared by all of them. */
KVCC_LAUNCH_FN int32_t kvcc_mma_group_tile(int32_t group) { return group <= 8 ? 8 : KVCC_MMA_MAX_GROUP_TILE; }

/* Splits that give each multiprocessor about three blocks, none of less than four tiles. */
KVCC_LAUNCH_FN int32_t kvcc_mma_splits(int32_t max_length, int32_t heads, int32_t group, int32_t sequences,
                                       int32_t multiprocessors) {
  const int64_t blocks = (int64_t)heads * kvcc_ceil_div(group, kvcc_mma_group_tile(group)) * sequences;
  const int64_t wanted = (3 * (int64_t)multiprocessors + blocks - 1) / (blocks > 0 ? blocks : 1);
  const int64_t most = max_length / (4 * KVCC_PAGE_TOKENS);
  const int64_t splits = wanted < most ? wanted : most;
  return splits < 1 ? 1 : (int32_t)splits;
}

/* Bytes of a page: codes, ranges (token axis), class ends, records. classes: 0 without sparse part, else 8.
 */
KVCC_LAUNCH_FN int64_t kvcc_mma_page_bytes(int32_t code_words, int ranges, int32_t classes, int32_t heads,
                                           int32_t capacity) {
  const int64_t bytes = (int64_t)code_words * 4 + (ranges ? KVCC_PAGE_TOKENS * 4 : 0) + (int64_t)heads * classes * 2 +
                        (int64_t)heads * capacity * 4;
  return (bytes + 127) / 128 * 128;
}

/* Token axis, entry NAME_select: a block a token. */
KVCC_LAUNCH_FN KvccGrid kvcc_grid_mma_pack_select(const KvccPackParams* p) {
  KvccGrid g = {(uint32_t)p->count, 1u, (uint32_t)p->cache.sequences};
  return g;
}
/* Both axes: block (0, h) writes the sink rows of head h, block (1 + i, h) head h's tile of the i-th page touched. */
KVCC_LAUNCH_FN KvccGrid kvcc_grid_mma_pack(const KvccPackParams* p) {
  KvccGrid g = {2u + kvcc_ceil_div(p->count, KVCC_PAGE_TOKENS), (uint32_t)p->cache.heads, (uint32_t)p->cache.sequences};
  return g;
}
/* key_scores, value_mix, attention: block (split, KV head and group tile, sequence). */
KVCC_LAUNCH_FN KvccGrid kvcc_grid_mma_read(const KvccCache* cache, int32_t splits, int32_t group) {
  KvccGrid g = {(uint32_t)splits, (uint32_t)cache->heads * kvcc_ceil_div(group, kvcc_mma_group_tile(group)),
                (uint32_t)cache->sequences};
  return g;
}
KVCC_LAUNCH_FN KvccGrid kvcc_grid_mma_key_scores(const KvccMmaKeyScoresParams* p) {
  return kvcc_grid_mma_read(&p->cache, p->splits, p->group);
}
KVCC_LAUNCH_FN KvccGrid kvcc_grid_mma_value_mix(const KvccValueMixParams* p) {
  return kvcc_grid_mma_read(&p->cache, p->splits, p->group);
}
KVCC_LAUNCH_FN KvccGrid kvcc_grid_mma_attention(const KvccAttentionParams* p) {
  return kvcc_grid_mma_read(&p->key, p->splits, p->group);
}
/* A block a query head. */
KVCC_LAUNCH_FN KvccGrid kvcc_grid_mma_attention_merge(const KvccAttentionParams* p) {
  KvccGrid g = {(uint32_t)(p->key.heads * p->group), 1u, (uint32_t)p->key.sequences};
  return g;
}
/* Block (i, h) decodes positions first + 64 i … of head h. */
KVCC_LAUNCH_FN KvccGrid kvcc_grid_mma_dequantise(const KvccDequantiseParams* p) {
  KvccGrid g = {kvcc_ceil_div(p->count, KVCC_PAGE_TOKENS), (uint32_t)p->cache.heads, (uint32_t)p->cache.sequences};
  return g;
}
/* A block a page. */
KVCC_LAUNCH_FN KvccGrid kvcc_grid_copy_pages(const KvccCopyPagesParams* p) {
  KvccGrid g = {(uint32_t)p->count, 1u, 1u};
  return g;
}

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KVCC_FORMATS_LAYOUT_MMA_LAUNCH_H_ */
