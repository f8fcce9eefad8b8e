/* The launch contract of the kernels of layouts linear-1 and mma-1: the arguments of every family, grid and block
 * rules. One struct a family, passed by value as the kernel's only argument. C and C++, host and device: this file is
 * copied into the folder that `kvcc compile` writes. Rules of mma-1 alone are in mma_launch.h.
 *
 * Letters: S sequences, H key/value heads, D head dimension, T tokens in the cache, N pages a sequence may have.
 * Position p of a sequence of length T lies
 *   p < sink                          in `exact`, row p;
 *   p >= max(sink, T - residual)      in `exact`, row sink + (p - sink) % residual;
 *   otherwise                         packed, token p - sink, i.e. page (p - sink) / 64, slot (p - sink) % 64. */
#ifndef KVCC_FORMATS_LAYOUT_LAUNCH_H_
#define KVCC_FORMATS_LAYOUT_LAUNCH_H_

#include <stdint.h>

#if defined(__CUDACC__)
#define KVCC_LAUNCH_FN static __host__ __device__ inline
#else
#define KVCC_LAUNCH_FN static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
  KVCC_PAGE_TOKENS = 64,
  KVCC_THREADS = 128,      /* threads of a block, every family: block = (128, 1, 1) */
  KVCC_MAX_GROUP_TILE = 8, /* query heads a block serves at most */
  KVCC_STATUS_RANGE = 1    /* bit of *status: a value is not finite, or overflows fp16 where it is stored exactly */
};

/* One layer's keys or values of S sequences. */
typedef struct KvccCache {
  uint8_t* pages;             /* [pages of the pool, page_bytes], 128-byte aligned */
  const int32_t* page_table;  /* [S, N] page numbers in the pool; null: page i of sequence s is s * N + i */
  const int32_t* lengths;     /* [S] tokens in the cache, T; unused by the pack families */
  uint16_t* exact;            /* [S, sink + residual, H, D] fp16; null when sink + residual is 0 */
  const float* scale;         /* [H, D] static scale of the channels; null for the token axis */
  const float* zero;          /* [H, D] likewise */
  const float* lower;         /* [H, D] thresholds; null without csr part. Only the pack families read them */
  const float* upper;         /* [H, D] */
  const uint32_t* head_words; /* [H] first word of each head's codes in a page; null when all heads have one width */
  uint32_t* needed;           /* linear-1: [S, N] csr records that each page needs; above sparse_capacity the page must
                                 be packed again with a larger capacity before it is read. mma-1: [S, N, H] records that
                                 each tile needs; above sparse_capacity the tile does not hold the call's tokens, see
                                 repeat_above. Written by pack. Null without csr (linear-1), sparse part (mma-1) */
  int64_t page_bytes;         /* bytes of a page, a multiple of 128 */
  int32_t code_words;         /* 32-bit words of codes in a page */
  int32_t sparse_capacity;    /* linear-1: csr records a page can hold, 0 without csr part; mma-1: records a tile (one
                                 head of a page) can hold, a multiple of 4, 0 without sparse part */
  int32_t tail;               /* records of each tail a token; 0 without tail part */
  int32_t max_pages;          /* N */
  int32_t sequences;          /* S */
  int32_t heads;              /* H */
  int32_t sink, residual;     /* tokens */
  int32_t layer;              /* row of the artifact's tables, 0 to L - 1 */
} KvccCache;

/* pack_key, pack_value: x -> pages and exact rows. Positions below sink become fp16 rows, all others are packed; tokens
 * of the residual window are not packed (the host copies them to `exact` as fp16 and packs each when it leaves the
 * window, with x pointing at its row). Appending to a page continues its csr part. */
typedef struct KvccPackParams {
  KvccCache cache;
  const void* x;        /* [S, count, H, D] of the configuration's dtype; keys as the scheme takes them */
  const int32_t* first; /* [S] position of the first token of x */
  uint32_t* status;     /* [1] bits are or-ed in */
  int32_t count;        /* tokens of x a sequence */
  /* mma-1, token axis only, else null: what the _select entry finds and the pack entry reads. */
  uint32_t* selected; /* [S, count, 2 * tail] outliers of a token, columns ascending: column | fp16 value << 16 */
  float* inliers;     /* [S, count, 2] least and greatest inlier of a token */
  /* mma-1, else 0. A tile that would need more records than sparse_capacity keeps the class ends and records of its
   * earlier tokens, and `needed` says how many it would have. The host looks at `needed` before the next call that
   * appends to the page; where it is above the capacity, it copies the pages to larger ones (copy_pages) and repeats
   * the call on them, with the old capacity as repeat_above: tiles whose `needed` is not above it hold the call's
   * tokens already and are left alone. 0: every tile is packed. Repeating sink rows, ranges and select changes nothing.
   */
  int32_t repeat_above;
} KvccPackParams;

/* key_scores: scores[s, h * group + g, p] = multiplier * <query, RoPE_p(key)> for p < lengths[s]. */
typedef struct KvccKeyScoresParams {
  KvccCache cache;
  const void* query;     /* [S, H * group, D] of the configuration's dtype, rotated already */
  const float* cosine;   /* [positions, rotary_dim / 2] made by the host with the model's own rule; null without RoPE */
  const float* sine;     /* likewise */
  float* scores;         /* [S, H * group, scores_stride] */
  int64_t scores_stride; /* in elements, >= the largest length */
  float multiplier;      /* of the softmax, e.g. 1 / sqrt(D) */
  int32_t group;         /* query heads of a KV head */
  int32_t max_length;    /* largest of lengths: decides the grid */
} KvccKeyScoresParams;

/* value_mix: out[s, h * group + g, :] = sum over p < lengths[s] of weights[s, h * group + g, p] * value[p, h, :].
 * With splits > 1 the kernel writes partial sums, and value_mix's second entry (NAME_merge) adds them in order. */
typedef struct KvccValueMixParams {
  KvccCache cache;
  const void* weights;    /* [S, H * group, weights_stride] of the configuration's dtype */
  float* partial;         /* [S, splits, H * group, D]; null when splits is 1 */
  float* out;             /* [S, H * group, D] */
  int64_t weights_stride; /* in elements, >= the largest length */
  int32_t group;
  int32_t splits; /* >= 1; parts of the context, chosen by the host */
  int32_t window; /* mma-1: weights of positions below length - window count as 0 and are not read; 0: no window.
                     linear-1: 0 */
} KvccValueMixParams;

/* dequantise_key, dequantise_value: positions [first, first + count) of every sequence, those below its length. */
typedef struct KvccDequantiseParams {
  KvccCache cache;
  float* out;           /* [S, count, H, D]; keys before RoPE where the scheme takes them so; mma-1: 8-byte aligned */
  const int32_t* first; /* [S] */
  int32_t count;
} KvccDequantiseParams;

typedef struct KvccGrid {
  uint32_t x, y, z;
} KvccGrid;

/* Tokens that a block of key_scores, value_mix and dequantise decodes at a time: a tile of at most 16 KiB of floats. */
KVCC_LAUNCH_FN int32_t kvcc_tile_tokens(int32_t head_dim) { return head_dim <= 128 ? 32 : 16; }
/* Query heads that a block serves. */
KVCC_LAUNCH_FN int32_t kvcc_group_tile(int32_t group) {
  return group < KVCC_MAX_GROUP_TILE ? group : KVCC_MAX_GROUP_TILE;
}
KVCC_LAUNCH_FN uint32_t kvcc_ceil_div(int32_t a, int32_t b) { return (uint32_t)((a + b - 1) / b); }

/* Bytes of a page: codes, ranges (token axis), row ends (csr), records; all parts consist of 4-byte records. */
KVCC_LAUNCH_FN int64_t kvcc_page_bytes(int32_t code_words, int ranges, int csr, int32_t tail, int32_t capacity) {
  const int64_t words = (int64_t)code_words + (ranges ? KVCC_PAGE_TOKENS : 0) + (csr ? KVCC_PAGE_TOKENS : 0) +
                        (int64_t)KVCC_PAGE_TOKENS * 2 * tail + capacity;
  return (words * 4 + 127) / 128 * 128;
}

/* Channel axis: block 0 writes the sink rows, block 1 + i the i-th page touched. */
KVCC_LAUNCH_FN KvccGrid kvcc_grid_pack_channel(const KvccPackParams* p) {
  KvccGrid g = {2u + kvcc_ceil_div(p->count, KVCC_PAGE_TOKENS), 1u, (uint32_t)p->cache.sequences};
  return g;
}
/* Token axis: a block a token. */
KVCC_LAUNCH_FN KvccGrid kvcc_grid_pack_token(const KvccPackParams* p) {
  KvccGrid g = {(uint32_t)p->count, 1u, (uint32_t)p->cache.sequences};
  return g;
}
KVCC_LAUNCH_FN KvccGrid kvcc_grid_key_scores(const KvccKeyScoresParams* p, int32_t head_dim) {
  KvccGrid g = {kvcc_ceil_div(p->max_length, kvcc_tile_tokens(head_dim)),
                (uint32_t)p->cache.heads * kvcc_ceil_div(p->group, kvcc_group_tile(p->group)),
                (uint32_t)p->cache.sequences};
  return g;
}
KVCC_LAUNCH_FN KvccGrid kvcc_grid_value_mix(const KvccValueMixParams* p) {
  KvccGrid g = {(uint32_t)p->splits, (uint32_t)p->cache.heads * kvcc_ceil_div(p->group, kvcc_group_tile(p->group)),
                (uint32_t)p->cache.sequences};
  return g;
}
KVCC_LAUNCH_FN KvccGrid kvcc_grid_value_merge(const KvccValueMixParams* p, int32_t head_dim) {
  KvccGrid g = {kvcc_ceil_div(p->cache.heads * p->group * head_dim, KVCC_THREADS), 1u, (uint32_t)p->cache.sequences};
  return g;
}
KVCC_LAUNCH_FN KvccGrid kvcc_grid_dequantise(const KvccDequantiseParams* p, int32_t head_dim) {
  KvccGrid g = {kvcc_ceil_div(p->count, kvcc_tile_tokens(head_dim)), (uint32_t)p->cache.heads,
                (uint32_t)p->cache.sequences};
  return g;
}

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KVCC_FORMATS_LAYOUT_LAUNCH_H_ */
