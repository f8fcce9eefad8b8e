// An activations folder by the same structure as an artifact: what needs no codebook.
#include "calib/fit/fit.h"
#include "calib/report/activation_ranges.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void append_layer(TensorCodebooks& to, const TensorFit& fit, bool fisher) {
  append(to.bits, fit.table.bits);
  append(to.stats.min, fit.min);
  append(to.stats.max, fit.max);
  append(to.stats.mean, fit.mean);
  append(to.stats.variance, fit.variance);
  append(to.stats.drift, fit.drift);
  if (!fisher) return;
  append(to.stats.fisher, fit.fisher);
  append(to.stats.first_token_share, fit.first_token_share);
  append(to.stats.sample_share, fit.sample_share);
  append(to.stats.token_share, fit.token_share);
  append(to.stats.heaviest_sample, fit.heaviest_sample);
  append(to.stats.token_sample, fit.token_sample);
  append(to.stats.token_position, fit.token_position);
}

}  // namespace

ReportData activations_report(const ActivationsReader& reader, int64_t samples, int threads,
                              const std::function<void()>& progress) {
  const ActivationsSettings& settings = reader.settings();
  const CacheShape& shape = settings.model.shape;
  Codebook book;
  book.scheme = parse_scheme("fp");
  book.model = settings.model;
  book.layer_index.assign(settings.layer_index.begin(), settings.layer_index.end());
  Provenance& from = book.provenance;
  from.dataset_name = settings.text_name;
  from.dataset_sha256 = settings.text_sha256;
  from.dataset_flavour = settings.text_flavour;
  from.tokenizer_sha256 = settings.tokenizer_sha256;
  from.bos = settings.bos;
  from.samples = samples;
  from.samples_asked = samples < settings.samples ? 0 : settings.samples_asked;
  from.seqlen = settings.seqlen;
  from.seed = settings.seed;
  from.tokens = settings.tokens(samples);
  from.activations_sha256 = reader.content_sha256();
  from.sources_json = sources_json(settings);
  const std::vector<Scheme> full = {book.scheme};
  RangeReader ranges(reader);
  for (int layer = 0; layer < shape.layers; ++layer) {
    check_interrupt();
    const LayerData data = read_layer(reader, layer, samples, threads, false);
    const LayerActivations activations{data.starts,          shape.kv_heads,  shape.head_dim,
                                       shape.value_head_dim, data.key,        data.key_grad,
                                       data.value,           data.value_grad, settings.layer_index[layer]};
    const LayerFit fit = fit_layer(activations, full, threads).front();
    append_layer(book.key, fit.key, settings.fisher);
    append_layer(book.value, fit.value, settings.fisher);
    ranges.add_layer(data, threads);
    if (progress) progress();
  }
  return report_data(std::move(book), &ranges.result(), "activations");
}

}  // namespace kvcc
