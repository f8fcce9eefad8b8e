// What collect and eval say about text and context. Programs only.
#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>
#include <optional>
#include <string>

#include "calib/text/corpus.h"
#include "formats/cli/program.h"
#include "formats/core/error.h"

namespace kvcc::cli {

/// Windows longer than the model was trained for are refused unless asked for, as their keys are unlike any it has made
/// (no RoPE scaling is ever put in); then it warns. max_position 0: not known.
inline void check_context(int64_t seqlen, int64_t max_position, bool beyond_context) {
  if (max_position <= 0 || seqlen <= max_position) return;
  if (!beyond_context) {
    throw Error(ErrorKind::usage, "--seqlen " + std::to_string(seqlen), "more than the model was made for",
                "at most " + std::to_string(max_position) + ", its context", "--beyond-context allows it");
  }
  spdlog::warn("{} tokens are more than the model was made for ({}); its own RoPE is used unchanged", seqlen,
               max_position);
}

/// kvcc::load_corpus with a progress bar.
inline Corpus load_corpus(CorpusRequest request, const Tokenizer* tokenizer, bool quiet) {
  std::optional<Progress> progress;
  request.progress = [&](uint64_t done, uint64_t total) {
    if (!progress) progress.emplace("tokenise, bytes", total, quiet);
    progress->set(done);
  };
  return kvcc::load_corpus(request, tokenizer);
}

/// A text too short for what was asked gives less; that must not pass unseen.
inline void warn_if_fewer(int64_t wanted, const Samples& samples, const Corpus& corpus, const char* what) {
  const auto there = static_cast<int64_t>(samples.ids.size());
  if (there < wanted) spdlog::warn("{} has {} {} only, {} were asked for", corpus.name, there, what, wanted);
}

}  // namespace kvcc::cli
