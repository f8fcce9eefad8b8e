// pack, one online range a token (values): a block packs one token, all its heads.
//   grid   (count, 1, sequence); kvcc_grid_pack_token
//   phases those of SelectToken; then range, records and codes
#pragma once

#include "kernels/device/select_token.cuh"

namespace kvcc::device {

template <class Config>
struct PackToken {
  using Params = KvccPackParams;
  using Select = SelectToken<Config>;
  using Shared = typename Select::Shared;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim;

  static KVCC_HD int phases(const Params& p, const Block& b) {
    if (Select::position(p, b) < p.cache.sink) return writes_shared_part<Config>(p.cache) ? 1 : 0;
    return Select::kPhases + 1;
  }

  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    if (Select::position(p, b) < p.cache.sink) {
      write_exact_row<Config>(p, b.z, static_cast<int32_t>(b.x), Select::position(p, b), thread);
    } else if (k < Select::kPhases) {
      Select::phase(k, p, b, thread, shared);
    } else {
      write(p, b, thread, shared);
    }
  }

 private:
  static KVCC_HD void write(const Params& p, const Block& b, int thread, Shared& shared) {
    if constexpr (Select::kTail) {
      if (writes_shared_part<Config>(p.cache)) {
        linear::SparseRecord* record = entries<Config>(p.cache, base(p, b)) + slot(p, b) * 2 * p.cache.tail;
        uint32_t next = Select::first_outlier(thread, shared);
        Select::for_chunk(p, b, thread, shared, [&](int32_t column, float x, bool outlier) {
          if (outlier) record[next++] = {static_cast<uint16_t>(column), record_half(x, p.status)};
        });
      }
    }
    if (thread == 0 && writes_shared_part<Config>(p.cache)) {
      ranges<Config>(p.cache, base(p, b))[slot(p, b)] = shared.range;
    }
    constexpr int32_t kWords = static_cast<int32_t>(linear::row_words(D, Config::kBits));
    const float scale = half_to_float(shared.range.scale), zero = half_to_float(shared.range.zero);
    for (int32_t item = thread; item < p.cache.heads * kWords; item += kThreads) {
      const int32_t head = item / kWords, word = item % kWords;
      if (!serves<Config>(p.cache.layer, head)) continue;
      const float* levels = Config::levels(p.cache.layer, head);
      code_row<Config>(p.cache, base(p, b), slot(p, b), head)[word] =
          linear::make_word(word, D, Config::kBits, [&](uint32_t channel) {
            const float x =
                clamp(Select::value(p, b, head * D + static_cast<int32_t>(channel)), shared.row_low, shared.row_high);
            return nearest_level(levels, 1 << Config::kBits, normalise(x, scale, zero));
          });
    }
  }

  static KVCC_HD int32_t slot(const Params& p, const Block& b) {
    return (Select::position(p, b) - p.cache.sink) % KVCC_PAGE_TOKENS;
  }
  static KVCC_HD uint8_t* base(const Params& p, const Block& b) {
    return page(p.cache, b.z, (Select::position(p, b) - p.cache.sink) / KVCC_PAGE_TOKENS);
  }
};

}  // namespace kvcc::device
