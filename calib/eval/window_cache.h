// A scheme's cache over one window in a mode of evaluation, with what is measured on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "calib/eval/attention_error.h"
#include "calib/eval/key_errors.h"
#include "calib/eval/mixed_attention.h"
#include "calib/eval/mode.h"
#include "calib/eval/simulated_cache.h"

namespace kvcc {

/// What tokens see of a layer in a mode, in a window of `tokens` rows; `cache` must outlive it.
std::function<TokenView(int64_t)> token_views(const SimulatedCache& cache, const ModeOptions& mode, int layer,
                                              int64_t tokens);
/// Rounded to fp16, a copy. Throws Error(bad_input) for values too large for it, naming layer and tensor.
at::Tensor rounded_to_half(const at::Tensor& x, int layer, CacheTensor tensor);

/// KL repair (METHODS.md 11.3): of each layer's coded keys, and of its coded values, `percent` of the tokens are put
/// back as they were computed: those of the largest |x - x'|^2 over all heads, or all but those.
struct Repair {
  double percent = 5;
  bool worst = true;
};

/// The tap of one window's pass. `cache` does the quantising; both outlive it. Not thread-safe.
class WindowCache : public KvTap {
 public:
  WindowCache(SimulatedCache& cache, const ModeOptions& mode, std::optional<Repair> repair = {});
  /// Where errors of keys are added; null: nowhere.
  void measure_keys(KeyErrors* errors) { key_errors_ = errors; }
  /// Where the errors of attention against `reference` are added; null: nowhere.
  void measure_attention(const AttentionReference* reference, AttentionErrors* errors);

  void before_rope(int layer, at::Tensor& key, at::Tensor& value) override;
  void after_rope(int layer, at::Tensor& key) override;
  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttentionRule& rule) override;

 private:
  SimulatedCache& cache_;
  ModeOptions mode_;
  std::optional<Repair> repair_;
  KeyErrors* key_errors_ = nullptr;
  const AttentionReference* reference_ = nullptr;
  AttentionErrors* attention_errors_ = nullptr;
  RowVersions key_, value_;  ///< of the layer that is running; `half` where the mode needs it
};

/// The tap of full precision's pass: keeps what the others compare with, and measures what each of `caches` makes of
/// full precision's own keys and values.
class ReferenceTap : public KvTap {
 public:
  struct Subject {
    SimulatedCache* cache;
    ModeOptions mode;
    AttentionErrors* errors;
  };
  ReferenceTap(AttentionReference& reference, std::vector<Subject> subjects)
      : reference_(reference), subjects_(std::move(subjects)) {}
  void before_rope(int layer, at::Tensor& key, at::Tensor& value) override;
  void after_rope(int layer, at::Tensor& key) override;
  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttentionRule& rule) override;

 private:
  AttentionReference& reference_;
  std::vector<Subject> subjects_;
  std::vector<at::Tensor> keys_, values_;  ///< of the layer that is running, exact first
};

}  // namespace kvcc
