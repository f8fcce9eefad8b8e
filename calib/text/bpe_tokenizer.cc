// Text to ids in four steps: added tokens are taken out; what lies between is cut at invalid bytes (each of which is a
// byte token by itself); the rest is cut into words by the pattern; each word is encoded by BPE, through a cache.
#include <unordered_map>
#include <unordered_set>

#include "calib/text/added_tokens.h"
#include "calib/text/bpe_spec.h"
#include "calib/text/bpe_words.h"
#include "calib/text/regex.h"
#include "calib/text/tokenizer.h"
#include "calib/text/utf8.h"
#include "formats/core/hash.h"

namespace kvcc {
namespace {

std::vector<const AddedToken*> choose(const std::vector<AddedToken>& all, bool normalized) {
  std::vector<const AddedToken*> chosen;
  for (const AddedToken& token : all) {
    if (token.normalized == normalized) chosen.push_back(&token);
  }
  return chosen;
}

/// Looking for added tokens takes memory in proportion to all of their texts, and time to the longest.
BpeSpec checked(BpeSpec spec) {
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

struct Stage {
  SplitStage split;
  std::optional<Regex> regex;
};

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeSpec spec)
      : spec_(checked(std::move(spec))),
        words_(spec_),
        raw_(choose(spec_.added, false)),
        normalized_(choose(spec_.added, true)) {
    for (const SplitStage& split : spec_.stages) {
      stages_.push_back({split, {}});
      if (!split.pattern.empty()) stages_.back().regex.emplace(split.pattern, spec_.place);
    }
    for (const AddedToken& token : spec_.added) {
      added_bytes_[token.id] = token.content;
      if (token.special) special_.insert(token.id);
      vocab_size_ = std::max<int64_t>(vocab_size_, int64_t{token.id} + 1);
    }
    vocab_size_ = std::max<int64_t>(vocab_size_, static_cast<int64_t>(spec_.tokens.size()));
  }

  std::vector<int32_t> encode(std::string_view text, const std::function<void(size_t)>& progress) const override {
    Run run{text.data(), {}, {}, progress, 0};
    between_matches(raw_, text, run, [&](std::string_view gap) {
      between_matches(normalized_, gap, run, [&](std::string_view inner) { encode_any(inner, run); });
    });
    if (progress) progress(text.size());
    return std::move(run.ids);
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (const auto added = added_bytes_.find(id); added != added_bytes_.end()) {
        text += added->second;
      } else if (id >= 0 && static_cast<size_t>(id) < spec_.tokens.size()) {
        text += spec_.tokens[static_cast<size_t>(id)];
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

  std::string sha256() const override {
    Sha256 hash;
    const auto number = [&](int64_t n) { hash.update(&n, sizeof n); };
    const auto string = [&](std::string_view s) {
      number(static_cast<int64_t>(s.size()));
      hash.update(s);
    };
    number(static_cast<int64_t>(spec_.tokens.size()));
    for (const std::string& token : spec_.tokens) string(token);
    number(static_cast<int64_t>(spec_.merges.size()));
    for (const auto& [left, right] : spec_.merges) number((int64_t{left} << 32) | right);
    number(static_cast<int64_t>(spec_.added.size()));
    for (const AddedToken& t : spec_.added) {
      string(t.content);
      number(t.id);
      number(t.lstrip | t.rstrip << 1 | t.single_word << 2 | t.normalized << 3);
    }
    number(static_cast<int64_t>(spec_.stages.size()));
    for (const SplitStage& s : spec_.stages) {
      string(s.pattern);
      number(s.keep_gaps | s.keep_matches << 1 | s.add_prefix_space << 2);
    }
    number(spec_.ignore_merges | spec_.fuse_unknown << 1);
    number(spec_.unknown);
    return hash.hex();
  }

 private:
  struct Run {  // the state of one call of encode
    const char* start;
    std::vector<int32_t> ids;
    std::unordered_map<std::string, std::vector<int32_t>> cache;
    const std::function<void(size_t)>& progress;
    size_t reported;
  };

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

  void encode_any(std::string_view text, Run& run) const {
    size_t begin = 0, at = 0;
    while (at < text.size()) {
      const size_t length = utf8_length(text, at);
      if (length > 0) {
        at += length;
        continue;
      }
      if (at > begin) split(text.substr(begin, at - begin), 0, run);
      words_.encode_byte(static_cast<unsigned char>(text[at]), run.ids);
      begin = ++at;
    }
    if (at > begin) split(text.substr(begin), 0, run);
  }

  // Cuts `text` by stage `depth` and hands the pieces to the next; a stage sees each piece as a whole text.
  void split(std::string_view text, size_t depth, Run& run) const {
    if (text.empty()) return;
    if (depth == stages_.size()) return encode_word(text, run);
    const Stage& stage = stages_[depth];
    std::string prefixed;
    if (stage.split.add_prefix_space && text[0] != ' ') {
      prefixed.reserve(text.size() + 1);
      prefixed += ' ';
      prefixed += text;
      text = prefixed;
    }
    if (!stage.regex) return split(text, depth + 1, run);
    size_t at = 0, begin = 0, end = 0;
    while (at < text.size() && stage.regex->find(text, at, begin, end)) {
      if (begin > at && stage.split.keep_gaps) split(text.substr(at, begin - at), depth + 1, run);
      if (stage.split.keep_matches) split(text.substr(begin, end - begin), depth + 1, run);
      at = end;
    }
    if (at < text.size() && stage.split.keep_gaps) split(text.substr(at), depth + 1, run);
  }

  void encode_word(std::string_view word, Run& run) const {
    constexpr size_t kLongest = 64, kEntries = 1 << 16, kReport = 1 << 20;
    if (word.size() > kLongest) {
      words_.encode(word, run.ids);
    } else {
      std::string key(word);
      auto it = run.cache.find(key);
      if (it == run.cache.end()) {
        if (run.cache.size() >= kEntries) run.cache.clear();
        it = run.cache.emplace(std::move(key), std::vector<int32_t>{}).first;
        words_.encode(word, it->second);
      }
      run.ids.insert(run.ids.end(), it->second.begin(), it->second.end());
    }
    if (run.ids.size() - run.reported >= kReport / 4 && run.progress) {
      run.reported = run.ids.size();
      const std::less<const char*> before;  // a word with a prefix space lies outside the text
      if (!before(word.data(), run.start)) run.progress(static_cast<size_t>(word.data() - run.start));
    }
  }

  const BpeSpec spec_;
  const BpeWords words_;
  const AddedTokenFinder raw_, normalized_;
  std::vector<Stage> stages_;
  std::unordered_map<int32_t, std::string> added_bytes_;
  std::unordered_set<int32_t> special_;
  int64_t vocab_size_ = 0;
};

}  // namespace

Error tokenizer_error(const std::string& place, const std::string& found, const std::string& wanted) {
  return bad_input(place, found, wanted, "tokenise elsewhere and give the ids with --ids FILE");
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerSource& source) {
  if (!source.json_path.empty()) return std::make_unique<BpeTokenizer>(spec_from_json(source));
  if (!source.gguf_model.empty() || !source.gguf_tokens.empty()) {
    return std::make_unique<BpeTokenizer>(spec_from_gguf(source));
  }
  throw tokenizer_error(source.place, "no tokenizer", "tokenizer.json, or the tokenizer of a GGUF file");
}

}  // namespace kvcc
