#include "calib/refine/tensor_tuner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "formats/codec/reference.h"
#include "formats/codec/rows.h"
#include "formats/codec/tensor_codec.h"

namespace kvcc {
namespace {

constexpr double kMeanDecay = 0.9, kSquareDecay = 0.95;
constexpr double kRounding = 1e-3;
constexpr int64_t kTokensAtOnce = 256;  ///< of a codec's call

/// Mean of a running mean that began at 0.
double unbiased(double running, double decay, int64_t steps) {
  return running / (1 - std::pow(decay, static_cast<double>(steps)));
}

void update(float& running, double now, double decay) {
  running = static_cast<float>(decay * running + (1 - decay) * now);
}

}  // namespace

TensorTuner::TensorTuner(VectorQuantiser quantiser, int64_t exact_first, int64_t exact_last, bool transforms)
    : q_(std::move(quantiser)),
      groups_(groups_of(q_)),
      exact_first_(exact_first),
      exact_last_(exact_last),
      transforms_(transforms),
      base_inverse_(q_.inverse),
      added_(transforms ? q_.inverse.size() : 0),
      vector_sum_(q_.vectors.size()) {
  const size_t n = static_cast<size_t>(q_.size());
  size_t entries = 0;
  for (const CodeGroup& group : groups_) entries += static_cast<size_t>(group.entries());
  count_.resize(entries);
  vectors_ = {std::vector<float>(q_.vectors.size()), std::vector<float>(groups_.size())};
  shifts_ = {std::vector<float>(n * q_.units), std::vector<float>(groups_.size())};
  if (!transforms) return;
  transform_ = {std::vector<float>(added_.size()), std::vector<float>(added_.size())};
  for (int u = 0; u < q_.units; ++u) {
    transform_sum_.push_back(at::zeros({q_.size(), q_.size()}, at::kDouble));
  }
}

at::Tensor TensorTuner::unit(const std::vector<float>& matrices, int64_t u) const {
  const int64_t n = q_.size();
  return at::from_blob(const_cast<float*>(matrices.data() + u * n * n), {n, n}, at::kFloat);  // only read
}

at::Tensor TensorTuner::quantise(const at::Tensor& x, int threads, const std::string& place) {
  const int64_t all = x.size(1), width = x.size(2) * x.size(3);
  const int64_t begin = std::min(exact_first_, all), end = coded_end(all, begin, exact_last_, 1);
  coded_ = x.detach().clone(at::MemoryFormat::Contiguous);
  const std::span<float> rows(coded_.mutable_data_ptr<float>(), static_cast<size_t>(all * width));
  for (const auto& [from, to] : {std::pair{int64_t{0}, begin}, {end, all}}) {
    const std::span<float> exact = rows.subspan(from * width, (to - from) * width);
    round_to_record(exact, exact, place + ", exact tokens");
  }
  begin_ = begin;
  tokens_ = end - begin;
  if (error_.empty()) x_ = coded_[0].narrow(0, begin, tokens_).reshape({tokens_, width}).clone();
  codes_.assign(groups_.size() * static_cast<size_t>(tokens_), 0);
  const std::shared_ptr<const TensorCodec> codec = make_codec(q_);
  std::map<int, std::vector<size_t>> of_width;  // groups of each part
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].bits > 0) of_width[groups_[g].bits].push_back(g);
  }
  over_rows(tokens_, threads, [&](int64_t first, int64_t last) {
    for (int64_t at = first; at < last; at += kTokensAtOnce) {
      const int64_t count = std::min(kTokensAtOnce, last - at);
      const std::span<float> part = rows.subspan((begin + at) * width, count * width);
      CodedTokens coded;
      codec->encode(part, coded, place, begin + at);
      codec->decode(coded, part);
      auto values = coded.begin();
      for (const auto& [bits, members] : of_width) {
        for (int64_t t = 0; t < count; ++t) {
          for (size_t i = 0; i < members.size(); ++i) {
            codes_[members[i] * tokens_ + at + t] = values->values[t * members.size() + i];
          }
        }
        ++values;
      }
    }
    return int64_t{0};
  });
  if (error_.empty()) measure();
  return coded_;
}

/// Coordinates as they are decoded, [tokens, N].
at::Tensor TensorTuner::coordinates(int64_t u) const {
  at::Tensor z = at::empty({tokens_, q_.size()}, at::kFloat);
  float* to = z.mutable_data_ptr<float>();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const CodeGroup& group = groups_[g];
    if (group.unit != u) continue;
    for (int64_t t = 0; t < tokens_; ++t) {
      const float* vector = q_.vectors.data() + group.vectors + codes_[g * tokens_ + t] * group.width;
      std::copy_n(vector, group.width, to + t * q_.size() + group.first);
    }
  }
  return z;
}

void TensorTuner::measure() {
  const int64_t n = q_.size();
  error_.resize(static_cast<size_t>(q_.units) * n);
  size_.resize(error_.size());
  for (int64_t u = 0; u < q_.units && tokens_ > 0; ++u) {
    const at::Tensor mean = at::from_blob(q_.mean.data() + u * n, {n}, at::kFloat);
    const at::Tensor z = at::matmul(x_.narrow(1, u * n, n) - mean, unit(q_.forward, u).t());
    const at::Tensor coded = coordinates(u);
    const at::Tensor error = (z - coded).square().mean(0).sqrt().contiguous();
    const at::Tensor size = coded.square().mean(0).sqrt().contiguous();
    std::copy_n(error.const_data_ptr<float>(), n, error_.begin() + u * n);
    for (const CodeGroup& group : groups_) {
      if (group.unit != u || group.bits == 0) continue;  // of a constant coordinate the shift is enough
      std::copy_n(size.const_data_ptr<float>() + group.first, group.width, size_.begin() + u * n + group.first);
    }
  }
  x_.reset();
}

void TensorTuner::add(const at::Tensor& gradient) {
  const int64_t n = q_.size(), begin = std::min(exact_first_, gradient.size(1));
  const at::Tensor rows = gradient[0].narrow(0, begin, tokens_).reshape({tokens_, n * q_.units});
  summed_ += tokens_;
  for (int64_t u = 0; u < q_.units; ++u) {
    const at::Tensor own = rows.narrow(1, u * n, n);
    if (transforms_) {
      const at::Tensor before = at::matmul(own, unit(base_inverse_, u));
      transform_sum_[u] += at::matmul(before.t(), coordinates(u)).to(at::kDouble);
    }
    const at::Tensor by_coordinate = at::matmul(own, unit(q_.inverse, u)).contiguous();
    const float* g = by_coordinate.const_data_ptr<float>();
    int64_t entry = 0;
    for (size_t i = 0; i < groups_.size(); entry += groups_[i].entries(), ++i) {
      const CodeGroup& group = groups_[i];
      if (group.unit != u) continue;
      for (int64_t t = 0; t < tokens_; ++t) {
        const int64_t code = codes_[i * tokens_ + t];
        ++count_[entry + code];
        double* sum = vector_sum_.data() + group.vectors + code * group.width;
        for (int k = 0; k < group.width; ++k) sum[k] += g[t * n + group.first + k];
      }
    }
  }
}

void TensorTuner::release() {
  codes_ = {};
  coded_.reset();
}

void TensorTuner::step(double rate) {
  if (summed_ == 0) return;
  ++steps_;
  step_groups(rate);
  if (transforms_) step_transforms(rate);
  std::fill(vector_sum_.begin(), vector_sum_.end(), 0.0);
  std::fill(count_.begin(), count_.end(), 0);
  summed_ = 0;
}

/// A vector's gradient is divided by its tokens and a mean vector's beside them (what few tokens say counts for less);
/// steps are scaled by the square of that over the group's tokens, so that no vector moves by its own noise's measure.
void TensorTuner::step_groups(double rate) {
  int64_t entry = 0;
  std::vector<double> now, shift;
  for (size_t g = 0; g < groups_.size(); entry += groups_[g].entries(), ++g) {
    const CodeGroup& group = groups_[g];
    const int entries = group.entries(), width = group.width;
    const size_t first = static_cast<size_t>(group.unit) * q_.size() + group.first;
    const double prior = static_cast<double>(summed_) / entries;
    double error = 0, square = 0, shift_square = 0;
    for (int k = 0; k < width; ++k) error += error_[first + k] * error_[first + k] / width;
    const double length = rate * std::sqrt(error);
    now.assign(static_cast<size_t>(entries) * width, 0);
    shift.assign(width, 0);
    for (int c = 0; c < entries; ++c) {
      const auto count = static_cast<double>(count_[entry + c]);
      for (int k = 0; k < width; ++k) {
        const double sum = vector_sum_[group.vectors + int64_t{c} * width + k];
        now[c * width + k] = sum / (count + prior);
        square += count / static_cast<double>(summed_) * now[c * width + k] * now[c * width + k] / width;
        shift[k] += sum / static_cast<double>(summed_);
      }
    }
    for (const double s : shift) shift_square += s * s / width;
    update(vectors_.square[g], square, kSquareDecay);
    update(shifts_.square[g], shift_square, kSquareDecay);
    const double scale = std::sqrt(unbiased(vectors_.square[g], kSquareDecay, steps_));
    // Gradients that all but cancel over a group's vectors are rounding, and no direction.
    const double shift_scale =
        std::max(std::sqrt(unbiased(shifts_.square[g], kSquareDecay, steps_)), kRounding * scale);
    const auto move = [&](float& mean, double gradient, double by) {
      update(mean, gradient, kMeanDecay);
      return by > 0 ? length * unbiased(mean, kMeanDecay, steps_) / by : 0.0;
    };
    for (int k = 0; k < width; ++k) shift[k] = move(shifts_.mean[first + k], shift[k], shift_scale);
    for (int64_t i = 0; i < int64_t{entries} * width; ++i) {
      const double by = entries > 1 ? move(vectors_.mean[group.vectors + i], now[i], scale) : 0;
      q_.vectors[group.vectors + i] -= static_cast<float>(by + shift[i % width]);
    }
  }
}

/// Of A's row i and column j the unit is what changes coordinate i by its error over the root of N where all columns
/// move.
void TensorTuner::step_transforms(double rate) {
  const int64_t n = q_.size();
  for (int64_t u = 0; u < q_.units; ++u) {
    const double* sum = transform_sum_[u].const_data_ptr<double>();
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const double size = size_[u * n + j];
        if (!(size > 0)) continue;
        const int64_t at = (u * n + i) * n + j;
        const double now = sum[i * n + j] / (static_cast<double>(summed_) * size);
        update(transform_.mean[at], now, kMeanDecay);
        update(transform_.square[at], now * now, kSquareDecay);
        const double scale = std::sqrt(unbiased(transform_.square[at], kSquareDecay, steps_));
        if (!(scale > 0)) continue;
        const double length = rate * error_[u * n + i] / (size * std::sqrt(static_cast<double>(n)));
        added_[at] -= static_cast<float>(length * unbiased(transform_.mean[at], kMeanDecay, steps_) / scale);
      }
    }
    transform_sum_[u].zero_();
    const at::Tensor base = unit(base_inverse_, u);
    const at::Tensor inverse = base + at::matmul(base, unit(added_, u));
    std::copy_n(inverse.const_data_ptr<float>(), n * n, q_.inverse.begin() + u * n * n);
  }
}

}  // namespace kvcc
