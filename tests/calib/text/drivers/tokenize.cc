// tokenize MODEL < text > ids: int32 ids of the text on stdin, by the tokenizer of a model, or of TOKENIZER.json
// [SETTINGS.json] given in its place. `tokenize --describe …` prints vocabulary size, BOS id, policy and hash.
#include <cstring>
#include <iostream>
#include <iterator>

#include "calib/text/tokenizer.h"
#include "formats/core/error.h"

int main(int argc, char** argv) {
  try {
    const bool describe = argc > 1 && std::strcmp(argv[1], "--describe") == 0;
    argc -= describe, argv += describe;
    kvcc::TokenizerSource source;
    const std::string first = argv[1];
    if (first.ends_with(".json")) {
      source.json_path = source.place = first;
      if (argc > 2) source.config_json_path = argv[2];
    } else {
      source = kvcc::open_model(first).tokenizer;
    }
    const auto tokenizer = kvcc::make_tokenizer(source);
    if (describe) {
      std::cout << tokenizer->vocab_size() << " " << tokenizer->bos_id() << " " << tokenizer->adds_bos() << " "
                << tokenizer->sha256() << "\n";
      return 0;
    }
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    const std::vector<int32_t> ids = tokenizer->encode(text);
    std::cout.write(reinterpret_cast<const char*>(ids.data()),
                    static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
    return 0;
  } catch (const kvcc::Error& error) {
    std::cerr << error.what() << "\n";
    return error.exit_code();
  }
}
