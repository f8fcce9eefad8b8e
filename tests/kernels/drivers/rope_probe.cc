// rope_probe THETA ROTARY_DIM SCALING SCALING_JSON MAX_POSITIONS LENGTH: writes rope_frequencies() as little-endian
// f32, the attention factor first. An error goes to stderr with exit code 1.
#include <cstdio>
#include <string>

#include "formats/core/error.h"
#include "kernels/host/rope_frequencies.h"

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  kvcc::RopeInfo rope;
  rope.theta = std::stod(argv[1]);
  rope.rotary_dim = std::stoi(argv[2]);
  rope.scaling = argv[3];
  rope.scaling_json = argv[4];
  try {
    const auto result = kvcc::host::rope_frequencies(rope, {std::stoll(argv[5]), std::stoll(argv[6])});
    std::fwrite(&result.attention_factor, sizeof(float), 1, stdout);
    std::fwrite(result.inverse.data(), sizeof(float), result.inverse.size(), stdout);
  } catch (const kvcc::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
