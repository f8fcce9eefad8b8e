// codec_probe SCHEME k|v HEADS DIM IN OUT: raw f32 [T, HEADS, DIM] through the codec of one tensor of a scheme that
// needs no calibration, by way of its packed bytes. Prints how many bytes they were.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "formats/codec/tensor_codec.h"

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  try {
    const kvcc::Scheme scheme = kvcc::parse_scheme(argv[1]);
    const int heads = std::atoi(argv[3]), dim = std::atoi(argv[4]);
    const auto codec =
        kvcc::make_codec(std::string(argv[2]) == "k" ? scheme.key : scheme.value, scheme.sparse, heads, dim);
    std::ifstream in(argv[5], std::ios::binary);
    const std::vector<char> raw{std::istreambuf_iterator<char>(in), {}};
    std::vector<float> x(raw.size() / sizeof(float));
    std::copy(raw.begin(), raw.end(), reinterpret_cast<char*>(x.data()));
    kvcc::CodedTokens coded;
    codec->encode(x, coded, "probe");
    const std::vector<uint8_t> bytes = kvcc::pack(coded);
    codec->decode(kvcc::unpack(*codec, static_cast<int64_t>(x.size()) / heads / dim, bytes, "probe"), x);
    std::ofstream(argv[6], std::ios::binary)
        .write(reinterpret_cast<const char*>(x.data()), static_cast<std::streamsize>(x.size() * sizeof(float)));
    std::printf("%zu\n", bytes.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
