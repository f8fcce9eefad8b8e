#include "formats/store/activations_manifest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/store/model_json.h"
#include "formats/store/versions.h"

namespace kvcc {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kMostBytes = 256 << 20;  ///< of manifest and journal: 1.5 million shards
constexpr int64_t kMostShards = 1 << 20;
constexpr int kSchemaVersion = kActivationsVersion;
constexpr const char* kFormat = "kvcc-activations";

ActivationsPart part_from_json(const ordered_json& part, const std::string& place) {
  return {json_member<std::string>(part, "text_name", place),
          json_member<std::string>(part, "text_sha256", place),
          json_member<std::string>(part, "text_flavour", place),
          json_member<std::string>(part, "bos", place),
          json_member<double>(part, "weight", place),
          json_member<int64_t>(part, "tokens", place)};
}

ordered_json to_json(const ActivationsPart& part) {
  return {{"text_name", part.text_name},
          {"text_sha256", part.text_sha256},
          {"text_flavour", part.text_flavour},
          {"bos", part.bos},
          {"weight", part.weight},
          {"tokens", part.tokens}};
}

/// The least version that describes the folder: shards of merged folders, and samples of several lengths, are refused
/// by readers of the versions before; a mixture has another content hash there.
int schema_version(const ActivationsSettings& settings) {
  if (!settings.lengths.empty() || !settings.parts.empty()) return 3;
  return settings.sources.empty() ? 1 : 2;
}

ActivationsSettings settings_from_json(const ordered_json& document, const std::string& place) {
  ActivationsSettings settings;
  settings.model = model_from_json(json_member<ordered_json>(document, "model", place), place + ": model");
  if (document.contains("decoder")) {
    const auto decoder = json_member<ordered_json>(document, "decoder", place);
    if (!decoder.is_object()) throw bad_input(place, "'decoder' is " + json_brief(decoder), "an object");
    settings.decoder_json = decoder.dump();
  }
  settings.tokenizer_sha256 = json_member<std::string>(document, "tokenizer_sha256", place);
  settings.text_name = json_member<std::string>(document, "text_name", place);
  settings.text_sha256 = json_member<std::string>(document, "text_sha256", place);
  settings.text_flavour = json_member<std::string>(document, "text_flavour", place);
  settings.bos = json_member<std::string>(document, "bos", place);
  settings.samples = json_member<int64_t>(document, "samples", place);
  settings.seqlen = json_member<int64_t>(document, "seqlen", place);
  settings.seed = json_member<int64_t>(document, "seed", place);
  settings.offsets = json_member<std::vector<int64_t>>(document, "offsets", place);
  settings.sample_sha256 = json_member<std::vector<std::string>>(document, "sample_sha256", place);
  settings.compute_dtype = json_member<std::string>(document, "compute_dtype", place);
  settings.acts_dtype = json_member<std::string>(document, "acts_dtype", place);
  settings.fisher = json_member<bool>(document, "fisher", place);
  settings.layer_index = json_member<std::vector<int>>(document, "layer_index", place);
  if (document.contains("lengths")) {
    settings.lengths = json_member<std::vector<int64_t>>(document, "lengths", place);
  }
  if (document.contains("parts")) {
    for (const ordered_json& part : json_member<std::vector<ordered_json>>(document, "parts", place)) {
      settings.parts.push_back(part_from_json(part, place + ": parts"));
    }
    settings.sample_part = json_member<std::vector<int>>(document, "sample_part", place);
  }
  if (!document.contains("sources")) return settings;
  for (const ordered_json& source : json_member<std::vector<ordered_json>>(document, "sources", place)) {
    const std::string where = place + ": sources";
    settings.sources.push_back(
        {json_member<std::string>(source, "text_name", where), json_member<std::string>(source, "text_sha256", where),
         json_member<std::string>(source, "text_flavour", where), json_member<int64_t>(source, "seed", where)});
  }
  settings.sample_source = json_member<std::vector<int>>(document, "sample_source", place);
  settings.sample_number = json_member<std::vector<int>>(document, "sample_number", place);
  return settings;
}

void check_settings(const ActivationsSettings& settings, const std::string& place) {
  const auto need = [&](bool good, const std::string& found, const std::string& wanted) {
    if (!good) throw bad_input(place, found, wanted);
  };
  const CacheShape& shape = settings.model.shape;
  need(shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0 && shape.value_head_dim > 0,
       fmt::format("model of {} layers, {} kv heads, head dims {} and {}", shape.layers, shape.kv_heads, shape.head_dim,
                   shape.value_head_dim),
       "all positive");
  need(shape.layers <= 65536 && shape.kv_heads <= 65536 && shape.head_dim <= 65536 && shape.value_head_dim <= 65536,
       fmt::format("model of {} layers, {} kv heads, head dims {} and {}", shape.layers, shape.kv_heads, shape.head_dim,
                   shape.value_head_dim),
       "at most 65536 of each");
  need(settings.samples > 0 && settings.samples < 1'000'000 && settings.seqlen > 0 && settings.seqlen < (1 << 30),
       fmt::format("{} samples of {} tokens", settings.samples, settings.seqlen),
       "1 to 999999 samples of 1 to 2^30 - 1 tokens");
  need(settings.samples * shape.layers <= kMostShards,
       fmt::format("{} samples of {} layers", settings.samples, shape.layers),
       fmt::format("at most {} shards", kMostShards));
  need(static_cast<int>(settings.layer_index.size()) == shape.layers,
       fmt::format("layer_index has {} entries", settings.layer_index.size()), fmt::format("{}", shape.layers));
  need(std::is_sorted(settings.layer_index.begin(), settings.layer_index.end(), std::less_equal<>()) &&
           settings.layer_index.front() >= 0 && settings.layer_index.back() <= 65535,
       "layer_index is not ascending", "numbers of the model's layers, 0 to 65535");
  need(settings.acts_dtype == "f32" || settings.acts_dtype == "bf16",
       fmt::format("acts_dtype is '{}'", settings.acts_dtype), "f32 or bf16");
  const auto each_sample = [&](const char* name, size_t found) {
    need(static_cast<int64_t>(found) == settings.samples, fmt::format("{} has {} entries", name, found),
         fmt::format("{}, one a sample", settings.samples));
  };
  each_sample("offsets", settings.offsets.size());
  each_sample("sample_sha256", settings.sample_sha256.size());
  if (!settings.lengths.empty()) each_sample("lengths", settings.lengths.size());
  for (const int64_t length : settings.lengths) {
    need(length > 0 && length <= settings.seqlen, fmt::format("a sample of {} tokens", length),
         fmt::format("1 to {}, the seqlen", settings.seqlen));
  }
  need(!settings.parts.empty() || settings.sample_part.empty(), "sample_part without parts", "the texts it is of");
  if (!settings.parts.empty()) each_sample("sample_part", settings.sample_part.size());
  for (const int part : settings.sample_part) {
    need(part >= 0 && part < static_cast<int>(settings.parts.size()), fmt::format("sample_part {}", part),
         fmt::format("0 to {}", settings.parts.size() - 1));
  }
  if (settings.sources.empty()) {
    need(settings.sample_source.empty() && settings.sample_number.empty(),
         "sample_source or sample_number without sources", "the runs that they are of");
    return;
  }
  each_sample("sample_source", settings.sample_source.size());
  each_sample("sample_number", settings.sample_number.size());
  for (const int source : settings.sample_source) {
    need(source >= 0 && source < static_cast<int>(settings.sources.size()), fmt::format("sample_source {}", source),
         fmt::format("0 to {}", settings.sources.size() - 1));
  }
}

/// The fields that decide the bytes: names for people are left out.
ordered_json deciding_fields(const ActivationsSettings& settings) {
  ordered_json fields = settings_json(settings);
  fields["model"].erase("name");
  fields.erase("text_name");
  if (fields.contains("sources")) {
    for (ordered_json& source : fields["sources"]) source.erase("text_name");
  }
  if (fields.contains("parts")) {
    for (ordered_json& part : fields["parts"]) part.erase("text_name");
  }
  return fields;
}

struct Words {
  const std::string &there, &now;
};

void collect_differences(const std::string& name, const ordered_json& there, const ordered_json& now,
                         const Words& words, std::vector<std::string>& out) {
  if (there == now) return;
  if (there.is_object() && now.is_object()) {
    for (const auto& [key, value] : there.items()) {
      collect_differences(name.empty() ? key : name + "." + key, value, now.value(key, ordered_json()), words, out);
    }
    for (const auto& [key, value] : now.items()) {
      if (!there.contains(key)) collect_differences(name.empty() ? key : name + "." + key, {}, value, words, out);
    }
    return;
  }
  if (there.is_array() && now.is_array() && there.size() == now.size()) {
    size_t i = 0;
    while (there[i] == now[i]) ++i;
    out.push_back(fmt::format("{}[{}]: {} {}, {} {}", name, i, there[i].dump(), words.there, now[i].dump(), words.now));
    return;
  }
  const auto text = [](const ordered_json& value) {
    return value.is_array() ? fmt::format("{} entries", value.size()) : value.dump();
  };
  out.push_back(fmt::format("{}: {} {}, {} {}", name, text(there), words.there, text(now), words.now));
}

/// Finds the shard of a name among those of the settings, so that nothing outside the folder is ever opened.
class ShardNames {
 public:
  explicit ShardNames(const ActivationsSettings& settings) : samples_(settings.samples) {
    for (size_t layer = 0; layer < settings.layer_index.size(); ++layer) {
      layers_[settings.layer_index[layer]] = static_cast<int>(layer);
    }
  }
  std::optional<std::pair<int, int>> find(const std::string& name) const {
    int sample = 0, number = 0;
    const char* const end = name.data() + name.size();
    const size_t slash = name.find("/l");
    if (!name.starts_with('s') || slash == std::string::npos) return std::nullopt;
    std::from_chars(name.data() + 1, name.data() + slash, sample);
    std::from_chars(name.data() + slash + 2, end, number);
    const auto layer = layers_.find(number);
    const bool known = sample >= 0 && sample < samples_ && layer != layers_.end() && name == shard_name(sample, number);
    return known ? std::optional(std::pair(sample, layer->second)) : std::nullopt;
  }

 private:
  int64_t samples_;
  std::unordered_map<int, int> layers_;  ///< by the model's number
};

void check_sha256(const std::string& text, const std::string& name, const std::string& place) {
  const bool good = text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!good)
    throw bad_input(place, fmt::format("{} is '{}'", name, text.substr(0, 80)), "64 lower-case hexadecimal digits");
}

/// A line that is not whole or names no shard counts for nothing: its shard is made again.
void read_journal(const std::string& folder, const ShardNames& names, ShardMap& shards) {
  std::error_code error;
  if (!std::filesystem::exists(journal_path(folder), error)) return;
  const std::string text = read_json_text(journal_path(folder), kMostBytes);
  std::istringstream lines(text.substr(0, text.rfind('\n') + 1));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    ShardEntry entry;
    words >> name >> entry.bytes >> entry.sha256;
    const auto known = names.find(name);
    if (words && known) shards[*known] = entry;
  }
}

}  // namespace

std::string manifest_path(const std::string& folder) { return folder + "/manifest.json"; }
std::string journal_path(const std::string& folder) { return folder + "/manifest.journal"; }
std::string shard_name(int sample, int layer_number) { return fmt::format("s{:04}/l{:04}.h5", sample, layer_number); }

ordered_json settings_json(const ActivationsSettings& settings) {
  ordered_json document;
  document["model"] = to_json(settings.model);
  if (!settings.decoder_json.empty()) document["decoder"] = parse_json<ordered_json>(settings.decoder_json, "decoder");
  document["tokenizer_sha256"] = settings.tokenizer_sha256;
  document["text_name"] = settings.text_name;
  document["text_sha256"] = settings.text_sha256;
  document["text_flavour"] = settings.text_flavour;
  document["bos"] = settings.bos;
  document["samples"] = settings.samples;
  document["seqlen"] = settings.seqlen;
  document["seed"] = settings.seed;
  document["offsets"] = settings.offsets;
  document["sample_sha256"] = settings.sample_sha256;
  document["compute_dtype"] = settings.compute_dtype;
  document["acts_dtype"] = settings.acts_dtype;
  document["fisher"] = settings.fisher;
  document["layer_index"] = settings.layer_index;
  if (!settings.lengths.empty()) document["lengths"] = settings.lengths;
  if (!settings.parts.empty()) {
    for (const ActivationsPart& part : settings.parts) document["parts"].push_back(to_json(part));
    document["sample_part"] = settings.sample_part;
  }
  if (settings.sources.empty()) return document;
  for (const ActivationsSource& source : settings.sources) document["sources"].push_back(source_json(source));
  document["sample_source"] = settings.sample_source;
  document["sample_number"] = settings.sample_number;
  return document;
}

ordered_json source_json(const ActivationsSource& source) {
  return {{"text_name", source.text_name},
          {"text_sha256", source.text_sha256},
          {"text_flavour", source.text_flavour},
          {"seed", source.seed}};
}

std::string sources_json(const ActivationsSettings& settings) {
  const bool merged = !settings.sources.empty();
  const size_t count = merged ? settings.sources.size() : settings.parts.size();
  const std::vector<int>& text_of = merged ? settings.sample_source : settings.sample_part;
  if (count == 0) return "";
  constexpr size_t kMost = 48 << 10;  // an attribute of an HDF5 file takes 64 KiB
  for (const bool with_offsets : {true, false}) {
    ordered_json list = ordered_json::array();
    for (size_t i = 0; i < count; ++i) {
      ordered_json entry = merged ? source_json(settings.sources[i]) : to_json(settings.parts[i]);
      if (!merged) entry["seed"] = settings.seed;
      std::vector<int64_t> offsets;
      for (size_t s = 0; s < text_of.size(); ++s) {
        if (text_of[s] == static_cast<int>(i)) offsets.push_back(settings.offsets.at(s));
      }
      entry["samples"] = offsets.size();
      if (with_offsets) entry["offsets"] = offsets;
      list.push_back(std::move(entry));
    }
    std::string text = list.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    if (text.size() <= kMost) return text;
  }
  throw Error(ErrorKind::failed, "sources", fmt::format("{} texts", count),
              "few enough for 48 KiB of an artifact's provenance");
}

std::vector<std::string> settings_difference(const ActivationsSettings& there, const ActivationsSettings& now,
                                             const std::string& there_word, const std::string& now_word) {
  std::vector<std::string> differences;
  collect_differences("", deciding_fields(there), deciding_fields(now), {there_word, now_word}, differences);
  return differences;
}

std::string activations_sha256(const ActivationsSettings& settings, const ShardMap& shards) {
  Sha256 hash;
  hash.update(deciding_fields(settings).dump(-1, ' ', false, ordered_json::error_handler_t::replace)).update("\n");
  for (const auto& [key, entry] : shards) {
    const int number = settings.layer_index[static_cast<size_t>(key.second)];
    hash.update(fmt::format("{} {} {}\n", shard_name(key.first, number), entry.bytes, entry.sha256));
  }
  return hash.hex();
}

void write_activations_manifest(const std::string& folder, const ActivationsManifest& manifest) {
  ordered_json document;
  document["schema_version"] = schema_version(manifest.settings);
  document["format"] = kFormat;
  document["complete"] = manifest.complete;
  if (manifest.settings.samples_asked > manifest.settings.samples) {
    document["samples_asked"] = manifest.settings.samples_asked;
  }
  document["settings"] = settings_json(manifest.settings);
  ordered_json shards = ordered_json::object();
  for (const auto& [key, entry] : manifest.shards) {
    const int number = manifest.settings.layer_index[static_cast<size_t>(key.second)];
    shards[shard_name(key.first, number)] = {{"bytes", entry.bytes}, {"sha256", entry.sha256}};
  }
  document["shards"] = std::move(shards);
  if (!manifest.left_out.empty()) {
    ordered_json left_out = ordered_json::array();
    for (const auto& [sample, reason] : manifest.left_out) left_out.push_back({{"sample", sample}, {"reason", reason}});
    document["left_out"] = std::move(left_out);
  }
  write_if_different(manifest_path(folder),
                     document.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

ActivationsManifest read_activations_manifest(const std::string& folder) {
  const std::string path = manifest_path(folder);
  const auto document = read_json<ordered_json>(path, kMostBytes);
  const auto version = json_member<int64_t>(document, "schema_version", path);
  if (version < 1) throw bad_input(path, fmt::format("'schema_version' is {}", version), "1 or more");
  if (version > kSchemaVersion) {
    throw bad_input(path, fmt::format("activations format {}, this build reads up to {}", version, kSchemaVersion));
  }
  if (const std::string format = json_member<std::string>(document, "format", path); format != kFormat) {
    throw bad_input(path, fmt::format("format is '{}'", format), fmt::format("'{}'", kFormat));
  }
  ActivationsManifest manifest;
  manifest.complete = json_member<bool>(document, "complete", path);
  manifest.settings = settings_from_json(json_member<ordered_json>(document, "settings", path), path + ": settings");
  if (document.contains("samples_asked")) {
    manifest.settings.samples_asked = json_member<int64_t>(document, "samples_asked", path);
  }
  check_settings(manifest.settings, path);
  const ShardNames names(manifest.settings);
  const auto shards = json_member<ordered_json>(document, "shards", path);
  if (!shards.is_object()) throw bad_input(path, "'shards' is " + json_brief(shards), "an object");
  for (const auto& [name, entry] : shards.items()) {
    const auto known = names.find(name);
    if (!known) throw bad_input(path, fmt::format("shard '{}' is not of these settings", name));
    const std::string where = path + ": " + name;
    const ShardEntry found{json_member<uint64_t>(entry, "bytes", where),
                           json_member<std::string>(entry, "sha256", where)};
    check_sha256(found.sha256, "'sha256'", where);
    manifest.shards[*known] = found;
  }
  const auto left_out = document.contains("left_out")
                            ? json_member<std::vector<ordered_json>>(document, "left_out", path)
                            : std::vector<ordered_json>();
  if (!left_out.empty() && !manifest.settings.sources.empty()) {
    throw bad_input(path, "left_out in a merged folder", "none: samples that a run left out are not merged");
  }
  for (const ordered_json& sample : left_out) {
    const int number = json_member<int>(sample, "sample", path + ": left_out");
    if (number < 0 || number >= manifest.settings.samples) {
      throw bad_input(path, fmt::format("left out sample {}", number),
                      fmt::format("0 to {}", manifest.settings.samples - 1));
    }
    manifest.left_out[number] = json_member<std::string>(sample, "reason", path + ": left_out");
  }
  if (!manifest.complete) read_journal(folder, names, manifest.shards);
  return manifest;
}

void append_to_journal(const std::string& folder, const std::string& shard, const ShardEntry& entry) {
  const std::string path = journal_path(folder);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) throw write_error(path, errno);
  const std::string line = fmt::format("{} {} {}\n", shard, entry.bytes, entry.sha256);
  const ssize_t written = ::write(file, line.data(), line.size());
  int code = written == static_cast<ssize_t>(line.size()) ? 0 : written < 0 ? errno : ENOSPC;
  if (::close(file) != 0 && code == 0) code = errno;
  if (code != 0) throw write_error(path, code, line.size());
}

}  // namespace kvcc
