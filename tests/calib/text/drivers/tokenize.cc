// tokenize MODEL < text > ids: int32 ids of the text on stdin, by the tokenizer of a model, or of TOKENIZER.json or
// TOKENIZER.model [SETTINGS.json] given in its place. `tokenize --describe …` prints vocabulary size, BOS id, policy
// and hash; `tokenize --decode …` the text of the ids on stdin; `tokenize --lines …` the ids of each line by itself, -1
// after each.
#include <cstring>
#include <iostream>
#include <iterator>
#include <sstream>

#include "calib/text/tokenizer.h"
#include "formats/core/error.h"

int main(int argc, char** argv) {
  try {
    const bool describe = argc > 1 && std::strcmp(argv[1], "--describe") == 0;
    const bool decode = argc > 1 && std::strcmp(argv[1], "--decode") == 0;
    const bool lines = argc > 1 && std::strcmp(argv[1], "--lines") == 0;
    argc -= describe || decode || lines, argv += describe || decode || lines;
    kvcc::TokenizerSource source;
    const std::string first = argv[1];
    if (first.ends_with(".json")) {
      source.json_path = source.place = first;
      if (argc > 2) source.config_json_path = argv[2];
    } else if (first.ends_with(".model")) {
      source.sentencepiece_path = source.place = first;
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
    if (decode) {
      std::vector<int32_t> given(text.size() / sizeof(int32_t));
      std::memcpy(given.data(), text.data(), given.size() * sizeof(int32_t));
      std::cout << tokenizer->decode(given);
      return 0;
    }
    std::vector<int32_t> ids;
    if (lines) {
      std::istringstream in(text);
      for (std::string line; std::getline(in, line);) {
        for (const int32_t id : tokenizer->encode(line)) ids.push_back(id);
        ids.push_back(-1);
      }
    } else {
      ids = tokenizer->encode(text);
    }
    std::cout.write(reinterpret_cast<const char*>(ids.data()),
                    static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
    return 0;
  } catch (const kvcc::Error& error) {
    std::cerr << error.what() << "\n";
    return error.exit_code();
  }
}
