#include "calib/text/added_tokens.h"

#include <algorithm>

#include "calib/text/utf8.h"

namespace kvcc {
namespace {

// Start of the character that ends at `end`; end itself when there is no well-formed one.
size_t previous_character(std::string_view text, size_t end) {
  for (size_t length = 1; length <= std::min<size_t>(4, end); ++length) {
    if (utf8_length(text, end - length) == length) return end - length;
  }
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<const AddedToken*>& tokens) : nodes_(1) {
  for (const AddedToken* token : tokens) {
    if (token->content.empty()) continue;
    uint32_t node = 0;
    for (const char c : token->content) {
      const auto byte = static_cast<unsigned char>(c);
      const auto it = nodes_[node].next.find(byte);
      if (it != nodes_[node].next.end()) {
        node = it->second;
        continue;
      }
      nodes_[node].next[byte] = static_cast<uint32_t>(nodes_.size());
      node = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
    }
    nodes_[node].token = token;
    first_[static_cast<unsigned char>(token->content[0])] = true;
    // What Rust's \w is.
    if (token->single_word && !word_)
      word_.emplace(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])", "added tokens");
  }
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, size_t at) const {
  const AddedToken* longest = nullptr;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto it = nodes_[node].next.find(static_cast<unsigned char>(text[i]));
    if (it == nodes_[node].next.end()) break;
    node = it->second;
    if (nodes_[node].token) longest = nodes_[node].token;
  }
  return longest;
}

bool AddedTokenFinder::touches_word(std::string_view text, size_t begin, size_t end) const {
  size_t from = 0, to = 0;
  const size_t before = previous_character(text, begin);
  if (before != begin && word_->find(text.substr(before, begin - before), 0, from, to)) return true;
  const size_t length = utf8_length(text, end);
  return length > 0 && word_->find(text.substr(end, length), 0, from, to);
}

std::vector<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text) const {
  std::vector<Match> matches;
  if (nodes_.size() <= 1) return matches;
  size_t at = 0, taken = 0;  // `taken`: end of the last match with what it swallowed, which may hold further matches
  while (at < text.size()) {
    if (!first_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const AddedToken* token = longest_at(text, at);
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->single_word && touches_word(text, begin, end)) continue;
    if (token->lstrip) {
      for (size_t before;
           (before = previous_character(text, begin)) != begin && is_white_space(utf8_code(text, before));) {
        begin = before;
      }
      begin = std::max(begin, taken);
    }
    if (token->rstrip) {
      for (size_t length; (length = utf8_length(text, end)) > 0 && is_white_space(utf8_code(text, end));) end += length;
    }
    if (begin < end) matches.push_back({token, begin, end});  // else the one before has taken all of it
    taken = end;
  }
  return matches;
}

}  // namespace kvcc
