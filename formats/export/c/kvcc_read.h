/* Reads what `kvcc export NAME.kvcb --to safetensors` writes and decodes pages of layout linear-1
 * (formats/spec/cache.md). One file of C99, nothing of kvcc: include it, and link the C mathematical library (fmaf).
 *
 *   kvcc_file file;
 *   kvcc_head head;
 *   const char* error = kvcc_open(&file, bytes, size);
 *   if (!error) error = kvcc_open_head(&file, "key", layer, 0, &head);
 *   if (!error) error = kvcc_decode_head(&head, page, page_bytes, capacity, tokens, out);
 *
 * `bytes` are the whole export, which the caller has read or mapped and keeps while they are in use; `layer` is the
 * model's number of it.
 *
 * Functions return NULL, or what is wrong as a constant text. Nothing is allocated; every read is inside `size` or
 * `page_bytes`, whatever the bytes are. Keys are decoded as they are stored: before RoPE where the scheme says so. */
#ifndef KVCC_READ_H
#define KVCC_READ_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { KVCC_MAX_RANK = 8, KVCC_MAX_DEPTH = 32, KVCC_PAGE_TOKENS = 64, KVCC_MAX_COLUMNS = 65536 };

typedef struct {
  const char* header; /* JSON */
  size_t header_size;
  const unsigned char* data;
  size_t data_size;
} kvcc_file;

typedef struct {
  char dtype[8];
  int rank;
  uint64_t shape[KVCC_MAX_RANK];
  const unsigned char* bytes;
  size_t size;
} kvcc_tensor;

/* One head of one layer's keys or values: where its numbers lie in the file and in a page. */
typedef struct {
  uint32_t heads, dim, head, bits;
  uint32_t tail;                              /* outliers of each end a token, token axis */
  int per_channel;                            /* static scales, else one range a token in the page */
  int csr;                                    /* outliers by thresholds: row ends and `capacity` records a page */
  size_t first_byte;                          /* of the head's codes in a page */
  size_t codes_bytes;                         /* of all heads' codes */
  const unsigned char *levels, *scale, *zero; /* f32 [2^bits], [dim], [dim] */
} kvcc_head;

/* Numbers are little-endian in files and pages, wherever this runs. */
static uint32_t kvcc_u16(const unsigned char* p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static uint32_t kvcc_u32(const unsigned char* p) { return kvcc_u16(p) | kvcc_u16(p + 2) << 16; }
static float kvcc_f32(const unsigned char* p) {
  const uint32_t bits = kvcc_u32(p);
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static float kvcc_f16(const unsigned char* p) {
  const uint32_t half = kvcc_u16(p), exponent = half >> 10 & 31, fraction = half & 1023;
  const float sign = half >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? ldexpf((float)(1024 + fraction), (int)exponent - 25) : ldexpf((float)fraction, -24));
}

/* ---- JSON, as far as a header needs it. A cursor that has met a mistake has at = end + 1 and stays there. */
typedef struct {
  const char *at, *end;
} kvcc_json;

static int kvcc_bad(const kvcc_json* j) { return j->at > j->end; }
static void kvcc_fail(kvcc_json* j) { j->at = j->end + 1; }
static int kvcc_peek(kvcc_json* j) {
  while (!kvcc_bad(j) && j->at < j->end && memchr(" \t\r\n", *j->at, 4)) ++j->at;
  return j->at < j->end ? (unsigned char)*j->at : -1;
}
static int kvcc_take(kvcc_json* j, char c) {
  if (kvcc_peek(j) != (unsigned char)c) return 0;
  ++j->at;
  return 1;
}
static void kvcc_want(kvcc_json* j, char c) {
  if (!kvcc_take(j, c)) kvcc_fail(j);
}
/* A string; copies it, ended by 0, to `out` of `size` bytes. Returns 0 when it doesn't fit there, which is no mistake.
 * \u escapes beyond ASCII become '?': names and numbers that this reader asks for have none. */
static int kvcc_string(kvcc_json* j, char* out, size_t size) {
  size_t n = 0;
  kvcc_want(j, '"');
  while (!kvcc_bad(j)) {
    char c;
    if (j->at >= j->end || (unsigned char)*j->at < 0x20) {
      kvcc_fail(j);
      break;
    }
    c = *j->at++;
    if (c == '"') {
      if (n < size) out[n] = 0;
      return n < size;
    }
    if (c == '\\') {
      static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
      const char* escape = j->at < j->end ? (const char*)memchr(from, *j->at, 8) : NULL;
      if (escape) {
        c = to[escape - from];
        ++j->at;
      } else if (j->at < j->end && *j->at == 'u' && j->end - j->at > 4) {
        unsigned value = 0;
        int i;
        for (i = 1; i <= 4; ++i) {
          const char *digits = "0123456789abcdefABCDEF", *digit = (const char*)memchr(digits, j->at[i], 22);
          if (!digit) break;
          value = value * 16 + (unsigned)(digit - digits < 16 ? digit - digits : digit - digits - 6);
        }
        if (i <= 4) {
          kvcc_fail(j);
          break;
        }
        c = value > 0 && value < 128 ? (char)value : '?';
        j->at += 5;
      } else {
        kvcc_fail(j);
        break;
      }
    }
    if (n < size) out[n] = c;
    ++n;
  }
  return 0;
}
static uint64_t kvcc_whole(kvcc_json* j) {
  uint64_t value = 0;
  int c = kvcc_peek(j);
  if (c < '0' || c > '9') kvcc_fail(j);
  while (!kvcc_bad(j) && j->at < j->end && *j->at >= '0' && *j->at <= '9') {
    const uint64_t digit = (uint64_t)(*j->at++ - '0');
    if (value > (UINT64_MAX - digit) / 10) kvcc_fail(j);
    value = value * 10 + digit;
  }
  return value;
}
/* Any value, to be passed over; recursion ends at `depth` 0. */
static void kvcc_skip(kvcc_json* j, int depth) {
  char none[1];
  const int c = kvcc_peek(j);
  if (depth == 0 || c < 0) {
    kvcc_fail(j);
  } else if (c == '"') {
    kvcc_string(j, none, 0);
  } else if (c == '{' || c == '[') {
    const char close = c == '{' ? '}' : ']';
    ++j->at;
    if (kvcc_take(j, close)) return;
    do {
      if (c == '{') {
        kvcc_string(j, none, 0);
        kvcc_want(j, ':');
      }
      kvcc_skip(j, depth - 1);
    } while (!kvcc_bad(j) && kvcc_take(j, ','));
    kvcc_want(j, close);
  } else {
    const char* begin = j->at;
    while (j->at < j->end && !memchr(" \t\r\n,]}", *j->at, 7)) ++j->at;
    if (j->at == begin) kvcc_fail(j);
  }
}
/* Moves `j`, at an object, to the value of its member `name`; fails when there is none. The first counts. */
static int kvcc_member(kvcc_json* j, const char* name) {
  char key[128];
  kvcc_want(j, '{');
  if (kvcc_take(j, '}')) kvcc_fail(j);
  while (!kvcc_bad(j)) {
    const int fits = kvcc_string(j, key, sizeof key);
    kvcc_want(j, ':');
    if (kvcc_bad(j)) break;
    if (fits && strcmp(key, name) == 0) return 1;
    kvcc_skip(j, KVCC_MAX_DEPTH);
    if (!kvcc_bad(j) && !kvcc_take(j, ',')) kvcc_fail(j);
  }
  return 0;
}
static kvcc_json kvcc_root(const kvcc_file* file) {
  kvcc_json j;
  j.at = file->header;
  j.end = file->header + file->header_size;
  return j;
}

/* ---- safetensors */

/* Text `name` of __metadata__. */
static const char* kvcc_metadata(const kvcc_file* file, const char* name, char* out, size_t size) {
  kvcc_json j = kvcc_root(file);
  if (!kvcc_member(&j, "__metadata__") || !kvcc_member(&j, name)) return "the metadata lacks a name";
  if (!kvcc_string(&j, out, size)) return "a text of the metadata is no text, or too long";
  return NULL;
}
static const char* kvcc_metadata_number(const kvcc_file* file, const char* name, uint64_t most, uint32_t* out) {
  char text[24];
  const char* error = kvcc_metadata(file, name, text, sizeof text);
  kvcc_json j;
  uint64_t value;
  if (error) return error;
  j.at = text;
  j.end = text + strlen(text);
  value = kvcc_whole(&j);
  if (j.at != j.end || value > most) return "a number of the metadata is out of range";
  *out = (uint32_t)value;
  return NULL;
}

/* data_offsets of a tensor, whose entry `j` is at. */
static int kvcc_offsets(kvcc_json j, const kvcc_file* file, uint64_t* begin, uint64_t* end) {
  if (!kvcc_member(&j, "data_offsets")) return 0;
  kvcc_want(&j, '[');
  *begin = kvcc_whole(&j);
  kvcc_want(&j, ',');
  *end = kvcc_whole(&j);
  kvcc_want(&j, ']');
  return !kvcc_bad(&j) && *begin <= *end && *end <= file->data_size;
}
/* Whether all tensors lie in the file, and reach its end: else it was cut short. */
static int kvcc_whole_file(const kvcc_file* file) {
  kvcc_json j = kvcc_root(file);
  uint64_t begin, end, last = 0;
  kvcc_want(&j, '{');
  do {
    char name[16];
    const int fits = kvcc_string(&j, name, sizeof name);
    kvcc_want(&j, ':');
    if (kvcc_bad(&j)) return 0;
    if (!fits || strcmp(name, "__metadata__") != 0) {
      if (!kvcc_offsets(j, file, &begin, &end)) return 0;
      if (end > last) last = end;
    }
    kvcc_skip(&j, KVCC_MAX_DEPTH);
  } while (!kvcc_bad(&j) && kvcc_take(&j, ','));
  return last == file->data_size;
}

static const char* kvcc_open(kvcc_file* file, const void* bytes, size_t size) {
  const unsigned char* p = (const unsigned char*)bytes;
  char text[32];
  kvcc_json j;
  uint64_t length;
  if (size < 8) return "truncated: no length of the header";
  length = kvcc_u32(p) | (uint64_t)kvcc_u32(p + 4) << 32;
  if (length > size - 8) return "truncated: the header leaves the file";
  file->header = (const char*)(p + 8);
  file->header_size = (size_t)length;
  file->data = p + 8 + length;
  file->data_size = size - 8 - (size_t)length;
  j = kvcc_root(file);
  kvcc_skip(&j, KVCC_MAX_DEPTH);
  if (kvcc_bad(&j) || kvcc_peek(&j) != -1) return "the header is no JSON object";
  if (kvcc_metadata(file, "format", text, sizeof text) || strcmp(text, "kvcc-codebook") != 0)
    return "not an export of kvcc (format is not kvcc-codebook)";
  if (kvcc_metadata(file, "format_version", text, sizeof text) || strncmp(text, "1.", 2) != 0)
    return "another format version; this reads 1.x";
  return kvcc_whole_file(file) ? NULL : "truncated, or a tensor whose bytes leave the file";
}

static size_t kvcc_dtype_bytes(const char* dtype) {
  static const char names[][8] = {"U8",  "I8",  "BOOL", "U16", "I16", "F16", "BF16",
                                  "U32", "I32", "F32",  "U64", "I64", "F64"};
  static const size_t bytes[] = {1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8};
  size_t i;
  for (i = 0; i < sizeof bytes / sizeof *bytes; ++i)
    if (strcmp(dtype, names[i]) == 0) return bytes[i];
  return 0;
}
static const char* kvcc_find(const kvcc_file* file, const char* name, kvcc_tensor* tensor) {
  kvcc_json entry = kvcc_root(file), j;
  uint64_t begin, end, wanted;
  int i;
  if (!kvcc_member(&entry, name)) return "a tensor is missing";
  j = entry;
  if (!kvcc_member(&j, "dtype") || !kvcc_string(&j, tensor->dtype, sizeof tensor->dtype))
    return "a tensor without dtype";
  j = entry;
  tensor->rank = 0;
  if (!kvcc_member(&j, "shape") || !kvcc_take(&j, '[')) return "a tensor without shape";
  if (!kvcc_take(&j, ']')) {
    do {
      if (tensor->rank == KVCC_MAX_RANK) return "a tensor of too many axes";
      tensor->shape[tensor->rank++] = kvcc_whole(&j);
    } while (kvcc_take(&j, ','));
    kvcc_want(&j, ']');
  }
  if (kvcc_bad(&j)) return "a shape that isn't whole numbers";
  if (!kvcc_offsets(entry, file, &begin, &end)) return "a tensor whose bytes leave the file";
  wanted = kvcc_dtype_bytes(tensor->dtype);
  if (wanted == 0) return "a tensor of unknown dtype";
  for (i = 0; i < tensor->rank; ++i) {
    if (tensor->shape[i] != 0 && wanted > UINT64_MAX / tensor->shape[i]) return "a shape that overflows";
    wanted *= tensor->shape[i];
  }
  if (end - begin != wanted) return "a tensor whose bytes don't fit its shape";
  tensor->bytes = file->data + begin;
  tensor->size = (size_t)wanted;
  return NULL;
}
/* Dataset TENSOR/NAME, which has to have the dtype and the shape [layers, heads, last], or [layers, heads] with last 0.
 */
static const char* kvcc_dataset(const kvcc_file* file, const char* tensor, const char* name, const char* dtype,
                                uint64_t layers, uint64_t heads, uint64_t last, kvcc_tensor* out) {
  char path[64];
  const char* error;
  if (strlen(tensor) + strlen(name) + 2 > sizeof path) return "a name is too long";
  strcpy(path, tensor);
  strcat(strcat(path, "/"), name);
  error = kvcc_find(file, path, out);
  if (error) return error;
  if (strcmp(out->dtype, dtype) != 0 || out->rank != (last ? 3 : 2) || out->shape[0] != layers ||
      out->shape[1] != heads || (last && out->shape[2] != last))
    return "a tensor of another type or shape than the metadata says";
  return NULL;
}

/* ---- a head of the artifact and its pages */

static uint32_t kvcc_row_words(uint32_t dim, uint32_t bits) { return (dim * bits + 31) / 32; }

/* Member `name` of scheme_json as a number from 0 to 1. */
static const char* kvcc_sparse(const kvcc_file* file, double* out) {
  char text[1024], number[32];
  const char* error = kvcc_metadata(file, "scheme_json", text, sizeof text);
  kvcc_json j;
  size_t n = 0;
  if (error) return error;
  j.at = text;
  j.end = text + strlen(text);
  if (!kvcc_member(&j, "sparse")) return "scheme_json has no sparse";
  kvcc_peek(&j);
  while (j.at < j.end && n + 1 < sizeof number && memchr("0123456789.e-", *j.at, 13)) number[n++] = *j.at++;
  number[n] = 0;
  *out = strtod(number, NULL);
  return *out >= 0 && *out < 1 ? NULL : "scheme_json: sparse is out of range";
}

/* `tensor` is "key" or "value", `layer` the model's number of the layer. */
static const char* kvcc_open_head(const kvcc_file* file, const char* tensor, uint32_t layer, uint32_t head,
                                  kvcc_head* out) {
  const int key = strcmp(tensor, "key") == 0;
  kvcc_tensor index, bits, levels, found;
  uint32_t layers, row, h, codes;
  size_t at;
  double sparse;
  const char* error = kvcc_metadata_number(file, "model.layers", 65535, &layers);
  memset(out, 0, sizeof *out);
  if (!key && strcmp(tensor, "value") != 0) return "neither key nor value";
  if (!error) error = kvcc_metadata_number(file, "model.kv_heads", KVCC_MAX_COLUMNS, &out->heads);
  if (!error)
    error = kvcc_metadata_number(file, key ? "model.head_dim" : "model.value_head_dim", KVCC_MAX_COLUMNS, &out->dim);
  if (!error) error = kvcc_sparse(file, &sparse);
  if (!error) error = kvcc_find(file, "layer_index", &index);
  if (!error) error = kvcc_dataset(file, tensor, "bits", "U8", layers, out->heads, 0, &bits);
  if (error) return error;
  if (out->dim == 0 || (uint64_t)out->heads * out->dim > KVCC_MAX_COLUMNS) return "more than 65536 columns, or none";
  if (head >= out->heads) return "no such head";
  if (strcmp(index.dtype, "U16") != 0 || index.rank != 1 || index.shape[0] != layers)
    return "layer_index is no list of layers";
  for (row = 0; row < layers && kvcc_u16(index.bytes + 2 * (size_t)row) != layer; ++row) {
  }
  if (row == layers) return "the artifact does not hold the layer";
  for (h = 0; h < out->heads; ++h) {
    const uint32_t width = bits.bytes[(size_t)row * out->heads + h];
    const size_t bytes = (size_t)4 * KVCC_PAGE_TOKENS * kvcc_row_words(out->dim, width);
    if (width < 1 || width > 8) return "a code of no bits, or more than 8";
    if (h < head) out->first_byte += bytes;
    if (h == head) out->bits = width;
    out->codes_bytes += bytes;
  }
  out->head = head;
  error = kvcc_find(file, key ? "key/codebook" : "value/codebook", &levels);
  if (error) return error;
  codes = levels.rank == 3 && levels.shape[2] <= 256 ? (uint32_t)levels.shape[2] : 0;
  if (codes < 1u << out->bits) return "fewer levels than codes";
  error = kvcc_dataset(file, tensor, "codebook", "F32", layers, out->heads, codes, &levels);
  if (error) return error;
  at = (size_t)row * out->heads + head;
  out->levels = levels.bytes + 4 * at * codes;
  error = kvcc_find(file, key ? "key/scale" : "value/scale", &found);
  if (error) { /* online ranges */
    const uint32_t columns = out->heads * out->dim;
    if (sparse > 0 && columns >= 3) out->tail = 1 + (uint32_t)(sparse / 2 * (columns - 1) + 1e-9);
    return NULL;
  }
  out->per_channel = 1;
  out->csr = sparse > 0;
  error = kvcc_dataset(file, tensor, "scale", "F32", layers, out->heads, out->dim, &found);
  if (error) return error;
  out->scale = found.bytes + 4 * at * out->dim;
  error = kvcc_dataset(file, tensor, "zero", "F32", layers, out->heads, out->dim, &found);
  if (error) return error;
  out->zero = found.bytes + 4 * at * out->dim;
  return NULL;
}

/* out [tokens, dim] = what slots 0 to tokens - 1 (of at most 64) of the page hold of the head. `capacity`: records a
 * page can hold, where outliers are by thresholds; else not used. */
static const char* kvcc_decode_head(const kvcc_head* head, const void* page, size_t page_bytes, uint32_t capacity,
                                    uint32_t tokens, float* out) {
  const unsigned char* p = (const unsigned char*)page;
  const uint32_t words = kvcc_row_words(head->dim, head->bits), first_column = head->head * head->dim;
  const uint64_t records = head->csr ? capacity : (uint64_t)KVCC_PAGE_TOKENS * 2 * head->tail;
  const uint64_t ends_at = head->codes_bytes + (head->per_channel ? 0 : 4 * KVCC_PAGE_TOKENS);
  const uint64_t records_at = ends_at + (head->csr ? 4 * KVCC_PAGE_TOKENS : 0);
  uint64_t begin = 0;
  uint32_t slot, c;
  if (tokens > KVCC_PAGE_TOKENS) return "a page holds 64 tokens";
  if (page_bytes < records_at + 4 * records) return "the page is too small";
  for (slot = 0; slot < tokens; ++slot) {
    const unsigned char* row = p + head->first_byte + (size_t)4 * slot * words;
    const unsigned char* range = p + head->codes_bytes + (size_t)4 * slot;
    uint64_t end = head->csr ? kvcc_u32(p + ends_at + (size_t)4 * slot) : (uint64_t)2 * head->tail * (slot + 1);
    float* to = out + (size_t)slot * head->dim;
    if (end < begin || end > records) return "row ends that fall, or exceed the page's records";
    for (c = 0; c < head->dim; ++c) {
      const uint32_t bit = c * head->bits; /* a code lies in two bytes at most */
      const uint32_t low = row[bit / 8], high = bit % 8 + head->bits > 8 ? row[bit / 8 + 1] : 0;
      const uint32_t code = (low | high << 8) >> bit % 8 & ((1u << head->bits) - 1);
      to[c] = fmaf(kvcc_f32(head->levels + (size_t)4 * code),
                   head->per_channel ? kvcc_f32(head->scale + (size_t)4 * c) : kvcc_f16(range),
                   head->per_channel ? kvcc_f32(head->zero + (size_t)4 * c) : kvcc_f16(range + 2));
    }
    for (; begin < end; ++begin) {
      const unsigned char* record = p + records_at + (size_t)4 * begin;
      const uint32_t column = kvcc_u16(record);
      if (column >= head->heads * head->dim) return "an outlier beyond the columns";
      if (column >= first_column && column < first_column + head->dim) to[column - first_column] = kvcc_f16(record + 2);
    }
  }
  return NULL;
}

#endif
