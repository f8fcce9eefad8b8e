#include "calib/cli/fit_artifact.h"

#include <optional>

#include "calib/fit/usage.h"
#include "formats/core/json.h"

namespace kvcc::cli {
namespace {

static_assert(kUsageBins == kNormalisedBins, "the fit's histograms are the artifact's");

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// As the decoder's configuration says; folders made without a model have none.
std::optional<bool> attention_bias(const ActivationsSettings& settings) {
  if (settings.model.attention_bias) return settings.model.attention_bias;
  if (settings.decoder_json.empty()) return {};
  const auto decoder = parse_json<nlohmann::ordered_json>(settings.decoder_json, "decoder");
  if (!decoder.contains("attention_bias")) return {};
  return decoder["attention_bias"].is_boolean() ? std::optional(decoder["attention_bias"].get<bool>()) : std::nullopt;
}

/// "" of activations of the model's own weights.
std::string quantised_weights(const ActivationsSettings& settings) {
  if (settings.decoder_json.empty()) return "";
  const auto decoder = parse_json<nlohmann::ordered_json>(settings.decoder_json, "decoder");
  const auto found = decoder.find("quantised_weights");
  return found != decoder.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

Codebook empty_codebook(const ActivationsSettings& settings, const std::string& activations_sha256,
                        const Scheme& scheme) {
  Codebook book;
  book.scheme = scheme;
  book.model = settings.model;
  book.model.attention_bias = attention_bias(settings);
  book.layer_index.assign(settings.layer_index.begin(), settings.layer_index.end());
  Provenance& from = book.provenance;
  from.tool_version = KVCC_VERSION;
  from.dataset_name = settings.text_name;
  from.dataset_sha256 = settings.text_sha256;
  from.dataset_flavour = settings.text_flavour;
  from.tokenizer_sha256 = settings.tokenizer_sha256;
  from.bos = settings.bos;
  from.samples = settings.samples;
  from.seqlen = settings.seqlen;
  from.seed = settings.seed;
  from.tokens = settings.tokens();
  if (settings.samples_asked > settings.samples) from.samples_asked = settings.samples_asked;
  from.activations_sha256 = activations_sha256;
  from.quantised_weights = quantised_weights(settings);
  from.sources_json = sources_json(settings);
  return book;
}

void append_statistics(TensorCodebooks& to, const TensorFit& fit) {
  append(to.stats.min, fit.min);
  append(to.stats.max, fit.max);
  append(to.stats.mean, fit.mean);
  append(to.stats.variance, fit.variance);
  append(to.stats.fisher, fit.fisher);
  append(to.stats.first_token_share, fit.first_token_share);
  append(to.stats.drift, fit.drift);
  append(to.stats.sample_share, fit.sample_share);
  append(to.stats.token_share, fit.token_share);
  append(to.stats.heaviest_sample, fit.heaviest_sample);
  append(to.stats.token_sample, fit.token_sample);
  append(to.stats.token_position, fit.token_position);
  append(to.stats.reached, fit.reached);
}

void append_layer(TensorCodebooks& to, const TensorFit& fit) {
  to.codes = fit.table.stride;
  append(to.codebook, fit.table.levels);
  append(to.bits, fit.table.bits);
  append(to.scale, fit.scale);
  append(to.zero, fit.zero);
  append(to.threshold_lower, fit.threshold_lower);
  append(to.threshold_upper, fit.threshold_upper);
  append(to.norm_scale, fit.norm_scale);
  append(to.norm_offset, fit.norm_offset);
  append(to.outlier_fraction, fit.outlier_fraction);
  append(to.stats.weighted_sse, fit.weighted_sse);
  append(to.stats.sqnr_db, fit.sqnr_db);
  append(to.stats.fit_gap_bound, fit.fit_gap_bound);
  append(to.stats.distinct, fit.distinct);
  append(to.stats.histogram, fit.histogram);
  append(to.stats.code_use, fit.code_use);
  append(to.stats.held_out_outliers, fit.held_out_outliers);
  append_statistics(to, fit);
}

}  // namespace kvcc::cli
