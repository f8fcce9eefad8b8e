/* Drives formats/export/c/kvcc_read.h for test_c_reader.py.
 *   read_head EXPORT key|value LAYER HEAD PAGES PAGE_BYTES CAPACITY TOKENS   f32 [TOKENS, D] to stdout
 *   read_head EXPORT damage            every truncation, every byte of the header changed, pages of random bytes; each
 * copy is as large as it says, so that the address sanitiser sees every step beyond it */
#include <stdio.h>

#include "kvcc_read.h"

/* Kept to the end: what is freed is the copies that are damaged. */
static unsigned char *bytes, *pages;
static float* out;

static unsigned char* slurp(const char* path, size_t* size) {
  FILE* in = fopen(path, "rb");
  unsigned char* read;
  if (!in) exit(2);
  fseek(in, 0, SEEK_END);
  *size = (size_t)ftell(in);
  rewind(in);
  read = (unsigned char*)malloc(*size + 1);
  if (!read || fread(read, 1, *size, in) != *size) exit(2);
  fclose(in);
  return read;
}

static int refuse(const char* error) {
  fprintf(stderr, "read_head: %s\n", error);
  return 3;
}

static unsigned random_byte(void) {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return state >> 24;
}

/* 1 when the copy was taken for good as far as a whole page of the head. */
static int attempt(size_t size) {
  unsigned char* copy = (unsigned char*)malloc(size ? size : 1);
  kvcc_file file;
  int taken = 0, tensor;
  if (!copy) exit(2);
  memcpy(copy, bytes, size);
  for (tensor = 0; tensor < 2; ++tensor) {
    kvcc_head head;
    size_t page_bytes = 1200, i;
    unsigned char* page;
    float* rows;
    if (kvcc_open(&file, copy, size) || kvcc_open_head(&file, tensor ? "value" : "key", 2, 1, &head)) continue;
    page = (unsigned char*)malloc(page_bytes);
    rows = (float*)malloc(sizeof(float) * KVCC_PAGE_TOKENS * head.dim);
    if (!page || !rows) exit(2);
    for (i = 0; i < page_bytes; ++i) page[i] = i < head.codes_bytes || i % 4 == 0 ? (unsigned char)random_byte() : 0;
    taken += !kvcc_decode_head(&head, page, page_bytes, 32, KVCC_PAGE_TOKENS, rows);
    free(page);
    free(rows);
  }
  free(copy);
  return taken;
}

static int damage(size_t size) {
  const size_t header = 8 + (size_t)kvcc_u32(bytes);
  size_t i, k, short_taken = 0, edit_taken = 0;
  static const unsigned char edits[] = {'9', '"', '{', ']', 0xff};
  for (i = 0; i < size; ++i) short_taken += (size_t)attempt(i);
  for (i = 0; i < header; ++i) {
    const unsigned char kept = bytes[i];
    for (k = 0; k < sizeof edits; ++k) {
      bytes[i] = edits[k];
      edit_taken += (size_t)attempt(size);
    }
    bytes[i] = kept;
  }
  printf("%lu %lu\n", (unsigned long)short_taken, (unsigned long)edit_taken);
  return 0;
}

int main(int argc, char** argv) {
  size_t size, pages_size, page_bytes;
  uint32_t tokens, first, capacity;
  kvcc_file file;
  kvcc_head head;
  const char* error;
  if (argc < 3) return 2;
  bytes = slurp(argv[1], &size);
  if (strcmp(argv[2], "damage") == 0) return damage(size);
  if (argc != 9) return 2;
  error = kvcc_open(&file, bytes, size);
  if (!error) error = kvcc_open_head(&file, argv[2], (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]), &head);
  if (error) return refuse(error);
  pages = slurp(argv[5], &pages_size);
  page_bytes = (size_t)atol(argv[6]);
  capacity = (uint32_t)atol(argv[7]);
  tokens = (uint32_t)atol(argv[8]);
  out = (float*)malloc(sizeof(float) * KVCC_PAGE_TOKENS * head.dim);
  if (!out) return 2;
  for (first = 0; first < tokens; first += KVCC_PAGE_TOKENS) {
    const uint32_t count = tokens - first < KVCC_PAGE_TOKENS ? tokens - first : KVCC_PAGE_TOKENS;
    const size_t at = first / KVCC_PAGE_TOKENS * page_bytes;
    const size_t there = at < pages_size ? pages_size - at : 0;
    error = kvcc_decode_head(&head, pages + at, there < page_bytes ? there : page_bytes, capacity, count, out);
    if (error) return refuse(error);
    fwrite(out, sizeof *out, (size_t)count * head.dim, stdout);
  }
  return 0;
}
