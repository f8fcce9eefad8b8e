#include "calib/text/bpe_words.h"

#include <algorithm>
#include <bit>
#include <queue>

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

BpeWords::BpeWords(const BpeSpec& spec) : spec_(spec) {
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  ids_.reserve(spec.tokens.size());
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string& token = spec.tokens[id];
    if (token.empty()) continue;
    ids_.emplace(token, static_cast<int32_t>(id));
    if (token.size() == 1 && byte_ids_[static_cast<unsigned char>(token[0])] < 0) {
      byte_ids_[static_cast<unsigned char>(token[0])] = static_cast<int32_t>(id);
    }
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
  struct Symbol {
    int32_t id, previous, next;  // neighbours by index, -1: none; id -1: merged into the one before
  };
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  bool last_unknown = false;
  for (const char c : word) {
    int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    const bool unknown = id < 0;
    if (unknown) {
      if (spec_.unknown < 0 || (last_unknown && spec_.fuse_unknown)) continue;
      id = spec_.unknown;
    }
    last_unknown = unknown;
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

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
  for (int32_t at = 0; at >= 0; at = symbols[static_cast<size_t>(at)].next)
    out.push_back(symbols[static_cast<size_t>(at)].id);
}

}  // namespace kvcc
