#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "calib/model/decoder_layer.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

at::Tensor activate(const DecoderConfig& c, const at::Tensor& x) {
  switch (c.activation) {
    case Activation::silu:
      return at::silu(x);
    case Activation::gelu_tanh:
      return at::gelu(x, "tanh");
  }
  throw Error(ErrorKind::failed, "decoder", "activation without code");
}

/// down(activation(gate(x)) * up(x)).
at::Tensor gated(const DecoderConfig& c, const at::Tensor& x, const Linear& gate, const Linear& up, const Linear& down,
                 Want want = Want::value) {
  return project(activate(c, project(x, gate)) * project(x, up), down, want);
}

/// Scores [tokens, experts] with all but those of the best groups at `excluded`. A group is as good as its best expert,
/// or under sigmoid scores as its best two (DeepSeek-V2 and V3).
at::Tensor of_best_groups(const ExpertsConfig& e, const at::Tensor& scores, double excluded) {
  if (e.groups_used == e.groups) return scores;
  const at::Tensor grouped = scores.view({-1, e.groups, e.count / e.groups});
  const at::Tensor best =
      e.sigmoid ? std::get<0>(grouped.topk(2, -1)).sum(-1) : std::get<0>(grouped.max(-1));  // [tokens, groups]
  const at::Tensor chosen = std::get<1>(best.topk(e.groups_used, -1));
  const at::Tensor left = at::ones_like(best, at::kBool).scatter(1, chosen, false);
  return grouped.masked_fill(left.unsqueeze(-1), excluded).view({-1, e.count});
}

/// x [tokens, hidden].
at::Tensor mix_experts(const DecoderConfig& c, const DecoderLayer& layer, const at::Tensor& x) {
  const ExpertsConfig& e = c.experts;
  const at::Tensor logits = project(x, layer[Part::router]);
  const at::Tensor scores = e.sigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
  at::Tensor choice = scores.detach();
  if (layer.has(Part::router_bias)) choice = choice + layer[Part::router_bias].weight;
  choice = of_best_groups(e, choice, e.sigmoid ? -INFINITY : 0.0);
  const at::Tensor chosen = std::get<1>(choice.topk(e.used, -1));  // [tokens, used]
  at::Tensor weights = scores.gather(1, chosen);
  if (e.normalise) weights = weights / (weights.sum(-1, true) + (e.sigmoid ? 1e-20 : 0.0));
  if (e.scale != 1) weights = weights * e.scale;

  at::Tensor sum = at::zeros_like(x);
  for (int64_t expert = 0; expert < e.count; ++expert) {
    const at::Tensor places = (chosen == expert).nonzero();  // [tokens of the expert, 2]
    if (places.size(0) == 0) continue;
    const at::Tensor token = places.select(1, 0), slot = places.select(1, 1);
    const auto& [gate, up, down] = layer.experts[static_cast<size_t>(expert)];
    const at::Tensor share = weights.index({token, slot}).unsqueeze(1);
    sum = sum.index_add(0, token, gated(c, x.index_select(0, token), gate, up, down) * share);
  }
  return sum;
}

}  // namespace

at::Tensor feed_forward(const DecoderConfig& c, const DecoderLayer& layer, const at::Tensor& x, Want want) {
  if (layer.has(Part::gate_up)) {
    const std::vector<at::Tensor> both = project(x, layer[Part::gate_up]).chunk(2, -1);
    return project(activate(c, both[0]) * both[1], layer[Part::down], want);
  }
  if (layer.experts.empty()) return gated(c, x, layer[Part::gate], layer[Part::up], layer[Part::down], want);
  at::Tensor mixed = mix_experts(c, layer, x.reshape({-1, c.hidden})).view(x.sizes());
  if (layer.has(Part::shared_gate)) {
    mixed = mixed + gated(c, x, layer[Part::shared_gate], layer[Part::shared_up], layer[Part::shared_down]);
  }
  return mixed;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return weight * (x * (x.pow(2).mean(-1, true) + epsilon).rsqrt());
}

at::Tensor norm_if(const DecoderConfig& c, const DecoderLayer& layer, Part part, const at::Tensor& x) {
  return layer.has(part) ? rms_norm(x, layer[part].weight, c.norm_epsilon) : x;
}

}  // namespace kvcc
