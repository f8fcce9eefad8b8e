// The text options with a model: samples and windows. Programs only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "calib/cli/text_options.h"
#include "calib/text/chat_template.h"
#include "calib/text/mixture.h"
#include "formats/weights/model_files.h"

namespace kvcc::cli {

class TextSource {
 public:
  /// Reads nothing yet. `files` and `options` must live as long. Throws Error(usage).
  TextSource(const ModelFiles& files, const TextOptions& options, const Common& common,
             const std::string& default_dataset);

  /// Samples and windows as draw_mixture and cut_mixture give them; those of `self` are placeholders of seqlen ids, so
  /// that plans can count them, until sample_self(). A text that is too short is warned of. `windows` 0: all of the
  /// text, of `self` alone 8.
  MixedSamples draw(int64_t samples, int64_t seqlen, uint64_t seed);
  MixedSamples cut(int64_t windows, int64_t seqlen);
  /// Samples what the mixture has of `self`, with a progress bar; nothing where it has none. `kept`: rows of an earlier
  /// run, used where they are as many as are wanted, of seqlen ids. Returns all rows that were put in.
  std::vector<std::vector<int32_t>> sample_self(MixedSamples& mixed, int64_t seqlen, uint64_t seed,
                                                std::vector<std::vector<int32_t>> kept = {}) const;

  /// "" where no tokenizer was needed.
  std::string tokenizer_sha256() const { return tokenizer_ ? tokenizer_->sha256() : ""; }

 private:
  MixtureRequest request();
  MixedSamples finished(MixedSamples mixed, int64_t wanted, int64_t seqlen, const char* what) const;

  const ModelFiles& files_;
  const TextOptions& options_;
  const Common& common_;
  std::vector<DatasetPart> parts_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_;
};

}  // namespace kvcc::cli
