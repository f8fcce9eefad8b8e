// write_codebook FILE SCHEME LAYERS HEADS GROUP HEAD_DIM VALUE_HEAD_DIM [MIXED]: writes a made-up artifact. MIXED 1
// gives the key heads of odd numbers one bit less.
#include <cstdio>
#include <cstdlib>

#include "tests/codegen/made.h"

int main(int argc, char** argv) {
  if (argc < 8) return 2;
  const auto number = [&](int i) { return std::atoi(argv[i]); };
  kvcc::Codebook book = kvcc::made::kernel_codebook(argv[2], number(3), number(4), number(5), number(6), number(7));
  kvcc::write_codebook(argv[1], book);
  std::puts(book.content_sha256.c_str());
  return 0;
}
