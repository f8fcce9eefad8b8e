#include "calib/refine/tuning_pass.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "formats/core/error.h"

namespace kvcc {
namespace {

/// Puts codes in the tensors' place. In the first layer that has any, where nothing before them needs a gradient, they
/// are where it starts.
class StraightThrough : public KvTap {
 public:
  StraightThrough(const Tuners& tuners, int first, bool again, int threads)
      : tuners_(tuners), first_(first), again_(again), threads_(threads) {}
  at::Tensor key, value;

  void before_rope(int layer, at::Tensor& k, at::Tensor& v) override {
    const std::string place = "layer " + std::to_string(layer);
    k = key = through(*tuners_.key.at(layer), k, layer, place + " key");
    if (tuners_.prediction.empty()) {
      v = value = through(*tuners_.value.at(layer), v, layer, place + " value");
      return;
    }
    // What keys tell comes back with the rest; values' codes make up for keys that change, so nothing of its gradient
    // is the keys'.
    const at::Tensor told = predicted(tuners_.prediction.at(layer), *tuners_.key.at(layer), v);
    v = value = through(*tuners_.value.at(layer), v - told, layer, place + " value") + told;
  }

 private:
  /// From the keys as the tuner has coded them; 0 for tokens that are kept exactly.
  at::Tensor predicted(const KeyPrediction& prediction, const TensorTuner& keys, const at::Tensor& v) const {
    const at::AutoGradMode without(false);
    const at::Tensor coded = keys.coded().contiguous();
    at::Tensor out = at::empty(v.sizes(), at::kFloat);
    prediction.predict({coded.const_data_ptr<float>(), static_cast<size_t>(coded.numel())},
                       {out.mutable_data_ptr<float>(), static_cast<size_t>(out.numel())}, threads_);
    const auto [begin, end] = keys.coded_range();
    out.narrow(1, 0, begin).zero_();
    out.narrow(1, end, out.size(1) - end).zero_();
    return out;
  }

  at::Tensor through(TensorTuner& tuner, const at::Tensor& x, int layer, const std::string& place) const {
    at::Tensor coded;
    {
      const at::AutoGradMode without(false);
      coded = again_ ? tuner.coded() : tuner.quantise(x, threads_, place);
    }
    if (layer == first_) return c10::GradMode::is_enabled() ? coded.clone().requires_grad_() : coded;
    return x + (coded - x).detach();  // the same rounding with and without a gradient
  }

  const Tuners& tuners_;
  int first_;
  bool again_;  ///< the codes are those of the last pass
  int threads_;
};

struct Kept {
  at::Tensor input, key, value, output;
};

}  // namespace

double divergence(const Decoder& decoder, const at::Tensor& exact, const at::Tensor& coded, at::Tensor* gradient,
                  const std::string& place) {
  const at::AutoGradMode without(false);
  const int64_t predictions = exact.size(0) - 1, chunk = logits_chunk_rows(decoder.config());
  if (gradient != nullptr) *gradient = at::zeros_like(coded);  // the last token predicts nothing
  const at::Tensor head = decoder.head();
  double sum = 0;
  for (int64_t begin = 0; begin < predictions; begin += chunk) {
    check_interrupt();
    const int64_t rows = std::min(chunk, predictions - begin);
    const at::Tensor wanted = at::log_softmax(decoder.logits(exact.narrow(0, begin, rows), head), -1);
    const at::Tensor logits = decoder.logits(coded.narrow(0, begin, rows), head);
    at::Tensor found = at::log_softmax(logits, -1);
    const at::Tensor share = wanted.exp();
    sum += ((wanted - found) * share).sum(-1).to(at::kDouble).sum().item<double>();
    if (gradient == nullptr) continue;
    found.exp_().sub_(share);
    gradient->narrow(0, begin, rows).copy_(decoder.logits_backward(found, logits, head));
  }
  if (!std::isfinite(sum)) throw Error(ErrorKind::failed, place, "predictions that are not finite", "finite ones");
  return sum / static_cast<double>(std::max<int64_t>(predictions, 1));
}

double tuning_pass(const Decoder& decoder, const std::vector<int32_t>& ids, const at::Tensor& exact,
                   const Tuners& tuners, bool recompute, int threads, const std::string& place) {
  const int first = decoder.config().cached_layers().front();
  const Rope::Angles angles = decoder.rope().angles(0, static_cast<int64_t>(ids.size()));
  const auto run = [&](int layer, const at::Tensor& input, bool differentiable, bool again) {
    const at::AutoGradMode mode(differentiable);
    StraightThrough tap(tuners, first, again, threads);
    Kept kept;
    kept.input = differentiable && layer > first ? input.detach().requires_grad_() : input.detach();
    kept.output = decoder.layer(layer, kept.input, angles, &tap);
    kept.key = tap.key;
    kept.value = tap.value;
    return kept;
  };
  std::vector<Kept> layers;
  at::Tensor x;
  {
    const at::AutoGradMode without(false);
    x = decoder.embed(ids_tensor(ids));
  }
  for (int l = 0; l < decoder.layers(); ++l) {
    check_interrupt();
    Kept kept = run(l, x, !recompute && l >= first, false);
    x = kept.output.detach();
    layers.push_back(recompute || l < first ? Kept{kept.input, {}, {}, {}} : std::move(kept));
  }
  double kl = 0;
  at::Tensor gradient;
  {
    const at::AutoGradMode with(true);
    const at::Tensor hidden = x.detach().requires_grad_();
    const at::Tensor normed = decoder.final_norm(hidden);
    at::Tensor before;
    kl = divergence(decoder, exact, normed.detach()[0], &before, place);
    gradient = torch::autograd::grad({normed}, {hidden}, {before.unsqueeze(0)})[0];
  }
  for (int l = decoder.layers() - 1; l >= first; --l) {
    check_interrupt();
    Kept kept = std::move(layers.back());
    layers.pop_back();
    if (recompute) kept = run(l, kept.input, true, true);
    std::vector<at::Tensor> wanted;
    const bool cached = kept.key.defined();
    if (cached) wanted = {kept.key, kept.value};
    if (l > first) wanted.push_back(kept.input);
    const std::vector<at::Tensor> found = torch::autograd::grad({kept.output}, wanted, {gradient});
    if (l > first) gradient = found.back();
    kept = {};
    if (!cached) continue;
    const at::AutoGradMode without(false);
    for (const auto& [tuner, own] : {std::pair{tuners.key.at(l), found[0]}, {tuners.value.at(l), found[1]}}) {
      tuner->add(own);
      tuner->release();
    }
  }
  return kl;
}

}  // namespace kvcc
