#include "calib/collect/sample_pass.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace kvcc {
namespace {

/// Keeps the tapped tensors. In the first layer that has any, where nothing before them needs a gradient, they are
/// where it starts.
class RecordTap : public KvTap {
 public:
  explicit RecordTap(int first) : first_(first) {}
  at::Tensor key, value;
  void before_rope(int layer, at::Tensor& k, at::Tensor& v) override {
    if (layer == first_ && c10::GradMode::is_enabled()) {
      k = k.detach().requires_grad_();
      v = v.detach().requires_grad_();
    }
    key = k;
    value = v;
  }

 private:
  int first_;
};

/// x [T, …]: the first token with a value that is not finite.
std::optional<int64_t> first_nonfinite(const at::Tensor& x) {
  const at::Tensor finite = at::isfinite(x.detach());
  if (finite.all().item<bool>()) return std::nullopt;
  return finite.reshape({x.size(0), -1}).all(1).logical_not().nonzero()[0].item<int64_t>();
}

class Pass {
 public:
  Pass(const Decoder& decoder, const std::vector<int32_t>& ids, const SamplePass& options)
      : decoder_(decoder),
        options_(options),
        first_(decoder.config().cached_layers().front()),
        ids_(ids_tensor(ids)),
        angles_(decoder.rope().angles(0, static_cast<int64_t>(ids.size())).to(decoder.device())) {}

  double run() {
    at::Tensor hidden = forward();
    if (!options_.fisher) return std::numeric_limits<double>::quiet_NaN();
    double loss = 0;
    at::Tensor gradient = head_gradient(hidden, loss);
    hidden.reset();
    options_.weights_from >= 0 ? weights_backward(gradient) : backward(gradient);
    return loss;
  }

 private:
  struct Kept {
    at::Tensor input, key, value, output;
  };

  void check(const at::Tensor& x, int layer, const char* what) const {
    const std::optional<int64_t> token = first_nonfinite(x);
    if (!token) return;
    std::string weights;
    for (int l = -1; l <= layer && weights.empty(); ++l) weights = decoder_.nonfinite_weights(l);
    throw NonFinite(ErrorKind::failed,
                    (layer < 0 ? std::string("embedding") : "layer " + std::to_string(layer) + " " + what) + ", " +
                        options_.sample + ", token " + std::to_string(*token),
                    "NaN or infinity", "finite values",
                    weights.empty() ? "--on-nonfinite skip leaves such samples out"
                                    : "not finite in the model's weights: " + weights);
  }

  /// Runs a layer; with a gradient when `differentiable`. `again`: what it returns is known, its gradient is not.
  Kept run_layer(int layer, const at::Tensor& input, bool differentiable, bool again = false) const {
    const at::AutoGradMode mode(differentiable);
    RecordTap tap(first_);
    Kept kept;
    const bool for_weights = options_.weights_from >= 0;
    kept.input = differentiable && (for_weights || layer > first_) ? input.detach().requires_grad_() : input.detach();
    KvTap* const watched = for_weights ? nullptr : &tap;
    kept.output = again ? decoder_.layer_again(layer, kept.input, angles_, watched)
                        : decoder_.layer(layer, kept.input, angles_, watched);
    kept.key = tap.key;
    kept.value = tap.value;
    return kept;
  }

  bool recomputes() const { return options_.recompute || options_.weights_from >= 0; }

  at::Tensor forward() {
    at::Tensor x = decoder_.embed(ids_);
    check(x[0], -1, "");
    for (int l = 0; l < decoder_.layers(); ++l) {
      check_interrupt();
      Kept kept = run_layer(l, x, options_.fisher && !recomputes());
      if (kept.key.defined()) {
        check(kept.key[0], l, "key");
        check(kept.value[0], l, "value");
      }
      check(kept.output[0], l, "output");
      x = kept.output.detach();
      if (!options_.fisher) {
        if (kept.key.defined()) options_.done(l, {kept.key[0], kept.value[0], {}, {}});
      } else if (recomputes()) {
        kept_.push_back({kept.input, {}, {}, {}});
      } else {
        kept_.push_back(std::move(kept));
      }
      decoder_.release();
      if (options_.progress) options_.progress(1);
    }
    return x;
  }

  /// Gradient of the summed loss with respect to the last layer's output: softmax minus one-hot, through head and norm.
  at::Tensor head_gradient(const at::Tensor& hidden, double& loss) const {
    const at::AutoGradMode with_gradient(true);
    const at::Tensor input = hidden.detach().requires_grad_();
    const at::Tensor output = decoder_.final_norm(input);
    const at::Tensor normed = output.detach()[0];
    const int64_t predictions = normed.size(0) - 1, chunk = logits_chunk_rows(decoder_.config());
    const at::Tensor head = decoder_.head();
    at::Tensor gradient = at::zeros_like(normed);  // the last token predicts nothing: its row stays zero
    const at::AutoGradMode without(false);
    for (int64_t begin = 0; begin < predictions; begin += chunk) {
      check_interrupt();
      const int64_t rows = std::min(chunk, predictions - begin);
      const at::Tensor logits = decoder_.logits(normed.narrow(0, begin, rows), head);
      at::Tensor share = at::log_softmax(logits, -1);
      const at::Tensor labels = ids_[0].narrow(0, begin + 1, rows).unsqueeze(1).to(decoder_.device());
      loss -= share.gather(1, labels).to(at::kDouble).sum().item<double>();
      share.exp_();
      share.scatter_add_(1, labels, at::full({rows, 1}, -1.0, share.options()));
      gradient.narrow(0, begin, rows).copy_(decoder_.logits_backward(share, logits, head));
    }
    if (!std::isfinite(loss)) {
      const std::string weights = decoder_.nonfinite_weights(-1);
      throw NonFinite(ErrorKind::failed, "logits, " + options_.sample, "a loss that is not finite", "a finite loss",
                      weights.empty() ? "--on-nonfinite skip leaves such samples out"
                                      : "not finite in the model's weights: " + weights);
    }
    return torch::autograd::grad({output}, {input}, {gradient.unsqueeze(0)})[0];
  }

  /// The products of a layer tell of their gradients while its input's is found.
  void weights_backward(at::Tensor gradient) {
    for (int l = decoder_.layers() - 1; l >= options_.weights_from; --l) {
      check_interrupt();
      const Kept kept = run_layer(l, kept_[l].input, true, true);
      kept_[l] = {};
      gradient = torch::autograd::grad({kept.output}, {kept.input}, {gradient})[0];
      check(gradient[0], l, "gradient");
      decoder_.release();
      if (options_.progress) options_.progress(2);
    }
  }

  void backward(at::Tensor gradient) {
    for (int l = decoder_.layers() - 1; l >= 0; --l) {
      check_interrupt();
      Kept kept = std::move(kept_.back());
      kept_.pop_back();
      if (options_.recompute && l >= first_) kept = run_layer(l, kept.input, true, true);
      const bool cached = kept.key.defined() && l >= first_;
      std::vector<at::Tensor> wanted;
      if (cached) wanted = {kept.key, kept.value};
      if (l > first_) wanted.push_back(kept.input);
      if (!wanted.empty()) {
        const std::vector<at::Tensor> found = torch::autograd::grad({kept.output}, wanted, {gradient});
        if (l > first_) gradient = found.back();
        if (cached) {
          check(found[0][0], l, "key gradient");
          check(found[1][0], l, "value gradient");
          const LayerActs acts{kept.key.detach()[0], kept.value.detach()[0], found[0][0], found[1][0]};
          kept = {};
          options_.done(l, acts);
        }
      }
      decoder_.release();
      if (options_.progress) options_.progress(2);
    }
  }

  const Decoder& decoder_;
  const SamplePass& options_;
  int first_;  ///< layer with a cache
  at::Tensor ids_;
  Rope::Angles angles_;
  std::vector<Kept> kept_;
};

}  // namespace

double run_sample(const Decoder& decoder, const std::vector<int32_t>& ids, const SamplePass& pass) {
  return Pass(decoder, ids, pass).run();
}

uint64_t saved_bytes_per_token(const DecoderConfig& c, int64_t seqlen) {
  const LatentConfig& latent = c.latent;
  const int64_t query = c.query_heads * (c.head_dim + (latent.used ? latent.nope_dim : 0));
  const int64_t key = c.kv_heads * c.head_dim, value = c.kv_heads * c.value_head_dim;
  const ExpertsConfig& e = c.experts;
  const int64_t experts = e.count > 0 ? e.used * e.feed_forward + e.shared_feed_forward : 0;
  // Under GQA keys and values for every query head; of latents what they expand to.
  const int64_t expanded = latent.used    ? c.query_heads * (2 * latent.nope_dim + c.head_dim + latent.value_dim)
                           : query != key ? 2 * query
                                          : 0;
  // Input and middle; query, attention's output and its log-sum-exp; key before and after RoPE, value; gate,
  // silu(gate), up. A soft cap keeps scores before and after it and their softmax.
  uint64_t floats =
      2 * c.hidden + 2 * query + c.query_heads + expanded + 2 * key + value + 3 * std::max(c.feed_forward, experts);
  if (c.attention_softcap > 0) floats += 3 * c.query_heads * seqlen;
  return sizeof(float) * floats;
}

}  // namespace kvcc
