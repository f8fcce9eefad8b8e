// make_store codebook PATH [SCHEME [LAYERS]] | activations FOLDER [bf16]
// Files for the Python tests, with the content of tests/formats/store/made.h.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "formats/core/error.h"
#include "tests/formats/store/made.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() >= 2 && words[0] == "codebook") {
      kvcc::Codebook codebook = kvcc::made::codebook(words.size() > 2 ? words[2] : "kvcc-nuq3-1%-sink1",
                                                     words.size() > 3 ? std::stoi(words[3]) : 3);
      kvcc::write_codebook(words[1], codebook);
      std::puts(codebook.content_sha256.c_str());
      return 0;
    }
    if (words.size() >= 2 && words[0] == "activations") {
      kvcc::ActivationsSettings settings = kvcc::made::settings();
      if (words.size() > 2) settings.acts_dtype = words[2];
      kvcc::ActivationsWriter writer(words[1], settings, true, false);
      for (int sample = 0; sample < settings.samples; ++sample) {
        for (int layer = 0; layer < settings.model.shape.layers; ++layer) {
          if (!writer.has(sample, layer)) writer.put(sample, layer, kvcc::made::shard(settings, sample, layer));
        }
      }
      writer.finish();
      return 0;
    }
  } catch (const kvcc::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
  std::fputs("usage: make_store codebook PATH [SCHEME [LAYERS]] | activations FOLDER [bf16]\n", stderr);
  return 2;
}
