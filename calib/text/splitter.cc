#include "calib/text/splitter.h"

namespace kvcc {
namespace {

struct Span {
  size_t begin, end;
  bool match;
};

// Matches and the gaps between them, which together are the text.
std::vector<Span> spans_of(const Regex& regex, std::string_view text, bool invert) {
  std::vector<Span> spans;
  size_t at = 0, begin = 0, end = 0;
  for (; at < text.size() && regex.find(text, at, begin, end); at = end) {
    if (begin > at) spans.push_back({at, begin, invert});
    spans.push_back({begin, end, !invert});
  }
  if (at < text.size()) spans.push_back({at, text.size(), invert});
  return spans;
}

// A match joins the word before it; of several in a row the first does.
std::vector<Span> merge_with_previous(const std::vector<Span>& spans) {
  std::vector<Span> merged;
  bool after_match = false;
  for (const Span& span : spans) {
    if (span.match && !after_match && !merged.empty()) {
      merged.back().end = span.end;
    } else {
      merged.push_back(span);
    }
    after_match = span.match;
  }
  return merged;
}

// A match joins the word after it; of several in a row the last does.
std::vector<Span> merge_with_next(const std::vector<Span>& spans) {
  std::vector<Span> merged;
  for (size_t i = 0; i < spans.size(); ++i) {
    const bool joins = spans[i].match && i + 1 < spans.size() && !spans[i + 1].match;
    merged.push_back(joins ? Span{spans[i].begin, spans[i + 1].end, false} : spans[i]);
    i += joins;
  }
  return merged;
}

std::vector<Span> merge_equal(const std::vector<Span>& spans) {
  std::vector<Span> merged;
  for (const Span& span : spans) {
    if (!merged.empty() && merged.back().match == span.match) {
      merged.back().end = span.end;
    } else {
      merged.push_back(span);
    }
  }
  return merged;
}

}  // namespace

Splitter::Splitter(const std::vector<SplitStage>& stages, const std::string& place) {
  for (const SplitStage& split : stages) {
    stages_.push_back({split, {}});
    if (!split.pattern.empty()) stages_.back().regex.emplace(split.pattern, place);
  }
}

// A stage sees each piece as a whole text.
void Splitter::split(std::string_view text, Position position, size_t depth,
                     const std::function<void(std::string_view)>& word) const {
  if (text.empty()) return;
  if (depth == stages_.size()) return word(text);
  const auto& [stage, regex] = stages_[depth];
  std::string changed;
  if (!stage.space.empty() && text.find(' ') != std::string_view::npos) {
    for (const char c : text) c == ' ' ? changed += stage.space : changed += c;
    text = changed;
  }
  const bool prefixed = !stage.prefix.empty() && !position.goes_on && (position.first || !stage.prefix_first);
  if (prefixed && !text.starts_with(stage.prefix)) {
    std::string longer = stage.prefix;
    longer += text;
    changed = std::move(longer);
    text = changed;
  }
  const auto next = [&](size_t begin, size_t end) {
    const Position at = begin == 0 ? position : Position{};
    split(text.substr(begin, end - begin), at, depth + 1, word);
  };
  if (!regex) return next(0, text.size());
  if (stage.behaviour == Behaviour::isolated) {  // by far the most frequent, and needs no list
    size_t at = 0, begin = 0, end = 0;
    for (; at < text.size() && regex->find(text, at, begin, end); at = end) {
      if (begin > at) next(at, begin);
      next(begin, end);
    }
    if (at < text.size()) next(at, text.size());
    return;
  }
  std::vector<Span> spans = spans_of(*regex, text, stage.invert);
  if (stage.behaviour == Behaviour::merged_with_previous) spans = merge_with_previous(spans);
  if (stage.behaviour == Behaviour::merged_with_next) spans = merge_with_next(spans);
  if (stage.behaviour == Behaviour::contiguous) spans = merge_equal(spans);
  for (const Span& span : spans) {
    if (stage.behaviour != Behaviour::removed || !span.match) next(span.begin, span.end);
  }
}

}  // namespace kvcc
