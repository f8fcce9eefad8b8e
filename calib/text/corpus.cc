#include "calib/text/corpus.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "calib/text/python_random.h"
#include "datasets/datasets.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"

namespace kvcc {
namespace {

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

Error too_short(const std::string& place, int64_t needs, int64_t has, const std::string& hint) {
  return bad_input(place, "needs >= " + std::to_string(needs) + " tokens, has " + std::to_string(has), "", hint);
}

void resolve_bos(const CorpusRequest& request, const Tokenizer* tokenizer, Corpus& corpus) {
  if (request.bos != "auto" && request.bos != "on" && request.bos != "off") {
    throw Error(ErrorKind::usage, "--bos", request.bos, "auto, on or off");
  }
  // Ids are taken as they are: whoever made them has decided.
  const bool automatic =
      corpus.flavour != "ids" && corpus.flavour != "chat" && tokenizer != nullptr && tokenizer->adds_bos();
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

void load_ids(const std::string& path, const Tokenizer* tokenizer, Corpus& corpus) {
  NpyIds npy = read_npy_ids(path);
  if (tokenizer) {
    const auto above =
        std::find_if(npy.ids.begin(), npy.ids.end(), [&](int32_t id) { return id >= tokenizer->vocab_size(); });
    if (above != npy.ids.end()) {
      throw bad_input(path, "id " + std::to_string(*above) + " at position " + std::to_string(above - npy.ids.begin()),
                      "below the vocabulary's " + std::to_string(tokenizer->vocab_size()));
    }
  }
  if (npy.shape.size() == 2) {
    corpus.rows = npy.shape[0];
    corpus.row_length = npy.shape[1];
    if (corpus.rows == 0 || corpus.row_length == 0) throw too_short(path, 1, 0, "");
  }
  corpus.ids = std::move(npy.ids);
  corpus.name = file_name(path);
  corpus.sha256 = sha256_file(path);
  corpus.flavour = "ids";
}

/// Files of documents of one kind, and what is recorded of them.
std::vector<DocumentsRequest> requested_files(const CorpusRequest& request, Corpus& corpus) {
  DocumentsRequest file;
  file.field = request.field;
  file.chat = request.chat;
  corpus.flavour = "raw";
  std::vector<DocumentsRequest> files;
  if (request.dataset.empty()) {
    file.plain = request.field.empty();
    for (const std::string& path : request.files) {
      file.path = path;
      corpus.name.append(corpus.name.empty() ? "" : ",").append(file_name(path));
      files.push_back(file);
    }
  } else if (is_file(request.dataset)) {
    file.path = request.dataset;
    corpus.name = file_name(file.path);
    files.push_back(file);
  } else if (request.dataset.find_first_of("/.") != std::string::npos) {
    throw bad_input(request.dataset, "no such file", "a text, JSON lines, .npy, or the name of a data set",
                    "kvcc data list shows the names");
  } else {
    const ResolvedDataset resolved = resolve_dataset(request.dataset, request.cache_dir);
    file.path = resolved.path;
    file.articles = resolved.articles && request.packing == Packing::document;
    if (!is_json_lines(file.path)) file.field = "";
    corpus.name = resolved.name;
    corpus.flavour = resolved.flavour;
    files.push_back(file);
  }
  return files;
}

}  // namespace

Corpus load_corpus(const CorpusRequest& request, const Tokenizer* tokenizer) {
  const int given = !request.dataset.empty() + !request.files.empty() + !request.ids.empty();
  if (given != 1) {
    throw Error(ErrorKind::usage, "text", given ? "more than one of --dataset, --text and --ids" : "none is given",
                "one of --dataset, --text and --ids");
  }
  Corpus corpus;
  const bool npy = request.dataset.ends_with(".npy") && is_file(request.dataset);
  if (!request.ids.empty() || npy) {
    load_ids(npy ? request.dataset : request.ids, tokenizer, corpus);
    resolve_bos(request, tokenizer, corpus);
    return corpus;
  }
  if (!tokenizer) throw Error(ErrorKind::failed, "text", "no tokenizer", "a tokenizer, or --ids");
  const std::vector<DocumentsRequest> files = requested_files(request, corpus);
  uint64_t done = 0, total = 0;
  std::error_code ignored;  // a file that isn't there is named when it is read
  for (const DocumentsRequest& file : files) {
    if (const uintmax_t bytes = std::filesystem::file_size(file.path, ignored); !ignored) total += bytes;
  }
  Sha256 hash;
  for (const DocumentsRequest& file : files) {
    Documents documents = read_documents(file, hash);
    if (documents.chat) corpus.flavour = "chat";
    for (std::string& text : documents.texts) {
      if (request.packing == Packing::document) {
        corpus.documents.push_back(std::move(text));
        continue;
      }
      const std::vector<int32_t> ids = tokenizer->encode(text, [&](size_t of_text) {
        if (request.progress) request.progress(std::min(done + of_text, total), total);
      });
      corpus.ids.insert(corpus.ids.end(), ids.begin(), ids.end());
      done += text.size();
      if (request.progress) request.progress(std::min(done, total), total);
    }
  }
  corpus.sha256 = hash.hex();
  if (request.packing == Packing::document && corpus.documents.empty()) {
    throw bad_input(corpus.name, "no documents");
  }
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

// The first `count` (0: all) of the documents in this order that predict something.
Samples take_documents(const Corpus& corpus, const std::vector<int64_t>& order, int64_t count, int64_t seqlen,
                       const Tokenizer& tokenizer) {
  Samples samples;
  for (const int64_t number : order) {
    if (count > 0 && static_cast<int64_t>(samples.ids.size()) == count) break;
    std::vector<int32_t> ids = tokenizer.encode(corpus.documents[static_cast<size_t>(number)]);
    if (corpus.bos == "on") ids.insert(ids.begin(), static_cast<int32_t>(corpus.bos_id));
    if (ids.size() < 2) continue;
    ids.resize(std::min(ids.size(), static_cast<size_t>(seqlen)));
    samples.ids.push_back(std::move(ids));
    samples.offsets.push_back(number);
  }
  if (samples.ids.empty()) throw too_short(corpus.name + ": each document", 2, 1, "");
  return samples;
}

}  // namespace

Samples draw_samples(const Corpus& corpus, int64_t samples, int64_t seqlen, uint64_t seed, const Tokenizer* tokenizer) {
  check_request(samples, 1, "--samples", seqlen);
  if (!corpus.documents.empty()) {
    std::vector<int64_t> order(corpus.documents.size());
    std::iota(order.begin(), order.end(), 0);
    PythonRandom random(seed);
    for (auto i = static_cast<int64_t>(order.size()) - 1; i > 0; --i) std::swap(order[i], order[random.randint(0, i)]);
    return take_documents(corpus, order, samples, seqlen, *tokenizer);
  }
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

Samples cut_windows(const Corpus& corpus, int64_t windows, int64_t seqlen, const Tokenizer* tokenizer) {
  check_request(windows, 0, "--windows", seqlen);
  if (!corpus.documents.empty()) {
    std::vector<int64_t> order(corpus.documents.size());
    std::iota(order.begin(), order.end(), 0);
    return take_documents(corpus, order, windows, seqlen, *tokenizer);
  }
  if (corpus.rows > 0) return take_rows(corpus, windows, seqlen);
  const int64_t length = text_tokens(corpus, seqlen), n = static_cast<int64_t>(corpus.ids.size());
  if (n < length) throw too_short(corpus.name, length, n, "give more text or a smaller --seqlen");
  const int64_t there = n / length, count = windows > 0 ? std::min(windows, there) : there;
  Samples cut;
  for (int64_t w = 0; w < count; ++w) add_window(corpus, w * length, length, cut);
  return cut;
}

}  // namespace kvcc
