#include "calib/text/bpe_words.h"

#include <algorithm>
#include <bit>

#include "calib/text/utf8.h"

namespace kvcc {
namespace {

constexpr uint64_t kEmpty = UINT64_MAX;

uint64_t key_of(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

BpeWords::BpeWords(const TokenizerSpec& spec) : spec_(spec) {
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  ids_.reserve(spec.tokens.size());
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string& token = spec.tokens[id];
    if (token.empty()) continue;
    ids_.emplace(token, static_cast<int32_t>(id));
    int byte = -1;
    if (spec.byte_level && token.size() == 1) byte = static_cast<unsigned char>(token[0]);
    if (spec.byte_fallback) byte = byte_of_token(token);
    if (byte >= 0 && byte_ids_[byte] < 0) byte_ids_[byte] = static_cast<int32_t>(id);
  }
  const size_t slots = std::bit_ceil(2 * spec.merges.size() + 2);
  mask_ = slots - 1;
  keys_.assign(slots, kEmpty);
  merges_.resize(slots);
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    const std::string& a = spec.tokens[static_cast<size_t>(left)];
    const std::string& b = spec.tokens[static_cast<size_t>(right)];
    const auto merged = ids_.find(a + b);
    if (merged == ids_.end()) {
      throw tokenizer_error(spec.place, "merge " + std::to_string(rank) + " (ids " + std::to_string(left) + " and " +
                                            std::to_string(right) + ") makes no token of the vocabulary");
    }
    uint64_t slot = mix(key_of(left, right)) & mask_;
    while (keys_[slot] != kEmpty && keys_[slot] != key_of(left, right)) slot = (slot + 1) & mask_;
    keys_[slot] = key_of(left, right);  // a pair given twice: the later rank counts, as in PyPI tokenizers
    merges_[slot] = {static_cast<int32_t>(rank), merged->second};
  }
}

const BpeWords::Merge* BpeWords::merge(int32_t left, int32_t right) const {
  for (uint64_t slot = mix(key_of(left, right)) & mask_; keys_[slot] != kEmpty; slot = (slot + 1) & mask_) {
    if (keys_[slot] == key_of(left, right)) return &merges_[slot];
  }
  return nullptr;
}

void BpeWords::encode_byte(unsigned char byte, std::vector<int32_t>& out) const {
  if (byte_ids_[byte] >= 0) {
    out.push_back(byte_ids_[byte]);
  } else if (spec_.unknown >= 0) {
    out.push_back(spec_.unknown);
  }
}

void BpeWords::encode(std::string_view word, std::vector<int32_t>& out) const {
  if (word.empty()) return;
  if (spec_.ignore_merges) {
    if (const auto whole = ids_.find(word); whole != ids_.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  std::vector<Symbol> symbols = split(word);
  if (symbols.empty()) return;
  merge_all(symbols);
  for (int32_t at = 0; at >= 0; at = symbols[static_cast<size_t>(at)].next)
    out.push_back(symbols[static_cast<size_t>(at)].id);
}

std::vector<BpeWords::Symbol> BpeWords::split(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  const auto push = [&](int32_t id) {
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  };
  bool unknown = false;  // one is still to be pushed: before the next known token, as PyPI tokenizers does
  const auto known = [&](int32_t id) {
    if (unknown) push(spec_.unknown);
    unknown = false;
    push(id);
  };
  for (size_t at = 0, length; at < word.size(); at += length) {
    length = spec_.byte_level ? 1 : utf8_length(word, at);
    const std::string_view character = word.substr(at, length);
    if (spec_.byte_level) {
      if (const int32_t id = byte_ids_[static_cast<unsigned char>(word[at])]; id >= 0) {
        known(id);
        continue;
      }
    } else if (const auto it = ids_.find(character); it != ids_.end()) {
      known(it->second);
      continue;
    }
    if (spec_.byte_fallback && std::all_of(character.begin(), character.end(),
                                           [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; })) {
      for (const char c : character) push(byte_ids_[static_cast<unsigned char>(c)]);
      continue;
    }
    if (spec_.unknown < 0) continue;
    if (unknown && !spec_.fuse_unknown) push(spec_.unknown);
    unknown = true;
  }
  if (unknown) push(spec_.unknown);
  if (!symbols.empty()) symbols.back().next = -1;
  return symbols;
}

void BpeWords::merge_all(std::vector<Symbol>& symbols) const {
  struct Candidate {
    int32_t rank, at, left, right, id;
    bool operator<(const Candidate& other) const {  // for a queue that gives the lowest rank, then the leftmost
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  std::vector<Candidate> heap;
  const auto consider = [&](int32_t at) {
    const int32_t next = symbols[static_cast<size_t>(at)].next;
    if (next < 0) return false;
    const int32_t left = symbols[static_cast<size_t>(at)].id, right = symbols[static_cast<size_t>(next)].id;
    const Merge* found = merge(left, right);
    if (found) heap.push_back({found->rank, at, left, right, found->id});
    return found != nullptr;
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<int32_t>(i));
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate top = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(top.at)];
    if (left.id != top.left || left.next < 0 || symbols[static_cast<size_t>(left.next)].id != top.right)
      continue;  // stale
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    left.id = top.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.at;
    if (left.previous >= 0 && consider(left.previous)) std::push_heap(heap.begin(), heap.end());
    if (consider(top.at)) std::push_heap(heap.begin(), heap.end());
  }
}

std::string BpeWords::text(int32_t id) const { return spec_.tokens[static_cast<size_t>(id)]; }

std::unique_ptr<WordModel> make_bpe(const TokenizerSpec& spec) { return std::make_unique<BpeWords>(spec); }

}  // namespace kvcc
