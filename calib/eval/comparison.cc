#include "calib/eval/comparison.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_log_softmax.h>

#include <algorithm>
#include <utility>

namespace kvcc {
namespace {

int64_t most_likely(const float* row, int64_t vocab) { return std::max_element(row, row + vocab) - row; }

/// In place, row by row: the largest buffers of an evaluation are these.
at::Tensor log_softmax(at::Tensor logits) {
  at::_log_softmax_out(logits, logits, -1, /*half_to_float=*/false);
  return logits;
}

double divergence(const float* p, const float* log_p, const float* log_q, int64_t vocab) {
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    if (p[i] > 0) sum += static_cast<double>(p[i]) * (static_cast<double>(log_p[i]) - static_cast<double>(log_q[i]));
  }
  return sum;
}

}  // namespace

ReferenceChunk::ReferenceChunk(at::Tensor logits, std::vector<int32_t> labels)
    : log_probability_(log_softmax(std::move(logits))),
      probability_(log_probability_.exp()),
      labels_(std::move(labels)),
      top_(labels_.size()) {
  const int64_t vocab = log_probability_.size(1);
  const float* all = log_probability_.const_data_ptr<float>();
  at::parallel_for(0, static_cast<int64_t>(top_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) top_[row] = most_likely(all + row * vocab, vocab);
  });
}

void ReferenceChunk::add_self(Predictions& out) const {
  const int64_t vocab = log_probability_.size(1);
  for (size_t row = 0; row < labels_.size(); ++row) {
    out.nll.push_back(-log_probability_.const_data_ptr<float>()[static_cast<int64_t>(row) * vocab + labels_[row]]);
  }
  out.kl.resize(out.nll.size(), 0.0f);
  out.agreed.resize(out.nll.size(), 1);
}

void ReferenceChunk::add(at::Tensor logits, Predictions& out) const {
  const int64_t rows = static_cast<int64_t>(labels_.size()), vocab = log_probability_.size(1);
  const at::Tensor theirs = log_softmax(std::move(logits));
  const float *p = probability_.const_data_ptr<float>(), *log_p = log_probability_.const_data_ptr<float>(),
              *log_q = theirs.const_data_ptr<float>();
  const size_t before = out.nll.size();
  out.nll.resize(before + rows);
  out.kl.resize(before + rows);
  out.agreed.resize(before + rows);
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * vocab;
      out.nll[before + row] = -log_q[at + labels_[row]];
      out.kl[before + row] = static_cast<float>(divergence(p + at, log_p + at, log_q + at, vocab));
      out.agreed[before + row] = most_likely(log_q + at, vocab) == top_[row];
    }
  });
}

}  // namespace kvcc
