// The segmentation of a word into tokens whose probabilities have the greatest product, by Viterbi's algorithm:
// T. Kudo, "Subword Regularization", 2018, section 3.2. Linear in the word times the longest token.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "calib/text/utf8.h"
#include "calib/text/word_model.h"

namespace kvcc {
namespace {

constexpr double kUnknownPenalty = 10;  // below the least probable token, as sentencepiece and PyPI tokenizers have it
// Where sums are rounded to float: below this they start again at 0, so that a long text does not lose its differences.
constexpr double kLeastFloatSum = -100000;

class UnigramWords : public WordModel {
 public:
  explicit UnigramWords(const TokenizerSpec& spec) : spec_(spec), sorted_(spec.tokens.size()) {
    if (spec.unknown < 0) throw tokenizer_error(spec.place, "a Unigram model without unk_id");
    byte_ids_ = spec.byte_ids;
    if (byte_ids_.empty()) {
      byte_ids_.assign(256, -1);
      for (size_t id = 0; id < spec.tokens.size(); ++id) {
        if (const int byte = byte_of_token(spec.tokens[id]); byte >= 0) byte_ids_[byte] = static_cast<int32_t>(id);
      }
    }
    constexpr size_t kLongest = 1024;  // the time of a look-up
    double least = std::numeric_limits<double>::infinity();
    for (size_t id = 0; id < spec.tokens.size(); ++id) {
      if (!std::isfinite(spec.scores[id])) {
        throw tokenizer_error(spec.place, "the score of token " + std::to_string(id), "a finite number");
      }
      if (spec.tokens[id].size() > kLongest) {
        throw tokenizer_error(
            spec.place, "token " + std::to_string(id) + " of " + std::to_string(spec.tokens[id].size()) + " bytes",
            "at most " + std::to_string(kLongest));
      }
      if (!spec.tokens[id].empty()) least = std::min(least, spec.scores[id]);
    }
    if (!std::isnan(spec.least_score)) least = spec.least_score;
    unknown_score_ = rounded(least - kUnknownPenalty);
    std::iota(sorted_.begin(), sorted_.end(), 0);
    std::stable_sort(sorted_.begin(), sorted_.end(), [&](int32_t a, int32_t b) { return token(a) < token(b); });
    sorted_.erase(sorted_.begin(),
                  std::find_if(sorted_.begin(), sorted_.end(), [&](int32_t id) { return !token(id).empty(); }));
  }

  void encode(std::string_view word, std::vector<int32_t>& out) const override {
    if (word.empty()) return;
    std::vector<Node> nodes(word.size() + 1);
    size_t reached = 0;  // the last end that was offered a way
    for (size_t at = 0, length; at < word.size(); at += length) {
      length = utf8_length(word, at);
      if (spec_.float_sums && nodes[at].score < kLeastFloatSum) {
        const double shift = nodes[at].score;
        for (size_t end = at; end <= reached; ++end) nodes[end].score = rounded(nodes[end].score - shift);
      }
      const double before = nodes[at].score;
      bool single = false;
      each_token_at(word, at, [&](size_t bytes, int32_t id) {
        nodes[at + bytes].offer(rounded(before + spec_.scores[static_cast<size_t>(id)]), at, id);
        reached = std::max(reached, at + bytes);
        single = single || bytes == length;
      });
      if (single) continue;
      nodes[at + length].offer(rounded(before + unknown_score_), at, spec_.unknown);
      reached = std::max(reached, at + length);
    }
    const size_t first = out.size();
    for (size_t end = word.size(); end > 0;) {
      size_t begin = nodes[end].begin;
      const bool unknown = nodes[end].id == spec_.unknown;
      while (unknown && begin > 0 && nodes[begin].id == spec_.unknown) begin = nodes[begin].begin;
      if (unknown) {
        append_unknown(word.substr(begin, end - begin), out);
      } else {
        out.push_back(nodes[end].id);
      }
      end = begin;
    }
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
  }

  void encode_byte(unsigned char byte, std::vector<int32_t>& out) const override {
    const bool known = spec_.byte_fallback && byte_ids_[byte] >= 0;
    out.push_back(known ? byte_ids_[byte] : spec_.unknown);
  }
  std::string text(int32_t id) const override { return spec_.tokens[static_cast<size_t>(id)]; }
  int64_t size() const override { return static_cast<int64_t>(spec_.tokens.size()); }

 private:
  struct Node {  // the best way to the end of a character
    double score = 0;
    size_t begin = SIZE_MAX;  // of its last token; SIZE_MAX: none ends here
    int32_t id = -1;
    void offer(double other, size_t from, int32_t token) {
      if (begin == SIZE_MAX || other > score) *this = {other, from, token};
    }
  };

  double rounded(double sum) const { return spec_.float_sums ? static_cast<float>(sum) : sum; }

  std::string_view token(int32_t id) const { return spec_.tokens[static_cast<size_t>(id)]; }

  // All tokens that begin at `at`, shortest first; of equal ones the last, as PyPI tokenizers keeps it.
  template <typename Function>
  void each_token_at(std::string_view word, size_t at, Function&& function) const {
    auto begin = sorted_.begin(), end = sorted_.end();
    for (size_t depth = 0; at + depth < word.size() && begin != end; ++depth) {
      const auto byte = static_cast<unsigned char>(word[at + depth]);
      const auto byte_of = [&](int32_t id) { return static_cast<unsigned char>(token(id)[depth]); };
      begin = std::partition_point(begin, end, [&](int32_t id) { return byte_of(id) < byte; });
      end = std::partition_point(begin, end, [&](int32_t id) { return byte_of(id) == byte; });
      const auto longer = std::partition_point(begin, end, [&](int32_t id) { return token(id).size() == depth + 1; });
      if (longer != begin) function(depth + 1, longer[-1]);
      begin = longer;
    }
  }

  // Backwards, as the path is read.
  void append_unknown(std::string_view text, std::vector<int32_t>& out) const {
    if (const int32_t id = id_of(text); id >= 0) return out.push_back(id);
    const bool bytes = spec_.byte_fallback && std::all_of(text.begin(), text.end(), [&](char c) {
                         return byte_ids_[static_cast<unsigned char>(c)] >= 0;
                       });
    if (!bytes) return out.push_back(spec_.unknown);
    std::for_each(text.rbegin(), text.rend(), [&](char c) { out.push_back(byte_ids_[static_cast<unsigned char>(c)]); });
  }

  int32_t id_of(std::string_view text) const {
    int32_t found = -1;
    each_token_at(text, 0, [&](size_t bytes, int32_t id) {
      if (bytes == text.size()) found = id;
    });
    return found;
  }

  const TokenizerSpec& spec_;
  std::vector<int32_t> sorted_;  // ids by the bytes of their tokens
  std::vector<int32_t> byte_ids_;
  double unknown_score_ = 0;
};

}  // namespace

std::unique_ptr<WordModel> make_unigram(const TokenizerSpec& spec) { return std::make_unique<UnigramWords>(spec); }

}  // namespace kvcc
