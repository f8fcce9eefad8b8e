// Packs made-up rows in both layouts, for test_mma_golden.py.
//   mma_pages key|value channel|token DIM BITS,BITS,... TOKENS SPARSE SEED PREFIX
// SPARSE: 0 none; else outliers (channel axis), outliers of each tail (token axis). Writes the pages to PREFIX.linear
// and PREFIX.mma; prints bytes of a page of either and the capacity of a tile.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "tests/kernels/mma_cases.h"

namespace {

void write(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("can't write " + path);
}

template <class Quantiser>
void pack(const Quantiser& q, kvcc::mma::Tensor tensor, int tokens, std::mt19937& random, const std::string& prefix) {
  const auto x = kvcc::test::make_rows(tokens, int64_t{q.heads} * q.dim, random);
  const auto linear = kvcc::reference::pack(q, x, {});
  const auto mma = kvcc::reference::pack_mma(q, tensor, x, {});
  write(prefix + ".linear", linear.pages);
  write(prefix + ".mma", mma.pages);
  std::cout << kvcc::linear::page_bytes(linear.shape) << ' ' << kvcc::mma::page_bytes(mma.shape) << ' '
            << mma.shape.capacity << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    std::cerr << "mma_pages key|value channel|token DIM BITS,BITS,... TOKENS SPARSE SEED PREFIX\n";
    return 2;
  }
  const auto tensor = std::string(argv[1]) == "key" ? kvcc::mma::Tensor::key : kvcc::mma::Tensor::value;
  const int dim = std::atoi(argv[3]), tokens = std::atoi(argv[5]), sparse = std::atoi(argv[6]);
  std::vector<uint8_t> bits;
  std::istringstream widths(argv[4]);
  for (std::string width; std::getline(widths, width, ',');) bits.push_back(static_cast<uint8_t>(std::stoi(width)));
  const int heads = static_cast<int>(bits.size());
  std::mt19937 random(std::atoi(argv[7]));
  if (std::string(argv[2]) == "channel") {
    pack(kvcc::test::make_channel_quantiser(heads, dim, bits, sparse > 0, random), tensor, tokens, random, argv[8]);
  } else {
    pack(kvcc::test::make_token_quantiser(heads, dim, bits, sparse, random), tensor, tokens, random, argv[8]);
  }
}
