#include "calib/cli/text_source.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "calib/model/self_sample.h"
#include "formats/core/error.h"

namespace kvcc::cli {

TextSource::TextSource(const ModelFiles& files, const TextOptions& options, const Common& common,
                       const std::string& default_dataset)
    : files_(files), options_(options), common_(common) {
  if (!options.datasets.empty()) {
    parts_ = parse_datasets(options.datasets);
  } else if (!options.is_given()) {
    parts_ = {{default_dataset, 1}};
  }
  const auto needs_tokenizer = [](const DatasetPart& part) {
    return part.name != "self" && !part.name.ends_with(".npy");
  };
  const bool texts = !options.text.empty() || std::any_of(parts_.begin(), parts_.end(), needs_tokenizer);
  const bool only_self = parts_.size() == 1 && parts_[0].name == "self";
  if (texts || (options.bos == "on" && !only_self)) tokenizer_ = make_tokenizer(files.tokenizer);
}

MixtureRequest TextSource::request() {
  MixtureRequest request;
  request.parts = parts_;
  request.self_bos = files_.config.bos_id >= 0;
  CorpusRequest& corpus = request.request;
  corpus.files = options_.text;
  corpus.ids = options_.ids;
  corpus.bos = options_.bos;
  corpus.field = options_.field;
  corpus.packing = options_.packing == "document" ? Packing::document : Packing::packed;
  corpus.cache_dir = common_.cache_dir;
  corpus.chat = [this](const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools) {
    if (!chat_) chat_ = std::make_unique<ChatTemplate>(files_);
    return chat_->render(messages, tools);
  };
  auto progress = std::make_shared<std::optional<Progress>>();
  corpus.progress = [this, progress](uint64_t done, uint64_t total) {
    if (!*progress) progress->emplace("tokenise, bytes", total, common_.quiet);
    (*progress)->set(done);
    if (done >= total) progress->reset();
  };
  return request;
}

MixedSamples TextSource::finished(MixedSamples mixed, int64_t wanted, int64_t seqlen, const char* what) const {
  const auto there = static_cast<int64_t>(mixed.ids.size());
  if (there < wanted) spdlog::warn("{} has {} {} only, {} were asked for", mixed.name(), there, what, wanted);
  const int64_t vocab = files_.config.vocab;
  for (size_t i = 0; i < mixed.ids.size(); ++i) {
    std::vector<int32_t>& ids = mixed.ids[i];
    const auto wrong = std::find_if(ids.begin(), ids.end(), [vocab](int32_t id) { return id >= vocab; });
    if (wrong != ids.end()) {
      const std::string_view one(what, std::strlen(what) - 1);
      throw bad_input(fmt::format("{}: {} {}, token {}", mixed.name(), one, i, wrong - ids.begin()),
                      fmt::format("id {}", *wrong), fmt::format("0 to {}, the model's", vocab - 1),
                      "the ids belong to another tokenizer");
    }
    if (ids.empty()) ids.resize(static_cast<size_t>(seqlen));
  }
  return mixed;
}

MixedSamples TextSource::draw(int64_t samples, int64_t seqlen, uint64_t seed) {
  return finished(draw_mixture(request(), tokenizer_.get(), samples, seqlen, seed), samples, seqlen, "samples");
}

MixedSamples TextSource::cut(int64_t windows, int64_t seqlen) {
  const bool only_self = parts_.size() == 1 && parts_[0].name == "self";
  const int64_t count = windows == 0 && only_self ? 8 : windows;
  return finished(cut_mixture(request(), tokenizer_.get(), count, seqlen), windows, seqlen, "windows");
}

std::vector<std::vector<int32_t>> TextSource::sample_self(MixedSamples& mixed, int64_t seqlen, uint64_t seed,
                                                          std::vector<std::vector<int32_t>> kept) const {
  const int64_t count = mixed.self_samples;
  if (count == 0) return {};
  const bool fits = static_cast<int64_t>(kept.size()) == count &&
                    std::all_of(kept.begin(), kept.end(), [&](const std::vector<int32_t>& row) {
                      return static_cast<int64_t>(row.size()) == seqlen;
                    });
  if (!fits) {
    Progress progress("sampling", static_cast<uint64_t>(seqlen), common_.quiet);
    kept = sample_from_model(files_, count, seqlen, seed, common_.threads, [&](int64_t done) { progress.set(done); });
  }
  mixed.fill_self(kept);
  return kept;
}

}  // namespace kvcc::cli
