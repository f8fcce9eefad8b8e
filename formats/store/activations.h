// The activations folder (NAME.acts), version 3: manifest.json and one HDF5 shard per sample and layer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/core/model_info.h"
#include "formats/store/folder_lock.h"

namespace kvcc {

/// One of the runs that a merged folder joins.
struct ActivationsSource {
  std::string text_name, text_sha256, text_flavour;
  int64_t seed = 0;
  bool operator==(const ActivationsSource&) const = default;
};

/// One of several texts whose samples a run has mixed.
struct ActivationsPart {
  std::string text_name, text_sha256, text_flavour, bos;
  double weight = 0;   ///< share of the samples asked for, of all parts together 1
  int64_t tokens = 0;  ///< in its samples
  bool operator==(const ActivationsPart&) const = default;
};

/// Everything that decides the bytes of the activations; a resumed run must agree in all of it.
struct ActivationsSettings {
  ModelInfo model;
  /// The rest of the decoder's configuration, a JSON object (decoder_json); "" in folders made without a model.
  std::string decoder_json;
  std::string tokenizer_sha256;
  std::string text_name, text_sha256, text_flavour;  ///< flavour: "raw", "tokens", "ids", "self"
  std::string bos = "off";                           ///< "on" or "off"; "mixed" where parts differ
  int64_t samples = 0;
  int64_t seqlen = 0;  ///< tokens of each sample, at most; of samples of one length: exactly
  int64_t seed = 0;
  /// Samples asked for, where fewer were had: the text was short, or some were left out; else 0. Decides no bytes: a
  /// run resumes whatever it is.
  int64_t samples_asked = 0;
  std::vector<int64_t> offsets;            ///< [samples] first token of each sample in the tokenised text
  std::vector<std::string> sample_sha256;  ///< [samples] of the int32 little-endian ids
  std::string compute_dtype = "f32";
  std::string acts_dtype = "f32";  ///< f32 or bf16
  bool fisher = true;
  std::vector<int> layer_index;  ///< [L]
  std::vector<int64_t> lengths;  ///< [samples] tokens of each; empty where all have seqlen
  // Of a run on several texts; empty otherwise.
  std::vector<ActivationsPart> parts;
  std::vector<int> sample_part;  ///< [samples] index into parts
  // Of a folder that kvcc merge made; empty otherwise.
  std::vector<ActivationsSource> sources;
  std::vector<int> sample_source;  ///< [samples] index into sources
  std::vector<int> sample_number;  ///< [samples] that the sample's shards state: they are those of its run

  int64_t length(int64_t sample) const { return lengths.empty() ? seqlen : lengths.at(static_cast<size_t>(sample)); }
  /// Tokens of the first `count` samples; of all without it.
  int64_t tokens(int64_t count = -1) const;
};

struct ShardEntry {
  uint64_t bytes = 0;
  std::string sha256;
};

/// One sample's layer. key, key_grad [T, H, D]; value, value_grad [T, H, Dv]; grads signed, of the sample's summed
/// next-token cross-entropy (nats); empty without Fisher.
struct Shard {
  std::vector<float> key, value, key_grad, value_grad;
};

/// Writes shards; each is written beside its name, synced, renamed and then listed: in the journal beside the manifest
/// (one line a shard, so that the cost of a shard does not grow with their number), which finish() folds into the
/// manifest. One thread at a time, and one writer a folder: it is locked while the writer lives.
class ActivationsWriter {
 public:
  /// Makes the folder, or resumes it: `resume` allows an existing manifest with the same settings and throws
  /// Error(bad_input) with a field-by-field difference otherwise (unless `force`, which starts over). Shards that the
  /// manifest lists but whose size or hash differ are dropped, and named in `dropped`. The names of model and text are
  /// for people and may differ. Throws Error(bad_input) when another writer has the folder.
  ActivationsWriter(std::string folder, ActivationsSettings settings, bool resume, bool force);
  bool has(int sample, int layer) const;
  /// `layer` counts the layers that have a cache, 0 to L - 1; the file is named by the model's number of it.
  void put(int sample, int layer, const Shard& shard);
  /// Takes the finished shard in `file`, which `entry` describes, for this sample and layer: as a hard link (false with
  /// `copy`, or where the file system has none: a copy). The hash is checked of a copy, and of a link when resuming.
  /// Returns whether it linked. Throws Error(bad_input) when the file is not what `entry` says.
  bool adopt(int sample, int layer, const std::string& file, const ShardEntry& entry, bool copy);
  /// Lists a shard that another process has written in place (write_activations_shard), or whose file's bytes it sent.
  /// Throws Error(bad_input) when the file there has another size than `entry`, or `image` is not what it describes.
  void list(int sample, int layer, const ShardEntry& entry);
  void put_image(int sample, int layer, std::string_view image, const ShardEntry& entry);
  const std::vector<std::string>& dropped() const { return dropped_; }
  /// Leaves a sample out (its activations are not finite) and records why; its shards no longer count.
  void leave_out(int sample, const std::string& reason);
  /// Samples left out, now or by the run that is resumed, with the reason.
  const std::map<int, std::string>& left_out() const { return left_out_; }
  /// All shards of the samples that were not left out present: marks the manifest complete.
  void finish();

 private:
  std::string folder_;
  ActivationsSettings settings_;
  std::unique_ptr<FolderLock> lock_;
  std::map<std::pair<int, int>, ShardEntry> shards_;
  std::vector<std::string> dropped_;
  std::map<int, std::string> left_out_;
  bool resumed_ = false;
  bool try_resume(bool force);
  void remove_unlisted() const;
  void start_over() const;
  bool is_new() const;
  void check_space(uint64_t freed = 0) const;
  void drop_damaged();
  void record(int sample, int layer, const ShardEntry& entry);
  void write_manifest(bool complete) const;
  void check_shard(int sample, int layer) const;
};

/// One shard as its file's bytes, for a process that is not the folder's writer.
std::string activations_shard_image(const ActivationsSettings& settings, int sample, int layer, const Shard& shard);
ShardEntry shard_entry_of(std::string_view image);
/// Writes such a shard in place, as ActivationsWriter does; it counts for nothing until the folder's writer lists it.
void write_activations_shard(const std::string& folder, const ActivationsSettings& settings, int sample, int layer,
                             std::string_view image);

class ActivationsReader {
 public:
  /// Throws Error(bad_input) when shards are missing or of another size (all are named, up to 10) or the manifest is of
  /// a newer version.
  explicit ActivationsReader(std::string folder);
  /// Of the samples that were not left out, renumbered: read() takes 0 to settings().samples - 1.
  const ActivationsSettings& settings() const { return settings_; }
  /// sha256 of the canonical settings (names of model and text left out) and the shards' hashes.
  const std::string& content_sha256() const { return content_sha256_; }
  /// By the number of the sample in the files' names.
  const std::map<std::pair<int, int>, ShardEntry>& shards() const { return shards_; }
  /// Reads and checks one shard (hash included when `check_hash`). Thread-safe: HDF5 calls are serialised inside.
  Shard read(int sample, int layer, bool check_hash = true) const;
  /// File and entry of one shard, and the sample's number that the file states. `sample` as in read().
  std::string shard_file(int sample, int layer) const;
  const ShardEntry& shard_entry(int sample, int layer) const;
  int stated_sample(int sample) const;

 private:
  std::string folder_;
  ActivationsSettings settings_;
  std::map<std::pair<int, int>, ShardEntry> shards_;
  std::string content_sha256_;
  void keep_samples();
  std::vector<int> sample_number_;  ///< in the files' names, of each sample that was not left out
};

/// Bytes that the whole folder takes, for plans and for the check before the first shard.
uint64_t activations_bytes(const ActivationsSettings& settings);

/// Throws Error(resource) when the file system of `folder`, or of the nearest folder above that exists, has less free.
void check_disk_space(const std::string& folder, uint64_t needed, const std::string& hint);

/// The runs of merged activations, or the parts of a mixed run, as a JSON list of text_name, text_sha256, text_flavour,
/// seed, samples, of parts bos, weight and tokens, and the samples' offsets (left out where the list would take more
/// than 48 KiB); "" for activations of one text.
std::string sources_json(const ActivationsSettings& settings);

/// True for a folder that holds an activations manifest.
bool is_activations_folder(const std::string& folder);

/// All that is wrong with the folder, one line each: manifest, missing shards, sizes, hashes, shapes, values that are
/// not finite. Throws only if the manifest can't be read.
std::vector<std::string> validate_activations(const std::string& folder);

}  // namespace kvcc
