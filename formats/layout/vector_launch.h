/* What units and kernels of layout vector-1 (formats/spec/cache-vector.md) need beside the launch parameters of the
 * family of their name (launch.h, mma_launch.h): one layer's vector codebooks. Of KvccCache they read pages,
 * page_table, lengths, exact, head_words, page_bytes, max_pages, sequences, heads, sink and residual; scales and sparse
 * parts there are none. C and C++, host and device. */
#ifndef KVCC_FORMATS_LAYOUT_VECTOR_LAUNCH_H_
#define KVCC_FORMATS_LAYOUT_VECTOR_LAUNCH_H_

#include "formats/layout/mma_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVCC_VECTOR_ROW = 4 }; /* floats of a table's row */

/* Up to four coordinates that one code gives. Groups of more are several quads of one code; groups of 0 bits are none:
 * what they decode to is in `constant`. */
typedef struct KvccVectorQuad {
  int32_t first;     /* where its coordinates begin, in the order of `place` */
  int32_t width;     /* 1 to 4 */
  int32_t first_bit; /* bits of a token's head before its code */
  int32_t bits;      /* of the code, 1 to 12 */
  int64_t table;     /* of its [2^bits, 4] rows in `tables`; what is beyond the width is 0 */
  int64_t plane;     /* of the same by coordinate, [width, entries] with entries = max(16, 2^bits), for codes of at most
                        6 bits, which vector registers can hold; else -1 */
} KvccVectorQuad;

/* A group as pack sees it. */
typedef struct KvccVectorGroup {
  int32_t first, width; /* coordinates; width 1 to 8 */
  int32_t first_bit, bits;
  int64_t planes; /* of its [width, 2^bits] coordinates in `planes`, rows padded to a multiple of 16 with infinities */
} KvccVectorGroup;

/* What tensor cores take (kernels/device/vector_mma.cuh): steps of 16 coordinates in four columns of four. A column of
 * a wide step has the coordinates of one quad of three or four, of a narrow step those of two quads of one or two. */
typedef struct KvccVectorSlot {
  uint32_t
      place[2]; /* of a code in a lane's share of a page: word | bit of it << 8 | bits of the code << 16; 0: none */
  uint32_t table[2]; /* byte of its rows, of 8 bytes (wide) or 4, among the head's */
} KvccVectorSlot;
typedef struct KvccVectorHead {
  int32_t steps, wide; /* of the steps the first `wide` are wide */
  int32_t table_bytes; /* of its rows, a multiple of 16 */
  int32_t reserved;
  int64_t table; /* where they begin, in bytes */
} KvccVectorHead;

/* One layer's keys or values. Two forms: with a transform, tables hold coordinates z and a value is inverse z + mean;
 * without one, every channel follows from one group alone, and tables hold values. */
typedef struct KvccVectorTensor {
  int32_t head_dim;          /* D, a multiple of 16 up to 256 */
  int32_t transform;         /* 1 or 0 */
  const int32_t* token_bits; /* [H] bits of a token */
  const int32_t* first_quad; /* [H + 1] */
  const KvccVectorQuad* quads;
  const float* tables;
  const int32_t* places;         /* [H] coordinates that quads give */
  const int32_t* place;          /* [H, D] coordinate, or channel without a transform, that place i of a head holds;
                                    from `places` on those that no quad gives */
  const float* constant;         /* [H, D] of coordinates or channels that no quad gives, else 0 */
  const float* inverse;          /* [H, D, D] by channel, then coordinate; null without a transform */
  const float* active;           /* [H, D, D] likewise by place, then channel; beyond `places` unspecified */
  const float* mean;             /* [H, D] of channels; 0 without a transform */
  const float* active_mean;      /* [H, D] mean and what constant coordinates add to it */
  const float* forward;          /* [H, D, D] by channel, then coordinate: pack */
  const float* forward_mean;     /* [H, D] what pack takes off */
  const int32_t* first_group;    /* [H + 1] */
  const KvccVectorGroup* groups; /* those with codes */
  const float* planes;
  /* For tensor cores, in fp16; coordinates are scaled by powers of two, and the transform takes them back. Null for the
   * CPU. */
  const KvccVectorHead* heads; /* [H] */
  const KvccVectorSlot* slots; /* [H, steps of the unit, 4] */
  const uint8_t* rows;         /* of all heads, 16-byte aligned */
  const uint32_t* fragments;   /* [H, steps, D / 8, 32, 2] transform as B operand, by octets of channels */
  const float* fragment_mean;  /* [H, D] of channels, with what constant coordinates add to it */
  const float* back;           /* [H, 16 steps, D] transform by place in fragments of values, then channel */
} KvccVectorTensor;

/* The arrays of one layer's tensor, as kvcc compile writes them into kvcc_NAME_vectors.bin: members of KvccVectorTensor
 * in order, after the head_words of KvccCache. */
enum {
  KVCC_VECTOR_HEAD_WORDS,
  KVCC_VECTOR_TOKEN_BITS,
  KVCC_VECTOR_FIRST_QUAD,
  KVCC_VECTOR_QUADS,
  KVCC_VECTOR_TABLES,
  KVCC_VECTOR_PLACES,
  KVCC_VECTOR_PLACE,
  KVCC_VECTOR_CONSTANT,
  KVCC_VECTOR_INVERSE,
  KVCC_VECTOR_ACTIVE,
  KVCC_VECTOR_MEAN,
  KVCC_VECTOR_ACTIVE_MEAN,
  KVCC_VECTOR_FORWARD,
  KVCC_VECTOR_FORWARD_MEAN,
  KVCC_VECTOR_FIRST_GROUP,
  KVCC_VECTOR_GROUPS,
  KVCC_VECTOR_PLANES,
  KVCC_VECTOR_HEADS,
  KVCC_VECTOR_SLOTS,
  KVCC_VECTOR_ROWS,
  KVCC_VECTOR_FRAGMENTS,
  KVCC_VECTOR_FRAGMENT_MEAN,
  KVCC_VECTOR_BACK,
  KVCC_VECTOR_ARRAYS /* their number */
};

/* Points a layer's tensor and head words into the file's bytes: `bytes` is where they lie for who reads them (of
 * kernels, in the device's memory, 128-byte aligned), `places` where the arrays begin, -1 for one that there is not. */
KVCC_LAUNCH_FN void kvcc_vector_point(KvccVectorTensor* tensor, KvccCache* cache, const void* bytes,
                                      const int64_t* places, int32_t head_dim, int32_t transform) {
  const char* const from = (const char*)bytes;
  const void* at[KVCC_VECTOR_ARRAYS];
  int32_t i;
  for (i = 0; i < KVCC_VECTOR_ARRAYS; ++i) at[i] = places[i] < 0 ? (const void*)0 : (const void*)(from + places[i]);
  tensor->head_dim = head_dim;
  tensor->transform = transform;
  tensor->token_bits = (const int32_t*)at[KVCC_VECTOR_TOKEN_BITS];
  tensor->first_quad = (const int32_t*)at[KVCC_VECTOR_FIRST_QUAD];
  tensor->quads = (const KvccVectorQuad*)at[KVCC_VECTOR_QUADS];
  tensor->tables = (const float*)at[KVCC_VECTOR_TABLES];
  tensor->places = (const int32_t*)at[KVCC_VECTOR_PLACES];
  tensor->place = (const int32_t*)at[KVCC_VECTOR_PLACE];
  tensor->constant = (const float*)at[KVCC_VECTOR_CONSTANT];
  tensor->inverse = (const float*)at[KVCC_VECTOR_INVERSE];
  tensor->active = (const float*)at[KVCC_VECTOR_ACTIVE];
  tensor->mean = (const float*)at[KVCC_VECTOR_MEAN];
  tensor->active_mean = (const float*)at[KVCC_VECTOR_ACTIVE_MEAN];
  tensor->forward = (const float*)at[KVCC_VECTOR_FORWARD];
  tensor->forward_mean = (const float*)at[KVCC_VECTOR_FORWARD_MEAN];
  tensor->first_group = (const int32_t*)at[KVCC_VECTOR_FIRST_GROUP];
  tensor->groups = (const KvccVectorGroup*)at[KVCC_VECTOR_GROUPS];
  tensor->planes = (const float*)at[KVCC_VECTOR_PLANES];
  tensor->heads = (const KvccVectorHead*)at[KVCC_VECTOR_HEADS];
  tensor->slots = (const KvccVectorSlot*)at[KVCC_VECTOR_SLOTS];
  tensor->rows = (const uint8_t*)at[KVCC_VECTOR_ROWS];
  tensor->fragments = (const uint32_t*)at[KVCC_VECTOR_FRAGMENTS];
  tensor->fragment_mean = (const float*)at[KVCC_VECTOR_FRAGMENT_MEAN];
  tensor->back = (const float*)at[KVCC_VECTOR_BACK];
  cache->head_words = (const uint32_t*)at[KVCC_VECTOR_HEAD_WORDS];
}

/* Bytes of a page, whose tiles take `code_words` 32-bit words together; one without codes has 128 all the same. */
KVCC_LAUNCH_FN int64_t kvcc_vector_page_bytes(int32_t code_words) {
  return code_words == 0 ? 128 : ((int64_t)code_words * 4 + 127) / 128 * 128;
}

/* Grids are those of the families' params in launch.h and mma_launch.h, given a pointer to the first member:
 * kvcc_grid_mma_pack(&p->pack), kvcc_grid_key_scores(&p->scores, head_dim), kvcc_grid_value_mix(&p->mix),
 * kvcc_grid_value_merge(&p->mix, head_dim), kvcc_grid_dequantise(&p->dequantise, head_dim); of tensor cores
 * kvcc_grid_mma_key_scores(&p->scores), kvcc_grid_mma_attention(&p->attention) and its merge. */

/* Parameters of the kernels for GPUs, passed by value; pointers of `tensor` are the device's. Rotary tables are those
 * of linear-1 (KvccKeyScoresParams). */
typedef struct KvccVectorPackParams {
  KvccPackParams pack;
  KvccVectorTensor tensor;
} KvccVectorPackParams;
typedef struct KvccVectorKeyScoresParams {
  KvccKeyScoresParams scores;
  KvccVectorTensor tensor;
} KvccVectorKeyScoresParams;
typedef struct KvccVectorValueMixParams {
  KvccValueMixParams mix;
  KvccVectorTensor tensor;
} KvccVectorValueMixParams;
typedef struct KvccVectorDequantiseParams {
  KvccDequantiseParams dequantise;
  KvccVectorTensor tensor;
} KvccVectorDequantiseParams;
/* Of tensor cores: rotary tables are KvccRope. */
typedef struct KvccVectorMmaKeyScoresParams {
  KvccMmaKeyScoresParams scores;
  KvccVectorTensor tensor;
} KvccVectorMmaKeyScoresParams;
typedef struct KvccVectorAttentionParams {
  KvccAttentionParams attention;
  KvccVectorTensor key, value;
} KvccVectorAttentionParams;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KVCC_FORMATS_LAYOUT_VECTOR_LAUNCH_H_ */
