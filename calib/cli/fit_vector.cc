#include "calib/cli/fit_vector.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace kvcc::cli {
namespace {

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void append_tensor(TensorCodebooks& to, const TensorVectors& fit) {
  const VectorQuantiser& q = fit.quantiser;
  to.units = q.units;
  to.coordinates = q.size();
  append(to.group_width, q.width);
  append(to.group_bits, q.bits);
  append(to.vectors, q.vectors);
  append(to.forward, q.forward);
  append(to.inverse, q.inverse);
  append(to.rotation_mean, q.mean);
  append(to.channel_order, fit.order);
  append(to.from_key, fit.from_key);
  append(to.outlier_fraction, std::vector<float>(q.heads));
  append(to.stats.weighted_sse, fit.weighted_sse);
  append(to.stats.sqnr_db, fit.sqnr_db);
  append(to.stats.energy, fit.energy);
  if (std::isfinite(fit.predicted_fitted))
    to.stats.predicted_fitted.push_back(static_cast<float>(fit.predicted_fitted));
  if (std::isfinite(fit.predicted_held_out)) {
    to.stats.predicted_held_out.push_back(static_cast<float>(fit.predicted_held_out));
  }
}

double sum(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.empty() && b.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(a.begin(), a.end(), 0.0) + std::accumulate(b.begin(), b.end(), 0.0);
}

std::string tensor_text(const TensorScheme& t) {
  const char* space = t.rotation == Rotation::fklt_layer  ? "the Fisher-KLT of all KV heads of the layer"
                      : t.rotation == Rotation::fklt_head ? "the Fisher-KLT of each head"
                                                          : "channels that are correlated, without a transform";
  const std::string width = t.width == 0 ? "2 or 4, whichever codes better" : fmt::format("{}", t.width);
  const char* rest = t.predicted ? "what the token's decoded keys do not predict, in " : "";
  return fmt::format("{}{}, in groups of {} coordinates of 0 to {} bits", rest, space, width, t.bits);
}

}  // namespace

int64_t default_held_out(int64_t samples) { return samples / 8; }

void append_vectors(LayerPart& part, const LayerVectors& fit) {
  append_tensor(part.key, fit.key);
  append_tensor(part.value, fit.value);
}

Predicted predicted(const Codebook& book) {
  return {sum(book.key.stats.predicted_fitted, book.value.stats.predicted_fitted),
          sum(book.key.stats.predicted_held_out, book.value.stats.predicted_held_out)};
}

std::string explain_vector(const Scheme& scheme, int64_t held_out) {
  return fmt::format(
      "{}\n  keys:     {}\n  values:   {}\n  bits:     {:g} effective bits an element over the whole model, by what "
      "they "
      "save of the {}\n  k-means:  weighted, one codebook a group; {} samples held out of it\n  exact at inference: "
      "the "
      "first {} and the last {} tokens (fp16)\n",
      to_string(scheme), tensor_text(scheme.key), tensor_text(scheme.value), scheme.budget,
      scheme.weight == FitWeight::none ? "squared error" : "loss to second order", held_out, scheme.sink,
      scheme.residual);
}

}  // namespace kvcc::cli
