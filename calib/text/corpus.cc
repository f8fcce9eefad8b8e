#include "calib/text/corpus.h"

#include <algorithm>
#include <filesystem>

#include "calib/text/python_random.h"
#include "datasets/datasets.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"

namespace kvcc {
namespace {

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

// Byte-order mark off, CRLF to LF; a lone CR stays.
std::string clean(std::string text) {
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  size_t to = 0;
  for (size_t from = 0; from < text.size(); ++from) {
    if (text[from] == '\r' && from + 1 < text.size() && text[from + 1] == '\n') continue;
    text[to++] = text[from];
  }
  text.resize(to);
  return text;
}

Error too_short(const std::string& place, int64_t needs, int64_t has, const std::string& hint) {
  return bad_input(place, "needs >= " + std::to_string(needs) + " tokens, has " + std::to_string(has), "", hint);
}

void resolve_bos(const CorpusRequest& request, const Tokenizer* tokenizer, Corpus& corpus) {
  if (request.bos != "auto" && request.bos != "on" && request.bos != "off") {
    throw Error(ErrorKind::usage, "--bos", request.bos, "auto, on or off");
  }
  // Ids are taken as they are: whoever made them has decided.
  const bool automatic = request.ids.empty() && tokenizer && tokenizer->adds_bos();
  const bool on = request.bos == "on" || (request.bos == "auto" && automatic);
  corpus.bos = on ? "on" : "off";
  corpus.bos_id = tokenizer ? tokenizer->bos_id() : -1;
  if (!on) return;
  if (corpus.bos_id < 0) {
    throw Error(ErrorKind::usage, "--bos on", "the model has no BOS token", "", "leave --bos out");
  }
  if (corpus.rows > 0) {
    throw Error(ErrorKind::usage, "--bos on", "the rows of " + corpus.name + " are taken as they are", "",
                "put the BOS into the rows, or give the ids as one dimension");
  }
}

void load_ids(const CorpusRequest& request, const Tokenizer* tokenizer, Corpus& corpus) {
  NpyIds npy = read_npy_ids(request.ids);
  if (tokenizer) {
    const auto above =
        std::find_if(npy.ids.begin(), npy.ids.end(), [&](int32_t id) { return id >= tokenizer->vocab_size(); });
    if (above != npy.ids.end()) {
      throw bad_input(request.ids,
                      "id " + std::to_string(*above) + " at position " + std::to_string(above - npy.ids.begin()),
                      "below the vocabulary's " + std::to_string(tokenizer->vocab_size()));
    }
  }
  if (npy.shape.size() == 2) {
    corpus.rows = npy.shape[0];
    corpus.row_length = npy.shape[1];
    if (corpus.rows == 0 || corpus.row_length == 0) throw too_short(request.ids, 1, 0, "");
  }
  corpus.ids = std::move(npy.ids);
  corpus.name = file_name(request.ids);
  corpus.sha256 = sha256_file(request.ids);
  corpus.flavour = "ids";
}

}  // namespace

Corpus load_corpus(const CorpusRequest& request, const Tokenizer* tokenizer) {
  const int given = !request.dataset.empty() + !request.files.empty() + !request.ids.empty();
  if (given != 1) {
    throw Error(ErrorKind::usage, "text", given ? "more than one of --dataset, --text and --ids" : "none is given",
                "one of --dataset, --text and --ids");
  }
  Corpus corpus;
  if (!request.ids.empty()) {
    load_ids(request, tokenizer, corpus);
    resolve_bos(request, tokenizer, corpus);
    return corpus;
  }
  if (!tokenizer) throw Error(ErrorKind::failed, "text", "no tokenizer", "a tokenizer, or --ids");
  std::vector<std::string> paths = request.files;
  corpus.flavour = "raw";
  if (!request.dataset.empty()) {
    const ResolvedDataset resolved = resolve_dataset(request.dataset, request.cache_dir);
    paths = {resolved.path};
    corpus.name = resolved.name;
    corpus.flavour = resolved.flavour;
  }
  uint64_t done = 0, total = 0;
  std::error_code ignored;  // a file that isn't there is named when it is read
  for (const std::string& path : paths) {
    if (const uintmax_t bytes = std::filesystem::file_size(path, ignored); !ignored) total += bytes;
  }
  Sha256 hash;
  for (const std::string& path : paths) {
    if (request.dataset.empty()) corpus.name.append(corpus.name.empty() ? "" : ",").append(file_name(path));
    std::string text = read_text_file(path);
    hash.update(text);
    const uint64_t bytes = text.size();
    const std::vector<int32_t> ids = tokenizer->encode(clean(std::move(text)), [&](size_t of_file) {
      if (request.progress) request.progress(done + of_file, total);
    });
    corpus.ids.insert(corpus.ids.end(), ids.begin(), ids.end());
    done += bytes;
    if (request.progress) request.progress(done, total);
  }
  corpus.sha256 = hash.hex();
  resolve_bos(request, tokenizer, corpus);
  return corpus;
}

namespace {

// Windows of a text take one token less when a BOS comes first.
int64_t text_tokens(const Corpus& corpus, int64_t seqlen) { return corpus.bos == "on" ? seqlen - 1 : seqlen; }

void add_window(const Corpus& corpus, int64_t offset, int64_t length, Samples& samples) {
  std::vector<int32_t> ids;
  if (corpus.bos == "on") ids.push_back(static_cast<int32_t>(corpus.bos_id));
  ids.insert(ids.end(), corpus.ids.begin() + offset, corpus.ids.begin() + offset + length);
  samples.ids.push_back(std::move(ids));
  samples.offsets.push_back(offset);
}

void check_request(int64_t count, int64_t least, const char* option, int64_t seqlen) {
  if (count < least) throw Error(ErrorKind::usage, option, std::to_string(count), "at least " + std::to_string(least));
  if (seqlen < 2) throw Error(ErrorKind::usage, "--seqlen", std::to_string(seqlen), "at least 2");
}

// The first `count` rows (0: all), cut to seqlen.
Samples take_rows(const Corpus& corpus, int64_t count, int64_t seqlen) {
  if (corpus.row_length < seqlen) {
    throw too_short(corpus.name + ": each row", seqlen, corpus.row_length,
                    "--seqlen " + std::to_string(corpus.row_length));
  }
  Samples samples;
  const int64_t rows = count > 0 ? std::min(count, corpus.rows) : corpus.rows;
  for (int64_t row = 0; row < rows; ++row) add_window(corpus, row * corpus.row_length, seqlen, samples);
  return samples;
}

}  // namespace

Samples draw_samples(const Corpus& corpus, int64_t samples, int64_t seqlen, uint64_t seed) {
  check_request(samples, 1, "--samples", seqlen);
  if (corpus.rows > 0) return take_rows(corpus, samples, seqlen);
  const int64_t length = text_tokens(corpus, seqlen), n = static_cast<int64_t>(corpus.ids.size());
  if (n < length) throw too_short(corpus.name, length, n, "give more text or a smaller --seqlen");
  Samples drawn;
  if (n == length) {  // one sample is all there is
    add_window(corpus, 0, length, drawn);
    return drawn;
  }
  PythonRandom random(seed);
  for (int64_t i = 0; i < samples; ++i) add_window(corpus, random.randint(0, n - length - 1), length, drawn);
  return drawn;
}

Samples cut_windows(const Corpus& corpus, int64_t windows, int64_t seqlen) {
  check_request(windows, 0, "--windows", seqlen);
  if (corpus.rows > 0) return take_rows(corpus, windows, seqlen);
  const int64_t length = text_tokens(corpus, seqlen), n = static_cast<int64_t>(corpus.ids.size());
  if (n < length) throw too_short(corpus.name, length, n, "give more text or a smaller --seqlen");
  const int64_t there = n / length, count = windows > 0 ? std::min(windows, there) : there;
  Samples cut;
  for (int64_t w = 0; w < count; ++w) add_window(corpus, w * length, length, cut);
  return cut;
}

}  // namespace kvcc
