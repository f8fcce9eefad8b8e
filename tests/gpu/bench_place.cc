#include "tests/gpu/bench_place.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>

#include "formats/layout/mma_launch.h"
#include "tests/gpu/baseline/baseline.h"
#include "tests/gpu/baseline/fp16.cuh"
#include "tests/gpu/baseline/kvquant.cuh"
#include "tests/gpu/fill.h"

namespace kvcc::gpu {

Place::Place(Launcher& launcher, Bench& bench, const Model& model, int tokens, const Rotary& rotary)
    : launcher_(launcher),
      bench_(bench),
      model_(model),
      tokens_(tokens),
      rows_(model.heads * model.group),
      pages_(tokens / KVCC_PAGE_TOKENS),
      tensor_bytes_(size_t{2} * tokens * model.heads * kHeadDim) {
  // Copies that together are four times the second-level cache are used in turn.
  copies_ = static_cast<int>(std::clamp<size_t>(4 * launcher.device().l2_bytes / tensor_bytes_ + 1, 1, 64));
  key_ = Array<uint8_t>(launcher, tensor_bytes_ * copies_);
  value_ = Array<uint8_t>(launcher, tensor_bytes_ * copies_);
  fill(key_.data(), key_.size(), 1, true);
  fill(value_.data(), value_.size(), 2, true);
  query_ = Array<uint16_t>(launcher, static_cast<size_t>(rows_) * kHeadDim);
  fill(query_.data(), query_.size() * 2, 3, true);
  weights_ = Array<uint16_t>(launcher, static_cast<size_t>(rows_) * tokens);
  fill(weights_.data(), weights_.size() * 2, 4, true);
  float_query_ = Array<float>(launcher, std::vector<float>(static_cast<size_t>(rows_) * kHeadDim, 0.5f));
  float_weights_ = Array<float>(launcher, std::vector<float>(static_cast<size_t>(rows_) * tokens, 1.0f / 4096));
  scores_ = Array<float>(launcher, static_cast<size_t>(rows_) * tokens);
  scores_.fill(0);
  out_ = Array<float>(launcher, static_cast<size_t>(rows_) * kHeadDim);
  out_.fill(0);
  splits_ = kvcc_mma_splits(tokens, model.heads, model.group, 1, launcher.device().multiprocessors);
  partial_ = Array<float>(launcher, static_cast<size_t>(splits_) * rows_ * (kHeadDim + 2));
  std::vector<int32_t> table(pages_);
  for (int i = 0; i < pages_; ++i) table[i] = i;
  std::mt19937 random(7);
  std::shuffle(table.begin(), table.end(), random);
  page_table_ = Array<int32_t>(launcher, table);
  length_ = Array<int32_t>(launcher, std::vector<int32_t>{tokens});
  cosine_ = Array<float>(launcher, rotary.cosine);
  sine_ = Array<float>(launcher, rotary.sine);
  base_cosine_ = Array<float>(launcher, rotary.base_cosine);
  base_sine_ = Array<float>(launcher, rotary.base_sine);
  relative_cosine_ = Array<uint16_t>(launcher, rotary.relative_cosine);
  relative_sine_ = Array<uint16_t>(launcher, rotary.relative_sine);
}

void Place::fill(void* to, size_t bytes, uint32_t seed, bool normal) {
  FillParams p{static_cast<uint32_t*>(to), static_cast<int64_t>(bytes / 4), seed, normal, 0};
  p.blocks = static_cast<int32_t>(std::min<int64_t>((p.words + KVCC_THREADS - 1) / KVCC_THREADS, 4096));
  launcher_.launch(fill_kernel(), {static_cast<uint32_t>(p.blocks), 1, 1}, &p, "fill");
}

double Place::add(const std::string& family, const std::string& kernel, int bits, double bytes,
                  const std::function<void(int)>& launch, int most, const std::function<void()>& reset) {
  Row row{model_.name, model_.heads, model_.group, kHeadDim, tokens_, family, kernel, bits, bytes, 0, 0, 0};
  if (launcher_.device().has_clock) {
    const int first = std::min(most, std::max(copies_, 2));
    launcher_.time(1, first, launch, reset);  // warm
    const double each = std::max(launcher_.time(1, first, launch, reset)[0] / first, 1e-4);
    const int launches = std::min(most, std::max(first, static_cast<int>(std::min(4.0 / each, 256.0))));
    const int samples = std::clamp(static_cast<int>(150.0 / (each * launches)), 5, 25);
    std::vector<double> times = launcher_.time(samples, launches, launch, reset);
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    row.milliseconds = times[times.size() / 2] / launches;
  } else {
    launcher_.time(1, 1, launch, reset);
  }
  launcher_.wait((family + ", " + kernel).c_str());
  bench_.rows.push_back(row);
  return row.milliseconds;
}

void Place::expect_results(const Array<float>& results, const std::string& what) {
  std::vector<float> found = results.download();
  bool any = false;
  for (const float x : found) {
    if (!std::isfinite(x)) throw std::runtime_error(what + ": a result is not finite");
    any |= x != 0;
  }
  if (!any) throw std::runtime_error(what + ": all results are 0");
  results.fill(0);
}

void Place::time_fp16() {
  const Fp16Kernels kernels = fp16_kernels(kHeadDim);
  Fp16Params p{};
  p.page_table = page_table_.data();
  p.lengths = length_.data();
  p.query = query_.data();
  p.weights = weights_.data();
  p.scores = scores_.data();
  p.partial = partial_.data();
  p.out = out_.data();
  p.stride = tokens_;
  p.multiplier = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  p.group = model_.group;
  p.splits = splits_;
  p.sequences = 1;
  p.heads = model_.heads;
  p.max_pages = pages_;
  const auto at = [&](int i) {
    p.key_pages = key_.data() + i % copies_ * tensor_bytes_;
    p.value_pages = value_.data() + i % copies_ * tensor_bytes_;
  };
  const double bytes = static_cast<double>(tensor_bytes_), row = static_cast<double>(rows_) * tokens_;
  add("key_scores", "fp16", 16, bytes + 4 * row, [&](int i) {
    at(i);
    launcher_.launch(kernels.key_scores, fp16_grid(&p), &p, "fp16 key_scores");
  });
  expect_results(scores_, "fp16 key_scores");
  add("value_mix", "fp16", 16, bytes + 2 * row, [&](int i) {
    at(i);
    launcher_.launch(kernels.value_mix, fp16_grid(&p), &p, "fp16 value_mix");
    if (splits_ > 1) launcher_.launch(kernels.mix_merge, fp16_merge_grid(&p), &p, "fp16 value_mix, merge");
  });
  expect_results(out_, "fp16 value_mix");
  add("attention", "fp16", 16, 2 * bytes, [&](int i) {
    at(i);
    launcher_.launch(kernels.attention, fp16_grid(&p), &p, "fp16 attention");
    if (splits_ > 1) launcher_.launch(kernels.attention_merge, fp16_merge_grid(&p), &p, "fp16 attention, merge");
  });
  expect_results(out_, "fp16 attention");
}

void Place::time_kvquant(int bits) {
  const KvquantKernels kernels = kvquant_kernels(bits, kHeadDim);
  const size_t words = static_cast<size_t>(model_.heads) * (kHeadDim / 32) * bits * tokens_;
  const int copies = static_cast<int>(std::clamp<size_t>(4 * launcher_.device().l2_bytes / (4 * words) + 1, 1, 256));
  const Array<uint32_t> codes(launcher_, words * copies);
  fill(codes.data(), words * copies * 4, 5, false);
  const int columns = model_.heads * kHeadDim, each = std::max(1, static_cast<int>(columns * kOutliers));
  std::vector<int32_t> ends(1, 0), column, rows;
  for (int t = 0; t < tokens_; ++t) {
    for (int j = 0; j < each; ++j) {
      if (column.size() % kOutliersAThread == 0) rows.push_back(t);
      column.push_back(static_cast<int32_t>((int64_t{columns} * j + (t * 37 + j * 11) % 100) / each));
    }
    ends.push_back(static_cast<int32_t>(column.size()));
  }
  const Array<int32_t> d_ends(launcher_, ends), d_column(launcher_, column), d_rows(launcher_, rows);
  const Array<float> outliers(launcher_, std::vector<float>(column.size(), 0.25f));
  const Array<float> levels(launcher_, std::vector<float>(static_cast<size_t>(columns) << bits, 0.125f));
  const Array<float> range(launcher_, std::vector<float>(static_cast<size_t>(tokens_) * 2, 0.5f));
  KvquantParams p{
      nullptr,         levels.data(), range.data(),        d_ends.data(),         d_column.data(),
      outliers.data(), d_rows.data(), float_query_.data(), float_weights_.data(), scores_.data(),
      10000.0f,        tokens_,       model_.heads,        model_.group,          static_cast<int32_t>(column.size())};
  const double dense = 4.0 * words, sparse = 8.0 * column.size(), row = 4.0 * rows_ * tokens_;
  const std::string name = "KVQuant-like " + std::to_string(bits) + " bits";
  const auto time = [&](const char* family, const std::string& kernel, double bytes, const Kernel& main,
                        const Kernel& outlier) {
    add(family, kernel, bits, bytes, [&](int i) {
      p.codes = codes.data() + i % copies * words;
      launcher_.launch(main, kvquant_grid(&p), &p, kernel.c_str());
      launcher_.launch(outlier, kvquant_outlier_grid(&p), &p, kernel.c_str());
    });
  };
  time("key_scores", name + ", as deployed", dense + sparse + row, kernels.key_scores, kernels.key_outliers);
  expect_results(scores_, name);
  time("key_scores", name + ", as benchmarked", dense + sparse + row, kernels.fast_key_scores, kernels.key_outliers);
  expect_results(scores_, name);
  p.out = out_.data();
  time("value_mix", name + ", as deployed", dense + sparse + row, kernels.value_mix, kernels.value_outliers);
  expect_results(out_, name);
}

}  // namespace kvcc::gpu
