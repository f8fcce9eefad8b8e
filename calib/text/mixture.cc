#include "calib/text/mixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "formats/core/error.h"
#include "formats/core/hash.h"

namespace kvcc {
namespace {

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

/// "NAME:0.7" to name and weight; false where what follows the last colon is no number.
bool split_weight(const std::string& word, DatasetPart& part) {
  const size_t colon = word.rfind(':');
  if (colon == std::string::npos || is_file(word)) return false;
  const char *begin = word.data() + colon + 1, *end = word.data() + word.size();
  double weight = 0;
  const auto [stop, error] = std::from_chars(begin, end, weight);
  if (error != std::errc() || stop != end || begin == end) return false;
  if (!(weight > 0) || !std::isfinite(weight)) {
    throw Error(ErrorKind::usage, "--dataset " + word, fmt::format("the weight {:g}", weight), "a number above 0");
  }
  part = {word.substr(0, colon), weight};
  return true;
}

std::string ids_hash(const std::vector<std::vector<int32_t>>& rows) {
  Sha256 hash;
  for (const std::vector<int32_t>& row : rows) hash.update(row.data(), row.size() * sizeof(int32_t));
  return hash.hex();
}

std::string common(const std::vector<TextPart>& parts, std::string TextPart::*field) {
  const bool same =
      std::all_of(parts.begin(), parts.end(), [&](const TextPart& p) { return p.*field == parts[0].*field; });
  return same ? parts[0].*field : "mixed";
}

using Take = std::function<Samples(const Corpus&, int64_t count)>;

MixedSamples mix(const MixtureRequest& request, const Tokenizer* tokenizer, int64_t count, const char* option,
                 const Take& take) {
  std::vector<DatasetPart> parts = request.parts;
  const bool named = !parts.empty();
  if (!named) parts = {{"", 1}};
  std::vector<double> weights;
  for (const DatasetPart& part : parts) weights.push_back(part.weight);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (parts.size() > 1 && count == 0) {
    throw Error(ErrorKind::usage, std::string(option) + " 0", "all of several texts has no proportion", "a number");
  }
  const std::vector<int> order = spread_parts(weights, count);
  MixedSamples mixed;
  std::vector<Samples> drawn(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto share = std::count(order.begin(), order.end(), static_cast<int>(i));
    if (share == 0 && count > 0) {
      throw Error(ErrorKind::usage, "--dataset " + parts[i].name, fmt::format("none of {} samples is its share", count),
                  "at least one", fmt::format("more {} or a greater weight", option));
    }
    TextPart part;
    part.weight = weights[i] / sum;
    if (parts[i].name == "self") {
      part.name = part.flavour = "self";
      part.bos = request.self_bos ? "on" : "off";
      mixed.self_samples += share;
      drawn[i].ids.resize(static_cast<size_t>(share));
      drawn[i].offsets.resize(static_cast<size_t>(share));
    } else {
      CorpusRequest one = request.request;
      if (named) one.dataset = parts[i].name;
      const Corpus corpus = load_corpus(one, tokenizer);
      drawn[i] = take(corpus, share);
      part.name = corpus.name;
      part.sha256 = corpus.sha256;
      part.flavour = corpus.flavour;
      part.bos = corpus.bos;
      part.corpus_tokens = static_cast<int64_t>(corpus.ids.size());
    }
    part.samples = static_cast<int64_t>(drawn[i].ids.size());
    for (const std::vector<int32_t>& ids : drawn[i].ids) part.tokens += static_cast<int64_t>(ids.size());
    mixed.parts.push_back(std::move(part));
  }
  std::vector<int> all = order;
  if (count == 0) all.assign(drawn[0].ids.size(), 0);
  std::vector<size_t> next(parts.size());
  for (const int part : all) {
    const size_t at = next[part]++;
    if (at >= drawn[part].ids.size()) continue;  // the text was too short
    mixed.ids.push_back(std::move(drawn[part].ids[at]));
    mixed.offsets.push_back(drawn[part].offsets[at]);
    mixed.part.push_back(part);
  }
  return mixed;
}

}  // namespace

std::vector<DatasetPart> parse_datasets(const std::vector<std::string>& words) {
  std::vector<DatasetPart> parts;
  size_t weighted = 0;
  const auto add = [&](const std::string& word) {
    if (word.empty()) throw Error(ErrorKind::usage, "--dataset", "an empty name", "a data set or a file");
    DatasetPart part{word, 1};
    weighted += split_weight(word, part) ? 1 : 0;
    parts.push_back(std::move(part));
  };
  for (const std::string& word : words) {
    if (is_file(word)) {
      add(word);
      continue;
    }
    for (size_t begin = 0; begin <= word.size();) {
      const size_t end = std::min(word.find(',', begin), word.size());
      add(word.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  if (weighted != 0 && weighted != parts.size()) {
    throw Error(ErrorKind::usage, "--dataset", "weights of some data sets and not of others", "of all, or of none");
  }
  std::set<std::string> names;
  for (const DatasetPart& part : parts) {
    if (!names.insert(part.name).second) {
      throw Error(ErrorKind::usage, "--dataset " + part.name, "given twice", "once, with the sum of its weights");
    }
  }
  return parts;
}

std::vector<int> spread_parts(const std::vector<double>& weights, int64_t count) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto parts = static_cast<int>(weights.size());
  if (parts == 1) return std::vector<int>(static_cast<size_t>(count), 0);
  const double slack = 1.0 / (2.0 * parts - 2.0), rounding = 1e-9 * static_cast<double>(count);
  std::vector<int64_t> had(weights.size());
  std::vector<int> order;
  for (int64_t n = 1; n <= count; ++n) {
    // Of the parts that would otherwise fall behind, the one that would be due first.
    int best = -1;
    double due = 0;
    for (int i = 0; i < parts; ++i) {
      const double share = weights[i] / sum, behind = share * static_cast<double>(n) - static_cast<double>(had[i]);
      if (behind < slack - rounding) continue;
      const double moment = (1 - slack - behind) / share;
      if (best < 0 || moment < due - rounding) {
        best = i;
        due = moment;
      }
    }
    ++had[static_cast<size_t>(best)];
    order.push_back(best);
  }
  return order;
}

void MixedSamples::fill_self(std::vector<std::vector<int32_t>> samples) {
  size_t next = 0;
  for (TextPart& one : parts) {
    if (one.flavour == "self") one.sha256 = ids_hash(samples);
  }
  for (size_t s = 0; s < ids.size(); ++s) {
    TextPart& one = parts[static_cast<size_t>(part[s])];
    if (one.flavour != "self") continue;
    ids[s] = std::move(samples.at(next++));
    one.tokens += static_cast<int64_t>(ids[s].size());
  }
  self_samples = 0;
}

std::string MixedSamples::name() const {
  if (parts.size() == 1) return parts[0].name;
  std::vector<std::string> names;
  for (const TextPart& part : parts) names.push_back(fmt::format("{} x{:g}", part.name, part.weight));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string MixedSamples::sha256() const {
  if (parts.size() == 1) return parts[0].sha256;
  std::string text;
  for (const TextPart& part : parts) text += fmt::format("{} {:g}\n", part.sha256, part.weight);
  return sha256_hex(text);
}

std::string MixedSamples::flavour() const { return common(parts, &TextPart::flavour); }
std::string MixedSamples::bos() const { return common(parts, &TextPart::bos); }

int64_t MixedSamples::tokens() const {
  return std::accumulate(ids.begin(), ids.end(), int64_t{0},
                         [](int64_t sum, const auto& row) { return sum + static_cast<int64_t>(row.size()); });
}

MixedSamples draw_mixture(const MixtureRequest& request, const Tokenizer* tokenizer, int64_t samples, int64_t seqlen,
                          uint64_t seed) {
  return mix(request, tokenizer, samples, "--samples",
             [&](const Corpus& corpus, int64_t count) { return draw_samples(corpus, count, seqlen, seed, tokenizer); });
}

MixedSamples cut_mixture(const MixtureRequest& request, const Tokenizer* tokenizer, int64_t windows, int64_t seqlen) {
  return mix(request, tokenizer, windows, "--windows",
             [&](const Corpus& corpus, int64_t count) { return cut_windows(corpus, count, seqlen, tokenizer); });
}

}  // namespace kvcc
