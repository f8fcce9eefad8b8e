// Samples or windows of a corpus: int32 ids on stdout, what is recorded of them on stderr.
//   draw samples N SEQLEN SEED BOS SOURCE MODEL    SOURCE: a .npy file, a text file, or dataset:NAME; MODEL may be ""
//   draw windows N SEQLEN 0    BOS SOURCE MODEL
#include <cstdlib>
#include <iostream>

#include "calib/text/corpus.h"
#include "formats/core/error.h"

int main(int, char** argv) {
  try {
    const std::string kind = argv[1], source = argv[6], model = argv[7];
    const int64_t count = std::atoll(argv[2]), seqlen = std::atoll(argv[3]);
    kvcc::CorpusRequest request;
    request.bos = argv[5];
    if (source.ends_with(".npy")) {
      request.ids = source;
    } else if (source.starts_with("dataset:")) {
      request.dataset = source.substr(8);
    } else {
      request.files = {source};
    }
    std::unique_ptr<kvcc::Tokenizer> tokenizer;
    if (!model.empty()) {
      kvcc::TokenizerSource from;
      if (model.ends_with(".json")) {
        from.json_path = from.place = model;
      } else {
        from = kvcc::open_model(model).tokenizer;
      }
      tokenizer = kvcc::make_tokenizer(from);
    }
    const kvcc::Corpus corpus = kvcc::load_corpus(request, tokenizer.get());
    const kvcc::Samples samples = kind == "samples"
                                      ? kvcc::draw_samples(corpus, count, seqlen, std::strtoull(argv[4], nullptr, 10))
                                      : kvcc::cut_windows(corpus, count, seqlen);
    std::cerr << corpus.name << "|" << corpus.sha256 << "|" << corpus.flavour << "|" << corpus.bos << "|"
              << corpus.bos_id << "|" << corpus.ids.size() << "|" << samples.ids.size() << "\n";
    for (const auto& ids : samples.ids) {
      std::cout.write(reinterpret_cast<const char*>(ids.data()),
                      static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
    }
    for (const int64_t offset : samples.offsets) std::cerr << offset << " ";
    return 0;
  } catch (const kvcc::Error& error) {
    std::cerr << error.what() << "\n";
    return error.exit_code();
  }
}
