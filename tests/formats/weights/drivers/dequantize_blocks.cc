// dequantize_blocks TYPE < blocks > values: dequantises whole blocks of one weight type from stdin to stdout.
#include <cstring>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "formats/weights/block_formats.h"

int main(int, char** argv) {
  std::string in{std::istreambuf_iterator<char>(std::cin), {}};
  for (uint32_t id = 0; id < 64; ++id) {
    const kvcc::BlockFormat* format = kvcc::block_format_of_ggml(id);
    if (!format || std::string(argv[1]) != format->name) continue;
    std::vector<float> out(in.size() / static_cast<size_t>(format->bytes) * static_cast<size_t>(format->values));
    kvcc::dequantize(format->type, std::as_bytes(std::span(in)), out);
    std::cout.write(reinterpret_cast<const char*>(out.data()),
                    static_cast<std::streamsize>(out.size() * sizeof(float)));
    return 0;
  }
  std::cerr << "unknown type\n";
  return 2;
}
