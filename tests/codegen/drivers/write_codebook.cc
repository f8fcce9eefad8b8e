// write_codebook FILE SCHEME LAYERS HEADS GROUP HEAD_DIM VALUE_HEAD_DIM [MIXED]: writes a made-up artifact. MIXED 1
// gives the key heads of odd numbers one bit less.
#include <cstdio>
#include <cstdlib>

#include "tests/codegen/made.h"

int main(int argc, char** argv) {
  if (argc < 8) return 2;
  const auto number = [&](int i) { return std::atoi(argv[i]); };
  kvcc::Codebook book = kvcc::made::kernel_codebook(argv[2], number(3), number(4), number(5), number(6), number(7));
  if (argc > 8 && number(8) == 1) {
    for (size_t i = 1; i < book.key.bits.size(); i += 2) {
      --book.key.bits[i];
      const size_t codes = book.key.codes;
      for (size_t c = codes / 2; c < codes; ++c) book.key.codebook[i * codes + c] = std::bit_cast<float>(0x7fc00000u);
      if (!book.key.stats.distinct.empty()) book.key.stats.distinct[i] = static_cast<uint32_t>(codes / 2);
    }
  }
  kvcc::write_codebook(argv[1], book);
  std::puts(book.content_sha256.c_str());
  return 0;
}
