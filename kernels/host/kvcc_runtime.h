/* The packed key/value cache as a library: C, no exceptions, no C++ types. Made from an artifact in its safetensors
 * export (`kvcc export --to safetensors`). One cache is one sequence with all layers of a model. Functions that take
 * different caches may run at the same time in different threads; one cache is used by one thread at a time. An
 * artifact may be shared, and is kept alive by its caches.
 *
 * Results do not depend on the number of threads, nor on how tokens are divided into calls. Arrays need the alignment
 * of their elements only.
 *
 * Letters: L layers, H key/value heads, Hq query heads, D head dimension of keys, Dv of values, T tokens.
 *
 * Functions return KVCC_OK or a code below; kvcc_error_message() then says what was wrong. After an error the cache is
 * as it was before the call, unless the function says otherwise. */
#ifndef KVCC_KERNELS_HOST_KVCC_RUNTIME_H_
#define KVCC_KERNELS_HOST_KVCC_RUNTIME_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVCC_API __attribute__((visibility("default")))
#else
#define KVCC_API
#endif

/* As the exit codes of the programs. */
enum {
  KVCC_OK = 0,
  KVCC_FAILED = 1,
  KVCC_USAGE = 2,     /* an argument that is null, out of range or of the wrong moment */
  KVCC_BAD_INPUT = 3, /* a file that is missing, damaged, of another version or model; values that are not finite */
  KVCC_NO_MEMORY = 4  /* memory or disk ran out */
};

typedef struct KvccArtifact KvccArtifact;
typedef struct KvccSequence KvccSequence; /* the cache of one sequence */

/* Geometry of an artifact. */
typedef struct KvccShape {
  int32_t layers, query_heads, kv_heads, head_dim, value_head_dim;
  int32_t rotary_dim;     /* 0: keys are not turned by the cache */
  int32_t sink, residual; /* tokens kept exactly */
} KvccShape;

typedef struct KvccOptions {
  uint32_t size;      /* sizeof(KvccOptions), so that the struct can grow */
  int32_t threads;    /* that attend and append use; 0: all of the machine's */
  int64_t max_tokens; /* positions that RoPE tables are made for, up to 2^24; 0: 32,768, or what the model was trained
                         on where its scaling depends on the length (dynamic, longrope). Appending beyond it makes
                         larger ones, with the frequencies of that length: queries turned before then no longer fit.
                         Memory for tokens always grows as they come */
  int32_t arithmetic; /* 0: f32, 1: 16-bit fixed point, 2: f64, slow, for comparison (kernels/cpu/units.h); of vector
                         codebooks 0 alone */
  int32_t reserved;   /* 0 */
  const char* units;  /* shared library made by `kvcc compile --arch cpu` of the same artifact, used in place of
                         the built-in units; null: built-in */
} KvccOptions;

typedef struct KvccUsage {
  int64_t tokens;         /* of layer 0 */
  int64_t packed_bytes;   /* pages in use, all layers */
  int64_t exact_bytes;    /* sinks and residual window */
  int64_t reserved_bytes; /* allocated for the cache */
  int64_t fp16_bytes;     /* what an fp16 cache of as many tokens takes */
} KvccUsage;

/* Message of the last error in the calling thread: place, found, wanted, cure; UTF-8. Valid until the thread's next
 * call; empty before the first error. */
KVCC_API const char* kvcc_error_message(void);
/* Of the library: "0.1.0". */
KVCC_API const char* kvcc_version(void);

/* KVCC_BAD_INPUT for what is no such file or is damaged; KVCC_USAGE for what the layouts mma-1 and vector-1
 * (formats/spec/cache-mma.md, cache-vector.md) can't hold: head dimensions that are no multiple of 16 or above 256,
 * widths of scalar codes other than 2, 3, 4 and 8 bits, vector codebooks across heads, a number of rotary channels that
 * is no multiple of 16. *artifact and *sequence are null after an error. */
KVCC_API int kvcc_artifact_open(const char* path, KvccArtifact** artifact);
/* The same from bytes of such a file, which are copied. `name` is for messages. */
KVCC_API int kvcc_artifact_open_memory(const void* bytes, uint64_t size, const char* name, KvccArtifact** artifact);
KVCC_API int kvcc_artifact_shape(const KvccArtifact* artifact, KvccShape* shape);
KVCC_API void kvcc_artifact_free(KvccArtifact* artifact); /* null is allowed */

KVCC_API int kvcc_create(const KvccArtifact* artifact, const KvccOptions* options /* null: defaults */,
                         KvccSequence** sequence);
KVCC_API void kvcc_free(KvccSequence* sequence); /* null is allowed */

/* Appends `count` tokens to a layer: key [count, H, D] after projection, bias and QK-norm and before RoPE (after it
 * where the scheme takes keys after RoPE; rotary_dim is then 0), value [count, H, Dv], f32. Layers are filled
 * independently; a model appends to each in turn. Where the scheme has a residual window, the last tokens are kept as
 * fp16 rows, and each is packed from its row when it leaves the window. Value that is not finite, or
 * overflows fp16 where it is kept exactly: KVCC_BAD_INPUT naming token, head and channel, nothing is appended. */
KVCC_API int kvcc_append(KvccSequence* sequence, int32_t layer, const float* key, const float* value, int64_t count);

/* Attention of the layer's last token over all its tokens, of which there must be one: query [Hq, D] f32 after RoPE at
 * that token's position, multiplier the softmax's (0: 1 / sqrt(D)), window a sliding window in tokens (0: none), out
 * [Hq, Dv]. */
KVCC_API int kvcc_attend(KvccSequence* sequence, int32_t layer, const float* query, float multiplier, int64_t window,
                         float* out);

/* count times append of a token and attend, in order: causal attention over a packed cache. query [count, Hq, D],
 * out [count, Hq, Dv]. On an error none of the tokens stays appended, and `out` is unspecified. */
KVCC_API int kvcc_append_attend(KvccSequence* sequence, int32_t layer, const float* key, const float* value,
                                const float* query, int64_t count, float multiplier, int64_t window, float* out);

/* Query heads [count, Hq, D] before RoPE, turned in place to positions first, first + 1, …, as kvcc_attend wants them.
 * With rotary_dim 0 they stay as they are. KVCC_USAGE for a model of which not all layers rotate alike. */
KVCC_API int kvcc_rotate(const KvccSequence* sequence, float* query, int64_t first, int64_t count);
/* The same as a layer has it. */
KVCC_API int kvcc_rotate_layer(const KvccSequence* sequence, int32_t layer, float* query, int64_t first, int64_t count);

/* Tokens [first, first + count) of a layer as the cache gives them back: key (before RoPE) [count, H, D], value
 * [count, H, Dv], f32; either may be null. */
KVCC_API int kvcc_read(const KvccSequence* sequence, int32_t layer, int64_t first, int64_t count, float* key,
                       float* value);

KVCC_API int64_t kvcc_length(const KvccSequence* sequence, int32_t layer); /* -1: no such layer */
KVCC_API int kvcc_usage(const KvccSequence* sequence, KvccUsage* usage);

/* Saves all layers (which must hold equally many tokens) to a file, formats/spec/cache-file.md; written beside its
 * name and renamed. tokens [count]: ids of the text so far, kept in the file for whoever continues; null with 0. */
KVCC_API int kvcc_save(const KvccSequence* sequence, const char* path, const int32_t* tokens, int64_t count);
/* Loads a file that was saved under the same artifact (same content_sha256), else KVCC_BAD_INPUT. */
KVCC_API int kvcc_load(const KvccArtifact* artifact, const char* path, const KvccOptions* options,
                       KvccSequence** sequence);
/* Ids that came with the file, valid until the sequence is freed; none: null with 0. */
KVCC_API int kvcc_tokens(const KvccSequence* sequence, const int32_t** tokens, int64_t* count);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KVCC_KERNELS_HOST_KVCC_RUNTIME_H_ */
