#include "formats/store/activations.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/text.h"
#include "formats/store/activations_manifest.h"
#include "formats/store/activations_shard.h"

namespace kvcc {
namespace {

namespace fs = std::filesystem;

int layer_number(const ActivationsSettings& settings, int layer) {
  return settings.layer_index.at(static_cast<size_t>(layer));
}

std::string shard_path(const std::string& folder, const ActivationsSettings& settings, int sample, int layer) {
  return folder + "/" + shard_name(sample, layer_number(settings, layer));
}

/// Names of shards, up to 10.
std::string listed(const std::vector<std::string>& names) {
  const size_t shown = std::min<size_t>(names.size(), 10);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<long>(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

/// What cures a folder whose shards are missing or damaged.
std::string remake_hint(const ActivationsSettings& settings) {
  return fmt::format("'kvcc {} --resume' with the same settings makes them again",
                     settings.sources.empty() ? "collect" : "merge");
}

/// The same for a shard of which it is not known who made it.
constexpr const char* kRemakeHint = "'kvcc collect --resume', or merge for a merged folder, makes it again";

/// Through the name beside it; the bytes are hashed as they pass.
void copy_shard(const std::string& from, const std::string& to, const ShardEntry& entry) {
  const MappedFile source(from);
  const auto bytes = source.bytes();
  if (bytes.size() != entry.bytes) {
    throw bad_input(from, fmt::format("truncated or changed: needs {} bytes, has {}", entry.bytes, bytes.size()));
  }
  if (Sha256().update(bytes.data(), bytes.size()).hex() != entry.sha256) {
    throw bad_input(from, "its sha256 is not the manifest's", "", kRemakeHint);
  }
  write_text_file(to, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, false);
}

/// What is wrong with the file of a listed shard: "" when it has the size and, if asked, the hash.
std::string shard_fault(const std::string& path, const ShardEntry& entry, bool hash) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) return "missing";
  if (bytes != entry.bytes) return fmt::format("truncated or changed: needs {} bytes, has {}", entry.bytes, bytes);
  if (hash && sha256_file(path) != entry.sha256) return "its sha256 is not the manifest's";
  return "";
}

}  // namespace

int64_t ActivationsSettings::tokens(int64_t count) const {
  if (count < 0) count = samples;
  if (lengths.empty()) return count * seqlen;
  return std::accumulate(lengths.begin(), lengths.begin() + count, int64_t{0});
}

uint64_t activations_bytes(const ActivationsSettings& settings) {
  const CacheShape& shape = settings.model.shape;
  const auto elements = static_cast<uint64_t>(shape.kv_heads) * (shape.head_dim + shape.value_head_dim);
  const uint64_t each = (settings.fisher ? 2 : 1) * (settings.acts_dtype == "bf16" ? 2 : 4);
  constexpr uint64_t kStructure = 4096;  // about what HDF5 adds to a shard
  const auto tokens = static_cast<uint64_t>(settings.tokens()), samples = static_cast<uint64_t>(settings.samples);
  return shape.layers * (tokens * elements * each + samples * kStructure);
}

bool is_activations_folder(const std::string& folder) {
  std::error_code error;
  return fs::is_regular_file(manifest_path(folder), error);
}

ActivationsWriter::ActivationsWriter(std::string folder, ActivationsSettings settings, bool resume, bool force)
    : folder_(std::move(folder)), settings_(std::move(settings)) {
  std::error_code error;
  if (fs::exists(folder_, error) && !fs::is_directory(folder_, error)) {
    throw bad_input(folder_, "is a file", "a folder for activations");
  }
  make_folder(folder_);
  lock_ = std::make_unique<FolderLock>(folder_);  // before anything in it is looked at
  if (is_activations_folder(folder_)) {
    if (!resume && !force) {
      throw bad_input(folder_, "holds activations already", "",
                      "--resume goes on with them, --force starts over, -o names another folder");
    }
    if (resume && try_resume(force)) return;
    start_over();
  } else if (!is_new()) {
    throw bad_input(folder_, "is not empty and holds no activations", "a new or empty folder");
  }
  check_space();
  write_manifest(false);
}

void check_disk_space(const std::string& folder, uint64_t needed, const std::string& hint) {
  std::error_code error;
  const fs::space_info disk = fs::space(nearest_existing(folder), error);
  if (error || disk.available >= needed) return;
  throw Error(ErrorKind::resource, folder,
              fmt::format("disk full: {} needed, {} free", human_bytes(needed), human_bytes(disk.available)), "", hint);
}

void ActivationsWriter::check_space(uint64_t freed) const {
  if (!settings_.sources.empty()) return;  // links take none; merging has checked what copies take
  uint64_t needed = activations_bytes(settings_);
  needed -= std::min(needed, freed);
  for (const auto& [key, entry] : shards_) needed -= std::min(needed, entry.bytes);
  check_disk_space(folder_, needed,
                   "free some space, write elsewhere, or use --acts-dtype bf16, fewer --samples or a shorter --seqlen");
}

bool ActivationsWriter::try_resume(bool force) {
  ActivationsManifest manifest;
  try {
    manifest = read_activations_manifest(folder_);
  } catch (const Error&) {
    if (force) return false;
    throw;
  }
  const std::vector<std::string> differences = settings_difference(manifest.settings, settings_);
  if (!differences.empty()) {
    if (force) return false;
    throw bad_input(folder_, fmt::format("made with other settings: {}", fmt::join(differences, "; ")),
                    "the same settings to resume", "--force starts over");
  }
  resumed_ = true;
  shards_ = std::move(manifest.shards);
  left_out_ = std::move(manifest.left_out);
  drop_damaged();
  check_space();
  write_manifest(manifest.complete && dropped_.empty());  // a whole folder stays whole, and its file untouched
  return true;
}

void ActivationsWriter::drop_damaged() {
  std::erase_if(shards_, [&](const auto& shard) {
    const auto& [key, entry] = shard;
    const std::string path = shard_path(folder_, settings_, key.first, key.second);
    const std::string fault = shard_fault(path, entry, true);
    if (fault.empty()) return false;
    dropped_.push_back(fmt::format("{}: {}", shard_name(key.first, layer_number(settings_, key.second)), fault));
    return true;
  });
  remove_unlisted();
}

/// What a killed run left: shards that no manifest lists, whole or half-written. They count for nothing.
void ActivationsWriter::remove_unlisted() const {
  std::set<std::string> listed_shards;
  for (const auto& [key, entry] : shards_) {
    listed_shards.insert(shard_name(key.first, layer_number(settings_, key.second)));
  }
  const auto is_shard = [](const std::string& name, char first) {
    return name.size() > 4 && name[0] == first &&
           std::all_of(name.begin() + 1, name.begin() + 5, [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  for (const auto& sample : fs::directory_iterator(folder_)) {
    if (!sample.is_directory() || !is_shard(sample.path().filename().string(), 's')) continue;
    std::vector<fs::path> left;
    for (const auto& file : fs::directory_iterator(sample.path())) {
      const std::string name = file.path().filename().string();
      const bool ours = is_shard(name, 'l') && (name.ends_with(".h5") || name.find(".h5.partial") != std::string::npos);
      const std::string listed_name = sample.path().filename().string() + "/" + name;
      if (ours && !listed_shards.contains(listed_name)) left.push_back(file.path());
    }
    for (const fs::path& file : left) fs::remove(file);
  }
}

/// Not when the result would not find room. A kill in between leaves a folder that looks interrupted, never one that
/// looks whole.
void ActivationsWriter::start_over() const {
  uint64_t freed = 0;
  try {
    for (const auto& [key, entry] : read_activations_manifest(folder_).shards) freed += entry.bytes;
  } catch (const Error&) {
    // An unreadable manifest lists nothing.
  }
  check_space(freed);
  std::error_code error;
  fs::remove(journal_path(folder_), error);  // it lists shards of the settings that were
  write_manifest(false);
  remove_unlisted();
}

/// Whether there is nothing but what a run leaves that was killed before it had a manifest.
bool ActivationsWriter::is_new() const {
  std::error_code error;
  const fs::directory_iterator files(folder_, error);
  return std::all_of(begin(files), end(files), [](const auto& file) {
    return file.path().filename().string().starts_with("manifest.json.partial");
  });
}

bool ActivationsWriter::has(int sample, int layer) const { return shards_.contains({sample, layer}); }

void ActivationsWriter::check_shard(int sample, int layer) const {
  if (sample < 0 || sample >= settings_.samples || layer < 0 || layer >= settings_.model.shape.layers) {
    throw Error(ErrorKind::failed, folder_, fmt::format("shard of sample {} layer {}", sample, layer),
                fmt::format("samples below {} and layers below {}", settings_.samples, settings_.model.shape.layers));
  }
}

std::string activations_shard_image(const ActivationsSettings& settings, int sample, int layer, const Shard& shard) {
  return shard_image(settings, sample, layer, shard);
}

ShardEntry shard_entry_of(std::string_view image) { return {image.size(), sha256_hex(image)}; }

void write_activations_shard(const std::string& folder, const ActivationsSettings& settings, int sample, int layer,
                             std::string_view image) {
  const std::string path = shard_path(folder, settings, sample, layer);
  make_folder(fs::path(path).parent_path().string());
  // Resuming checks every listed shard by its hash, so that neither name nor journal line has to be synced in order.
  write_text_file(path, image, false);
}

void ActivationsWriter::put(int sample, int layer, const Shard& shard) {
  check_shard(sample, layer);
  const std::string image = shard_image(settings_, sample, layer, shard);
  write_activations_shard(folder_, settings_, sample, layer, image);
  record(sample, layer, shard_entry_of(image));
}

void ActivationsWriter::list(int sample, int layer, const ShardEntry& entry) {
  check_shard(sample, layer);
  const std::string path = shard_path(folder_, settings_, sample, layer);
  if (const std::string fault = shard_fault(path, entry, false); !fault.empty()) throw bad_input(path, fault);
  record(sample, layer, entry);
}

void ActivationsWriter::put_image(int sample, int layer, std::string_view image, const ShardEntry& entry) {
  check_shard(sample, layer);
  const ShardEntry found = shard_entry_of(image);
  if (found.bytes != entry.bytes || found.sha256 != entry.sha256) {
    throw bad_input(shard_path(folder_, settings_, sample, layer), "came damaged over the network");
  }
  write_activations_shard(folder_, settings_, sample, layer, image);
  record(sample, layer, entry);
}

bool ActivationsWriter::adopt(int sample, int layer, const std::string& file, const ShardEntry& entry, bool copy) {
  const std::string path = shard_path(folder_, settings_, sample, layer);
  make_folder(fs::path(path).parent_path().string());
  // What lies there counts for nothing: the manifest does not list it. Renaming onto another link of the same file
  // would do nothing, so the name is made free first.
  std::error_code error;
  fs::remove(path, error);
  const bool linked = !copy && ::link(file.c_str(), path.c_str()) == 0;
  if (linked) {
    // What a resumed run lacks may have been dropped as damaged, by it or by one before; a link to the same file would
    // be as damaged.
    if (const std::string fault = shard_fault(path, entry, resumed_); !fault.empty()) {
      fs::remove(path, error);
      throw bad_input(file, fault, "", kRemakeHint);
    }
  } else {
    copy_shard(file, path, entry);
  }
  record(sample, layer, entry);
  return linked;
}

void ActivationsWriter::record(int sample, int layer, const ShardEntry& entry) {
  append_to_journal(folder_, shard_name(sample, layer_number(settings_, layer)), entry);
  shards_[{sample, layer}] = entry;
}

void ActivationsWriter::leave_out(int sample, const std::string& reason) {
  if (sample < 0 || sample >= settings_.samples) {
    throw Error(ErrorKind::failed, folder_, fmt::format("sample {}", sample),
                fmt::format("samples below {}", settings_.samples));
  }
  std::error_code error;
  std::erase_if(shards_, [&](const auto& shard) {
    if (shard.first.first != sample) return false;
    fs::remove(shard_path(folder_, settings_, sample, shard.first.second), error);
    return true;
  });
  left_out_[sample] = reason;
  write_manifest(false);
}

void ActivationsWriter::finish() {
  const int64_t samples = settings_.samples - static_cast<int64_t>(left_out_.size());
  if (samples == 0) throw Error(ErrorKind::failed, folder_, "every sample was left out: " + left_out_.begin()->second);
  const auto wanted = static_cast<size_t>(samples * settings_.model.shape.layers);
  if (shards_.size() != wanted) {
    throw Error(ErrorKind::failed, folder_, fmt::format("{} shards", shards_.size()), fmt::format("{}", wanted));
  }
  write_manifest(true);
}

void ActivationsWriter::write_manifest(bool complete) const {
  write_activations_manifest(folder_, {settings_, shards_, left_out_, complete});
  // The manifest has all of the journal now.
  std::error_code error;
  fs::remove(journal_path(folder_), error);
}

ActivationsReader::ActivationsReader(std::string folder) : folder_(std::move(folder)) {
  if (!is_activations_folder(folder_)) {
    throw bad_input(folder_, "no manifest.json", "a folder that kvcc collect or kvcc merge wrote");
  }
  ActivationsManifest manifest = read_activations_manifest(folder_);
  settings_ = std::move(manifest.settings);
  shards_ = std::move(manifest.shards);
  for (int sample = 0; sample < settings_.samples; ++sample) {
    if (!manifest.left_out.contains(sample)) sample_number_.push_back(sample);
  }
  std::vector<std::string> missing;
  for (const int sample : sample_number_) {
    for (int layer = 0; layer < settings_.model.shape.layers; ++layer) {
      const auto listed_shard = shards_.find({sample, layer});
      const bool good = listed_shard != shards_.end() &&
                        shard_fault(shard_path(folder_, settings_, sample, layer), listed_shard->second, false).empty();
      if (!good) missing.push_back(shard_name(sample, layer_number(settings_, layer)));
    }
  }
  if (!missing.empty()) {
    throw bad_input(folder_,
                    fmt::format("{} of {} shards missing or incomplete: {}", missing.size(),
                                sample_number_.size() * settings_.model.shape.layers, listed(missing)),
                    "", remake_hint(settings_));
  }
  if (!manifest.left_out.empty()) keep_samples();
  content_sha256_ = activations_sha256(settings_, shards_);
}

/// Settings and shards of the samples that were not left out.
void ActivationsReader::keep_samples() {
  const auto keep = [&](auto& of_all) {
    std::decay_t<decltype(of_all)> kept;
    for (const int sample : sample_number_) {
      if (sample < static_cast<int64_t>(of_all.size())) kept.push_back(of_all[static_cast<size_t>(sample)]);
    }
    of_all = std::move(kept);
  };
  keep(settings_.offsets);
  keep(settings_.sample_sha256);
  keep(settings_.lengths);
  keep(settings_.sample_part);
  settings_.samples_asked = std::max(settings_.samples_asked, settings_.samples);
  settings_.samples = static_cast<int64_t>(sample_number_.size());
  std::erase_if(shards_, [&](const auto& shard) {
    return std::find(sample_number_.begin(), sample_number_.end(), shard.first.first) == sample_number_.end();
  });
}

std::string ActivationsReader::shard_file(int sample, int layer) const {
  return shard_path(folder_, settings_, sample_number_.at(static_cast<size_t>(sample)), layer);
}

const ShardEntry& ActivationsReader::shard_entry(int sample, int layer) const {
  return shards_.at({sample_number_.at(static_cast<size_t>(sample)), layer});
}

int ActivationsReader::stated_sample(int sample) const {
  const auto at = static_cast<size_t>(sample);
  return settings_.sample_number.empty() ? sample_number_.at(at) : settings_.sample_number.at(at);
}

Shard ActivationsReader::read(int index, int layer, bool check_hash) const {
  const int sample = index >= 0 && index < settings_.samples ? sample_number_[static_cast<size_t>(index)] : -1;
  const auto entry = shards_.find({sample, layer});
  if (entry == shards_.end()) {
    throw Error(ErrorKind::failed, folder_, fmt::format("no shard of sample {} layer {}", index, layer));
  }
  const std::string path = shard_path(folder_, settings_, sample, layer);
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() != entry->second.bytes) {
    throw bad_input(path,
                    fmt::format("truncated or changed: needs {} bytes, has {}", entry->second.bytes, bytes.size()));
  }
  if (check_hash) {
    const std::string hash = Sha256().update(bytes.data(), bytes.size()).hex();
    if (hash != entry->second.sha256) {
      throw bad_input(path, fmt::format("sha256 {}", hash), entry->second.sha256 + " as the manifest says",
                      remake_hint(settings_));
    }
  }
  return shard_of_image(settings_, sample, layer, bytes, path);
}

std::vector<std::string> validate_activations(const std::string& folder) {
  const ActivationsManifest manifest = read_activations_manifest(folder);
  const ActivationsSettings& settings = manifest.settings;
  std::vector<std::string> problems;
  if (!manifest.complete) problems.push_back("manifest.json: not complete (an interrupted run)");
  for (int sample = 0; sample < settings.samples; ++sample) {
    if (manifest.left_out.contains(sample)) continue;
    for (int layer = 0; layer < settings.model.shape.layers; ++layer) {
      const std::string name = shard_name(sample, layer_number(settings, layer));
      const auto entry = manifest.shards.find({sample, layer});
      if (entry == manifest.shards.end()) {
        problems.push_back(name + ": not listed");
        continue;
      }
      const std::string path = folder + "/" + name;
      if (const std::string fault = shard_fault(path, entry->second, true); !fault.empty()) {
        problems.push_back(name + ": " + fault);
        continue;
      }
      try {
        const MappedFile file(path);
        const Shard shard = shard_of_image(settings, sample, layer, file.bytes(), name);
        for (const auto& [tensor, data] : {std::pair<const char*, const std::vector<float>*>{"key", &shard.key},
                                           {"value", &shard.value},
                                           {"key_grad", &shard.key_grad},
                                           {"value_grad", &shard.value_grad}}) {
          const auto bad = std::find_if(data->begin(), data->end(), [](float x) { return !std::isfinite(x); });
          if (bad == data->end()) continue;
          const auto row = static_cast<int64_t>(data->size()) / settings.length(sample);
          problems.push_back(fmt::format("{}: /{}: {} at token {}", name, tensor, *bad, (bad - data->begin()) / row));
        }
      } catch (const Error& error) {
        problems.push_back(error.what());
      }
    }
  }
  return problems;
}

}  // namespace kvcc
