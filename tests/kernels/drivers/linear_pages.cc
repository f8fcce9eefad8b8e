// linear_pages FOLDER channel|token HEADS DIM STRIDE TAIL: packs rows that a Python test made, for readers that are
// not kvcc's. In FOLDER, raw and little-endian: bits.u8 [H], levels.f32 [H, STRIDE], x.f32 [T, H, D] and for channels
// scale.f32, zero.f32 and perhaps lower.f32, upper.f32 [H, D]. Writes pages.bin and decoded.f32 [T, H, D]; prints bytes
// of a page and its records.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "kernels/reference/cache.h"

namespace {

std::string folder;

template <class T>
std::vector<T> read(const std::string& name) {
  std::ifstream in(folder + "/" + name, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<T> values(bytes.size() / sizeof(T));
  std::copy(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(values.size() * sizeof(T)),
            reinterpret_cast<char*>(values.data()));
  return values;
}

template <class T>
void write(const std::string& name, const std::vector<T>& values) {
  std::ofstream out(folder + "/" + name, std::ios::binary);
  out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
  if (!out.flush()) throw std::runtime_error("can't write " + name);
}

template <class Quantiser>
void pack(const Quantiser& q) {
  const auto cache = kvcc::reference::pack(q, read<float>("x.f32"), {});
  write("pages.bin", cache.pages);
  write("decoded.f32", kvcc::reference::unpack(q, cache));
  std::cout << kvcc::linear::page_bytes(cache.shape) << ' ' << cache.shape.entries << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::cerr << "linear_pages FOLDER channel|token HEADS DIM STRIDE TAIL\n";
    return 2;
  }
  folder = argv[1];
  const int heads = std::atoi(argv[3]), dim = std::atoi(argv[4]);
  kvcc::LevelTable table{heads, std::atoi(argv[5]), read<float>("levels.f32"), read<uint8_t>("bits.u8")};
  if (std::string(argv[2]) == "channel") {
    pack(kvcc::ChannelQuantiser{heads, dim, table, read<float>("scale.f32"), read<float>("zero.f32"),
                                read<float>("lower.f32"), read<float>("upper.f32")});
  } else {
    pack(kvcc::TokenQuantiser{heads, dim, table, std::atoi(argv[6])});
  }
}
