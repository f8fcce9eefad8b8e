// Text to ids: added tokens are taken out; what lies between is cut at invalid bytes (each of which is a byte token by
// itself); the rest is normalised; added tokens that are looked for there are taken out too; stages cut what remains
// into words; the model encodes each word, through a cache. SentencePiece's library does all but the first by itself.
#include <unordered_map>
#include <unordered_set>

#include "calib/text/added_tokens.h"
#include "calib/text/normalizer.h"
#include "calib/text/regex.h"
#include "calib/text/splitter.h"
#include "calib/text/tokenizer.h"
#include "calib/text/tokenizer_spec.h"
#include "calib/text/utf8.h"
#include "calib/text/word_model.h"

namespace kvcc {
namespace {

std::vector<const AddedToken*> choose(const std::vector<AddedToken>& all, bool normalized) {
  std::vector<const AddedToken*> chosen;
  for (const AddedToken& token : all) {
    if (token.normalized == normalized) chosen.push_back(&token);
  }
  return chosen;
}

/// Texts that are looked for in normalised text, normalised.
std::vector<AddedToken> normalised(const std::vector<AddedToken>& all, const Normalizer& normalizer) {
  std::vector<AddedToken> tokens = all;
  for (AddedToken& token : tokens) {
    if (token.normalized) token.content = normalizer.run(token.content, false);
  }
  return tokens;
}

/// Looking for added tokens takes memory in proportion to all of their texts, and time to the longest.
TokenizerSpec checked(TokenizerSpec spec) {
  constexpr size_t kLongest = 1024, kAll = 2 << 20;
  size_t all = 0;
  for (const AddedToken& token : spec.added) {
    all += token.content.size();
    if (token.content.size() > kLongest || all > kAll) {
      throw tokenizer_error(spec.place,
                            "added token " + std::to_string(token.id) + " of " + std::to_string(token.content.size()) +
                                " bytes, " + std::to_string(all) + " with those before it",
                            "at most " + std::to_string(kLongest) + " bytes, and " + std::to_string(kAll) + " in all");
    }
  }
  return spec;
}

std::unique_ptr<WordModel> make_model(const TokenizerSpec& spec) {
  switch (spec.kind) {
    case ModelKind::unigram:
      return make_unigram(spec);
    case ModelKind::sentencepiece:
      return make_sentencepiece(spec);
    case ModelKind::bpe:
      break;
  }
  return make_bpe(spec);
}

/// What the vocabulary has in a space's place; "": a space.
std::string space_mark(const TokenizerSpec& spec) {
  if (spec.kind == ModelKind::sentencepiece) return kSpaceMark;
  for (const SplitStage& stage : spec.stages) {
    if (!stage.space.empty()) return stage.space;
  }
  for (const NormalizerStep& step : spec.normalizers) {
    if (step.kind == NormalizerStep::Kind::replace && step.pattern == " ") return step.content;
  }
  return "";
}

class PipelineTokenizer : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerSpec spec)
      : spec_(checked(std::move(spec))),
        model_(make_model(spec_)),
        normalizer_(spec_.normalizers, spec_.place),
        splitter_(spec_.stages, spec_.place),
        normalised_added_(normalised(spec_.added, normalizer_)),
        raw_(choose(spec_.added, false)),
        normalized_(choose(normalised_added_, true)),
        space_mark_(space_mark(spec_)) {
    const bool bpe = spec_.kind == ModelKind::bpe && !spec_.byte_level && !spec_.ignore_merges;
    if (bpe || (spec_.kind == ModelKind::sentencepiece && !spec_.normalises_whole)) borders_.emplace(spec_);
    for (const AddedToken& token : spec_.added) {
      added_bytes_[token.id] = token.content;
      if (token.special) special_.insert(token.id);
      vocab_size_ = std::max<int64_t>(vocab_size_, int64_t{token.id} + 1);
    }
    vocab_size_ = std::max(vocab_size_, model_->size());
  }

  std::vector<int32_t> encode(std::string_view text, const std::function<void(size_t)>& progress) const override {
    Run run{text, {}, {}, {}, {}, progress, 0};
    between_matches(raw_, text, run, [&](std::string_view gap) { encode_gap(gap, run); });
    if (progress) progress(text.size());
    return std::move(run.ids);
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (const auto added = added_bytes_.find(id); added != added_bytes_.end()) {
        text += added->second;
      } else if (id >= 0 && id < model_->size()) {
        text += text_of(model_->text(id));
      } else {
        throw bad_input(spec_.place, "token id " + std::to_string(id), "from 0 to " + std::to_string(vocab_size_ - 1));
      }
    }
    return text;
  }

  bool is_special(int32_t id) const override { return special_.contains(id); }
  int64_t vocab_size() const override { return vocab_size_; }
  int64_t bos_id() const override { return spec_.bos_id; }
  bool adds_bos() const override { return spec_.adds_bos; }

  std::string sha256() const override { return hash_of(spec_); }

 private:
  struct Run {  // the state of one call of encode
    std::string_view text;
    std::vector<int32_t> ids;
    std::unordered_map<std::string, std::vector<int32_t>> cache;
    std::string_view part, normalised;  // being encoded: a part of the text, and what became of it
    const std::function<void(size_t)>& progress;
    size_t reported;
  };

  std::string text_of(std::string piece) const {
    if (spec_.byte_fallback && spec_.kind != ModelKind::sentencepiece) {
      if (const int byte = byte_of_token(piece); byte >= 0) return std::string(1, static_cast<char>(byte));
    }
    for (size_t at = 0; !space_mark_.empty() && (at = piece.find(space_mark_, at)) != std::string::npos; ++at) {
      piece.replace(at, space_mark_.size(), " ");
    }
    return piece;
  }

  template <typename Function>
  static void between_matches(const AddedTokenFinder& finder, std::string_view text, Run& run, Function&& gap) {
    size_t at = 0;
    for (const AddedTokenFinder::Match& match : finder.find(text)) {
      if (match.begin > at) gap(text.substr(at, match.begin - at));
      run.ids.push_back(match.token->id);
      at = match.end;
    }
    if (at < text.size()) gap(text.substr(at));
  }

  void encode_gap(std::string_view text, Run& run) const {
    if (spec_.normalises_whole) return model_->encode(text, run.ids);
    size_t begin = 0, at = 0;
    while (at < text.size()) {
      const size_t length = utf8_length(text, at);
      if (length > 0) {
        at += length;
        continue;
      }
      if (at > begin) encode_part(text.substr(begin, at - begin), begin > 0, run);
      model_->encode_byte(static_cast<unsigned char>(text[at]), run.ids);
      begin = ++at;
    }
    if (at > begin) encode_part(text.substr(begin), begin > 0, run);
  }

  // Well-formed text; `goes_on` after an invalid byte.
  void encode_part(std::string_view text, bool goes_on, Run& run) const {
    const std::string changed = normalizer_.empty() ? "" : normalizer_.run(text, goes_on);
    run.part = text;
    run.normalised = normalizer_.empty() ? text : std::string_view(changed);
    const bool first = text.data() == run.text.data();
    between_matches(normalized_, run.normalised, run, [&](std::string_view gap) {
      const bool begins = gap.data() == run.normalised.data();
      splitter_.run(gap, {.first = first && begins, .goes_on = goes_on && begins},
                    [&](std::string_view word) { encode_word(word, run); });
    });
  }

  void encode_word(std::string_view word, Run& run) const {
    if (!borders_) return encode_cached(word, run);
    for (size_t at = 0, end; at < word.size(); at = end) {
      end = borders_->part_end(word, at);
      encode_cached(word.substr(at, end - at), run);
    }
  }

  void encode_cached(std::string_view word, Run& run) const {
    constexpr size_t kLongest = 64, kEntries = 1 << 16;
    if (word.size() > kLongest) {
      model_->encode(word, run.ids);
    } else {
      std::string key(word);
      auto it = run.cache.find(key);
      if (it == run.cache.end()) {
        if (run.cache.size() >= kEntries) run.cache.clear();
        it = run.cache.emplace(std::move(key), std::vector<int32_t>{}).first;
        model_->encode(word, it->second);
      }
      run.ids.insert(run.ids.end(), it->second.begin(), it->second.end());
    }
    report(word, run);
  }

  static void report(std::string_view word, Run& run) {
    constexpr size_t kReport = 1 << 18;
    if (!run.progress || run.ids.size() - run.reported < kReport) return;
    const std::less<const char*> before;  // a word with something put before it lies elsewhere
    if (before(word.data(), run.normalised.data()) ||
        !before(word.data(), run.normalised.data() + run.normalised.size()))
      return;
    run.reported = run.ids.size();
    const double done =
        static_cast<double>(word.data() - run.normalised.data()) / static_cast<double>(run.normalised.size());
    run.progress(static_cast<size_t>(run.part.data() - run.text.data()) +
                 static_cast<size_t>(done * static_cast<double>(run.part.size())));
  }

  const TokenizerSpec spec_;
  const std::unique_ptr<const WordModel> model_;
  const Normalizer normalizer_;
  const Splitter splitter_;
  const std::vector<AddedToken> normalised_added_;
  const AddedTokenFinder raw_, normalized_;
  const std::string space_mark_;
  std::optional<Borders> borders_;
  std::unordered_map<int32_t, std::string> added_bytes_;
  std::unordered_set<int32_t> special_;
  int64_t vocab_size_ = 0;
};

}  // namespace

Error tokenizer_error(const std::string& place, const std::string& found, const std::string& wanted) {
  return bad_input(place, found, wanted, "tokenise elsewhere and give the ids with --ids FILE");
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerSource& source) {
  if (!source.json_path.empty()) return std::make_unique<PipelineTokenizer>(spec_from_json(source));
  if (!source.sentencepiece_path.empty()) return std::make_unique<PipelineTokenizer>(spec_from_sentencepiece(source));
  if (!source.gguf_model.empty() || !source.gguf_tokens.empty()) {
    return std::make_unique<PipelineTokenizer>(spec_from_gguf(source));
  }
  throw tokenizer_error(source.place, "no tokenizer",
                        "tokenizer.json, tokenizer.model, or the tokenizer of a GGUF file");
}

}  // namespace kvcc
