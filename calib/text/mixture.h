// Several texts as one: which sample is of which text, and what is recorded of each.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "calib/text/corpus.h"

namespace kvcc {

/// A part of `--dataset A:0.7,B:0.3`.
struct DatasetPart {
  std::string name;   ///< "wikitext-2", "wikitext-2:evaluation", "self", a file's path
  double weight = 1;  ///< above 0; as given, not of sum 1
};

/// Each word is one part or several with commas between; an existing file's name is one part, whatever is in it. A last
/// ":NUMBER" is the weight. Throws Error(usage) for a weight that is not above 0, and where some have one and others
/// none.
std::vector<DatasetPart> parse_datasets(const std::vector<std::string>& words);

/// Which of the weighted parts each of `count` samples is of, so that after n samples a part has had its share of n
/// within 1, and exactly where all shares are whole: R. Tijdeman, "The chairman assignment problem", Discrete
/// Mathematics 32, 1980. The first n are those of any greater count.
std::vector<int> spread_parts(const std::vector<double>& weights, int64_t count);

/// What is recorded of a part.
struct TextPart {
  std::string name, sha256, flavour, bos;
  double weight = 1;          ///< of all parts together 1
  int64_t samples = 0;        ///< that it gave
  int64_t tokens = 0;         ///< in them
  int64_t corpus_tokens = 0;  ///< in the whole tokenised text; 0: not known (documents, self)
  bool operator==(const TextPart&) const = default;
};

/// Samples of one or several texts.
struct MixedSamples {
  std::vector<std::vector<int32_t>> ids;  ///< [samples]; of `self` empty until fill_self()
  std::vector<int64_t> offsets;           ///< [samples] as Samples has them; of `self` 0
  std::vector<int> part;                  ///< [samples] index into parts
  std::vector<TextPart> parts;
  int64_t self_samples = 0;  ///< that are still empty

  /// Puts the model's own samples in, in order; each part's hash is that of its ids.
  void fill_self(std::vector<std::vector<int32_t>> samples);
  /// Of all parts: of one its own; of several "A x0.7, B x0.3", the hash of "SHA256 WEIGHT\n" of each, "mixed" where
  /// they differ.
  std::string name() const, sha256() const, flavour() const, bos() const;
  int64_t tokens() const;
};

/// `request` names the texts but for its `dataset`. At most one part is "self", whose samples have `seqlen` tokens and
/// begin with BOS when `self_bos`.
struct MixtureRequest {
  CorpusRequest request;
  std::vector<DatasetPart> parts;  ///< empty: request's files or ids
  bool self_bos = false;
};

/// Calibration samples as draw_samples gives them: part by part those that the text alone would give for the same seed.
/// A part that is too short gives fewer. Throws Error(usage) for a part whose weight gives it no sample.
MixedSamples draw_mixture(const MixtureRequest& request, const Tokenizer* tokenizer, int64_t samples, int64_t seqlen,
                          uint64_t seed);

/// Evaluation windows as cut_windows gives them, from the start of each text; `windows` 0, which is all, of one text
/// alone.
MixedSamples cut_mixture(const MixtureRequest& request, const Tokenizer* tokenizer, int64_t windows, int64_t seqlen);

}  // namespace kvcc
