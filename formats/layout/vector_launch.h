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
} KvccVectorTensor;

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

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KVCC_FORMATS_LAYOUT_VECTOR_LAUNCH_H_ */
