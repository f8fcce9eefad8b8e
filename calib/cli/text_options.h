// What collect, eval and ablate say about text and context. Programs only.
#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>
#include <string>
#include <vector>

#include "formats/cli/program.h"
#include "formats/core/error.h"

namespace kvcc::cli {

/// As given; defaults and help texts are in define_text().
struct TextOptions {
  std::vector<std::string> datasets, text;
  std::string ids, bos = "auto", packing = "packed", field;
  bool is_given() const { return !datasets.empty() || !text.empty() || !ids.empty(); }
};

/// The options of a text that samples or windows (`unit`) are taken from.
inline void define_text(CLI::App& app, TextOptions& o, const std::string& unit, const std::string& default_dataset) {
  const auto among = [](std::vector<std::string> words) { return CLI::IsMember(std::move(words)).description(""); };
  CLI::Option* dataset =
      app.add_option("--dataset", o.datasets,
                     "Text: wikitext2, c4 or ptb, with :SPLIT where not the default; 'self' for samples of the model "
                     "itself; or a FILE: plain text, JSON lines (.jsonl, .ndjson, .json) of texts or conversations, or "
                     "ids (.npy). Several are mixed: A:0.7,B:0.3, or the option again (default " +
                         default_dataset + ")")
          ->allow_extra_args(false);
  CLI::Option* text = app.add_option("--text", o.text, "Text files, plain whatever their names");
  CLI::Option* ids = app.add_option("--ids", o.ids, "Token ids, .npy int32 [n, len], or [n] to be cut");
  dataset->excludes(text)->excludes(ids);
  text->excludes(ids);
  app.add_option("--field", o.field,
                 "Member of each of the JSON lines that holds the text, or the messages of a conversation, which go "
                 "through the model's own chat template (default: text, else messages)")
      ->excludes(ids);
  app.add_option(
         "--packing", o.packing,
         "packed: documents are joined and cut; document: each (a JSON line, an article of wikitext2, a file) is "
         "one " +
             unit + " of its own, cut at --seqlen, and never padded")
      ->capture_default_str()
      ->check(among({"packed", "document"}));
  app.add_option("--bos", o.bos,
                 "Begin each " + unit +
                     " with the BOS token: auto (as the model says; conversations: as its template says), on or off")
      ->capture_default_str()
      ->check(among({"auto", "on", "off"}));
}

/// The same options as arguments of another program.
inline void append_text(std::vector<std::string>& arguments, const TextOptions& o) {
  const auto append = [&](const char* option, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {option, value});
  };
  for (const std::string& dataset : o.datasets) append("--dataset", dataset);
  for (const std::string& file : o.text) append("--text", file);
  append("--ids", o.ids);
  append("--field", o.field);
  append("--packing", o.packing);
  append("--bos", o.bos);
}

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

}  // namespace kvcc::cli
