// write_codebook FILE SCHEME LAYERS HEADS GROUP HEAD_DIM VALUE_HEAD_DIM: writes a made-up artifact and prints its
// content's hash.
#include <cstdio>
#include <cstdlib>

#include "tests/codegen/made.h"

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  const auto number = [&](int i) { return std::atoi(argv[i]); };
  kvcc::Codebook book = kvcc::made::kernel_codebook(argv[2], number(3), number(4), number(5), number(6), number(7));
  kvcc::write_codebook(argv[1], book);
  std::puts(book.content_sha256.c_str());
  return 0;
}
