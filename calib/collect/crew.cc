#include "calib/collect/crew.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "formats/core/file.h"
#include "formats/core/json.h"
#include "formats/store/activations_manifest.h"

namespace kvcc {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kPoll{20};

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// A header line, and bytes after it.
std::string message(const Json& header, std::string_view payload = {}) {
  std::string text = dump(header) + "\n";
  return text.append(payload);
}

/// "model name	: …" of the first core; "" where there is none.
std::string processor() {
  std::error_code error;
  if (!std::filesystem::exists("/proc/cpuinfo", error)) return "";
  const std::string text = read_text_file("/proc/cpuinfo");
  const size_t name = text.find("model name");
  const size_t begin = name == std::string::npos ? name : text.find(": ", name);
  return begin == std::string::npos ? "" : text.substr(begin + 2, text.find('\n', begin) - begin - 2);
}

/// Names are for people, and paths may differ between machines.
Json without_names(Json settings) {
  settings["model"].erase("name");
  settings.erase("text_name");
  if (settings.contains("parts")) {
    for (Json& part : settings["parts"]) part.erase("text_name");
  }
  return settings;
}

std::string difference(const Json& first, const Json& other, const std::string& name = "") {
  if (first.is_object() && other.is_object()) {
    for (const auto& [key, value] : first.items()) {
      const std::string found = difference(value, other.value(key, Json()), name.empty() ? key : name + "." + key);
      if (!found.empty()) return found;
    }
    for (const auto& [key, value] : other.items()) {
      if (!first.contains(key)) return name.empty() ? key : name + "." + key;
    }
    return "";
  }
  if (first == other) return "";
  return first.is_array() || other.is_array() ? name
                                              : fmt::format("{} is {}, on rank 0 {}", name, other.dump(), first.dump());
}

std::string token_path(const std::string& folder) { return folder + "/manifest.json.partial-ranks"; }

}  // namespace

SampleCrew::SampleCrew(Ranks* ranks, ActivationsWriter* writer, const ActivationsSettings& settings, std::string folder,
                       uint64_t units, Warn warn)
    : ranks_(ranks),
      writer_(writer),
      settings_(settings),
      folder_(std::move(folder)),
      units_(units),
      warn_(std::move(warn)) {
  if (ranks_ != nullptr) agree();
  if (writer_ != nullptr) {
    const int layers = static_cast<int>(settings_.layer_index.size());
    for (int s = 0; s < settings_.samples; ++s) {
      if (writer_->left_out().contains(s)) continue;
      std::vector<int> missing;
      for (int l = 0; l < layers; ++l) {
        if (!writer_->has(s, l)) missing.push_back(l);
      }
      if (!missing.empty()) open_[s] = std::move(missing);
    }
  }
  if (ranks_ != nullptr) share_open(std::to_string(std::random_device{}()));
  for (const auto& [sample, missing] : open_) order_.push_back(sample);
  if (ranks_ != nullptr && ranks_->first()) {
    received_all_ = false;
    receiver_ = std::thread([this] { receive(); });
  }
}

SampleCrew::~SampleCrew() {
  stop_ = true;
  if (receiver_.joinable()) receiver_.join();
}

void SampleCrew::agree() {
  const Json mine{{"processor", processor()}, {"settings", without_names(settings_json(settings_))}};
  const std::vector<std::string> all = ranks_->gather(dump(mine));
  const auto first = parse_json<Json>(all[0], "rank 0");
  for (size_t r = 1; r < all.size(); ++r) {
    const auto other = parse_json<Json>(all[r], fmt::format("rank {}", r));
    const std::string differs = difference(first.at("settings"), other.at("settings"));
    if (!differs.empty()) {
      throw bad_input(fmt::format("rank {}", r), "has other settings than rank 0: " + differs,
                      "the same model, text and options on all ranks");
    }
    if (ranks_->first() && other.at("processor") != first.at("processor") && warn_) {
      warn_(
          fmt::format("rank {} has another processor ({}) than rank 0 ({}): the activations' last bits may depend on "
                      "which of them ran a sample",
                      r, other.at("processor").get<std::string>(), first.at("processor").get<std::string>()));
    }
  }
}

/// Rank 0 tells what is open; the others find out whether they see its folder.
void SampleCrew::share_open(const std::string& folder_token) {
  Json open = Json::object();
  if (ranks_->first()) {
    write_text_file(token_path(folder_), folder_token);
    for (const auto& [sample, missing] : open_) open[std::to_string(sample)] = missing;
  }
  const auto told =
      parse_json<Json>(ranks_->gather(dump({{"token", folder_token}, {"open", std::move(open)}}))[0], "rank 0");
  if (!ranks_->first()) {
    for (const auto& [sample, missing] : told.at("open").items()) {
      open_[std::stoi(sample)] = missing.get<std::vector<int>>();
    }
    std::error_code error;
    sees_folder_ = std::filesystem::exists(token_path(folder_), error) &&
                   read_text_file(token_path(folder_)) == told.at("token").get<std::string>();
  }
  const std::vector<std::string> seen = ranks_->gather(sees_folder_ ? "1" : "0");
  if (!ranks_->first()) return;
  std::error_code error;
  std::filesystem::remove(token_path(folder_), error);
  std::vector<size_t> blind;
  for (size_t r = 0; r < seen.size(); ++r) {
    if (seen[r] == "0") blind.push_back(r);
  }
  if (!blind.empty() && warn_) {
    warn_(fmt::format("rank {} does not see {} of rank 0's machine, and sends its shards over the network",
                      fmt::join(blind, ", "), folder_));
  }
}

std::optional<int> SampleCrew::next() {
  size_t at = taken_++;
  if (ranks_ != nullptr) {
    // The first of each is its own, so that all begin at once and a small run is shared too.
    at = began_ ? static_cast<size_t>(ranks_->next("sample")) + static_cast<size_t>(ranks_->size())
                : static_cast<size_t>(ranks_->rank());
    began_ = true;
  }
  return at < order_.size() ? std::optional(order_[at]) : std::nullopt;
}

void SampleCrew::put(int sample, int layer, const Shard& shard) {
  const std::string image = activations_shard_image(settings_, sample, layer, shard);
  const ShardEntry entry = shard_entry_of(image);
  if (writer_ != nullptr) {
    write_activations_shard(folder_, settings_, sample, layer, image);
    const std::lock_guard lock(mutex_);
    writer_->list(sample, layer, entry);
    written_ += entry.bytes;
    return;
  }
  if (sees_folder_) write_activations_shard(folder_, settings_, sample, layer, image);
  ranks_->post(message({{"kind", "shard"},
                        {"sample", sample},
                        {"layer", layer},
                        {"bytes", entry.bytes},
                        {"sha256", entry.sha256},
                        {"sent", !sees_folder_}},
                       sees_folder_ ? std::string_view() : image));
}

void SampleCrew::done(int sample, double loss, int64_t predictions) {
  if (writer_ == nullptr) {
    ranks_->post(message({{"kind", "done"}, {"sample", sample}, {"loss", loss}, {"predictions", predictions}}));
    return;
  }
  const std::lock_guard lock(mutex_);
  losses_[sample] = {loss, predictions};
}

void SampleCrew::leave_out(int sample, const std::string& reason) {
  if (writer_ == nullptr) {
    ranks_->post(message({{"kind", "left out"}, {"sample", sample}, {"reason", reason}}));
    return;
  }
  const std::lock_guard lock(mutex_);
  writer_->leave_out(sample, reason);
}

void SampleCrew::check() {
  if (ranks_ != nullptr) ranks_->check();
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void SampleCrew::finish(const std::function<void()>& waiting) {
  if (ranks_ == nullptr) return;
  if (!ranks_->first()) {
    ranks_->post(message({{"kind", "end"}}));
    return;
  }
  while (!received_all_) {
    check();
    if (waiting) waiting();
    std::this_thread::sleep_for(kPoll);
  }
  receiver_.join();
  check();
}

double SampleCrew::nll() const {
  double loss = 0;
  int64_t predictions = 0;
  for (const auto& [sample, of] : losses_) {
    loss += of.first;
    predictions += of.second;
  }
  return predictions > 0 ? loss / static_cast<double>(predictions) : std::numeric_limits<double>::quiet_NaN();
}

void SampleCrew::receive() {
  try {
    std::vector<bool> ended(static_cast<size_t>(ranks_->size()), false);
    ended[0] = true;
    while (!stop_ && std::find(ended.begin(), ended.end(), false) != ended.end()) {
      bool some = false;
      for (int r = 1; r < ranks_->size() && !stop_; ++r) {
        std::string text;
        if (ended[static_cast<size_t>(r)] || !ranks_->take(r, text)) continue;
        some = true;
        if (text.starts_with(message({{"kind", "end"}}))) {
          ended[static_cast<size_t>(r)] = true;
        } else {
          handle(r, text);
        }
      }
      if (!some) std::this_thread::sleep_for(kPoll);
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  received_all_ = true;
}

void SampleCrew::handle(int from, const std::string& text) {
  const size_t line = text.find('\n');
  const auto header = parse_json<Json>(text.substr(0, line), fmt::format("rank {}", from));
  const auto kind = header.at("kind").get<std::string>();
  const int sample = header.at("sample");
  const std::lock_guard lock(mutex_);
  if (kind == "shard") {
    const ShardEntry entry{header.at("bytes").get<uint64_t>(), header.at("sha256").get<std::string>()};
    if (header.at("sent").get<bool>()) {
      writer_->put_image(sample, header.at("layer"), std::string_view(text).substr(line + 1), entry);
    } else {
      writer_->list(sample, header.at("layer"), entry);
    }
    written_ += entry.bytes;
    partial_[from] = std::min(units_, partial_[from] + units_ / settings_.layer_index.size());
  } else {
    if (kind == "done") {
      losses_[sample] = {header.at("loss").get<double>(), header.at("predictions").get<int64_t>()};
    } else {
      writer_->leave_out(sample, header.at("reason"));
      if (warn_) warn_("left out: " + header.at("reason").get<std::string>());
    }
    partial_[from] = 0;
    finished_units_ += units_;
  }
  uint64_t units = finished_units_;
  for (const auto& [rank, of] : partial_) units += of;
  others_units_ = units;
}

}  // namespace kvcc
