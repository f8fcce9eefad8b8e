// Byte pair encoding of one word.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "calib/text/bpe_spec.h"

namespace kvcc {

/// Merges neighbours in order of rank, leftmost first among equals, until none is left: R. Sennrich et al., "Neural
/// Machine Translation of Rare Words with Subword Units", 2016. O(n log n) in the length of the word.
class BpeWords {
 public:
  /// Keeps a reference to spec. Throws Error(bad_input) when a merge's result is not in the vocabulary.
  explicit BpeWords(const BpeSpec& spec);

  /// Appends the ids of `word` (any bytes).
  void encode(std::string_view word, std::vector<int32_t>& out) const;
  /// Appends the token of one byte by itself, or what stands for a byte without token.
  void encode_byte(unsigned char byte, std::vector<int32_t>& out) const;

 private:
  struct Merge {
    int32_t rank, id;
  };
  const Merge* merge(int32_t left, int32_t right) const;

  const BpeSpec& spec_;
  int32_t byte_ids_[256];
  std::unordered_map<std::string_view, int32_t> ids_;  // of the bytes of tokens that BPE can make; views into spec_
  std::vector<uint64_t> keys_;                         // open addressing: left << 32 | right, kEmpty where free
  std::vector<Merge> merges_;
  uint64_t mask_ = 0;
};

}  // namespace kvcc
