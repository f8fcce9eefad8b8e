// What each token of a window sees of a quantised cache: the modes of evaluation.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcc {

enum class EvalMode : uint8_t {
  /// The whole window is quantised in one pass, each token's own key and value included (KVQuant's protocol, METHODS.md
  /// 2.6).
  full,
  /// Blocks of tokens against a cache that holds the blocks before; a block sees its own keys and values exactly and is
  /// stored when it is complete (KVarN's, METHODS.md 11.2).
  pseudo_decode,
  /// The tokens of the prompt see each other exactly; each later one sees the cache as it is with itself appended
  /// (KIVI's,
  /// METHODS.md 4; what `kvcc generate --prefill exact` does).
  prefill_exact,
};

/// "full", "pseudo-decode", "prefill-exact".
const char* mode_name(EvalMode mode);
/// Throws Error(usage) for another name.
EvalMode parse_mode(std::string_view name);

struct ModeOptions {
  EvalMode mode = EvalMode::full;
  int64_t block = 128;  ///< tokens of pseudo-decode's blocks
  int64_t prompt = 0;   ///< tokens of prefill-exact's prompt

  /// Tokens from a multiple of which on those that follow see the same cache, as far as this many go.
  int64_t chunk() const { return mode == EvalMode::pseudo_decode ? block : 128; }
  /// Tokens in the cache that token t sees; of a window of `tokens`.
  int64_t cached(int64_t t, int64_t tokens) const;
  /// First position that token t sees as it was computed, not rounded to what a cache holds; INT64_MAX: none.
  int64_t live(int64_t t) const;
};

}  // namespace kvcc
