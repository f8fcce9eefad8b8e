// The artifact (.kvcb), version 1: formats/spec/codebook.md is the authoritative page.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/core/effective_bits.h"
#include "formats/core/file.h"
#include "formats/core/model_info.h"
#include "formats/core/scheme.h"
#include "formats/store/tree.h"

namespace kvcc {

/// Where the calibration came from. All of it is written as attributes of /provenance.
struct Provenance {
  std::string tool_version;
  std::string dataset_name, dataset_sha256, dataset_flavour;
  std::string tokenizer_sha256;
  std::string bos;  ///< policy: "on" or "off"
  int64_t samples = 0, seqlen = 0, seed = 0;
  int64_t tokens = 0;                ///< tokens seen
  std::string activations_sha256;    ///< of the activations' manifest content that was fitted
  std::string date;                  ///< "" unless asked for
  std::string parent_sha256, shard;  ///< of a rank's part: the whole artifact's content_sha256, and "0/2"; "" otherwise
  std::string sources_json;          ///< of merged activations: a JSON list of the runs (sources_json()); "" otherwise
  int64_t samples_asked = 0;         ///< of collect, where it got fewer; 0 otherwise
  std::string quantised_weights;     ///< content_sha256 of the .kvcw that the activations are of; "": the model's own
  int64_t held_out = 0;              ///< last samples that vector codebooks were not fitted to
};

/// Histograms of normalised elements have this many bins of equal width over [-2, 2]; the first and the last also hold
/// what lies beyond. Thresholds of static channels, and ends of the range of online ones, are at -1 and 1.
constexpr int kNormalisedBins = 128;
/// Lower edge of a bin; of bin kNormalisedBins: the upper edge of the last.
constexpr float normalised_edge(int bin) { return 4.0f * static_cast<float>(bin) / kNormalisedBins - 2.0f; }
/// Bin of y, which may be infinite.
constexpr int normalised_bin(float y) {
  if (!(y > -2.0f)) return 0;
  return y < 2.0f ? static_cast<int>((y + 2.0f) * (kNormalisedBins / 4)) : kNormalisedBins - 1;
}

/// Per-channel ([L, H, D]) and per-head ([L, H]) statistics that `inspect` shows; formats/spec/statistics.md defines
/// them. Each may be empty: not measured.
struct TensorStats {
  std::vector<float> min, max, mean, variance, fisher;  ///< [L, H, D]; fisher: mean squared gradient
  std::vector<float> weighted_sse,
      sqnr_db;  ///< [L, H]; sum over elements of F (x - x^)^2; 10 log10(sum x^2 / sum (x - x^)^2)
  std::vector<float> first_token_share;  ///< [L, H] share of the Fisher mass on the first token of samples
  std::vector<float> fit_gap_bound;      ///< [L, H] bound on (objective - optimum) / optimum of the k-means, relative
  std::vector<uint32_t> distinct;        ///< [L, H] distinct levels of the codebook
  std::vector<float> histogram;          ///< [L, H, kNormalisedBins] share of the quantised elements in each bin
  std::vector<float> code_use;           ///< [L, H, C] share of the codes; 0 beyond 2^bits
  std::vector<float> held_out_outliers;  ///< [L, H] outside thresholds that were fitted to the other half of the text
  std::vector<float> drift;              ///< [L, H] how far channels' means move between the halves, in deviations
  std::vector<float> sample_share, token_share;        ///< [L, H] of the Fisher mass, on the heaviest sample and token
  std::vector<uint32_t> heaviest_sample;               ///< [L, H] its number
  std::vector<uint32_t> token_sample, token_position;  ///< [L, H] the heaviest token: its sample, and where in it
  std::vector<uint32_t> reached;  ///< [L, H] tokens with a gradient other than 0; all tokens without gradients
  /// [L] Half the mean over tokens of (g . e)^2, e the error of all heads' elements, on the text that was fitted and on
  /// the text that was held out of the fit: the second-order prediction of the loss, nats a token.
  std::vector<float> predicted_fitted, predicted_held_out;
  /// [L, U, N] Half the weighted mean of each transformed coordinate's square: what leaving it out would lose, nats a
  /// token, and so what its group's bits are for.
  std::vector<float> energy;
};

/// Whether a head was reached at so few of the text's tokens that its statistics say little: fewer than 1 %.
inline bool is_thin(uint32_t reached, int64_t tokens) { return int64_t{reached} * 100 < tokens; }

/// One of /key, /value.
struct TensorCodebooks {
  int codes = 0;                                        ///< C
  std::vector<float> codebook;                          ///< [L, H, C]; beyond 2^bits the quiet NaN 0x7fc00000
  std::vector<uint8_t> bits;                            ///< [L, H]
  std::vector<float> scale, zero;                       ///< [L, H, D] static per-channel; empty when online (values)
  std::vector<float> threshold_lower, threshold_upper;  ///< [L, H, D]; empty without sparse part or when online
  std::vector<float> norm_scale, norm_offset;           ///< [L, H] decoded level = fmaf(level, scale, offset); Q-Norm
  std::vector<float> outlier_fraction;                  ///< [L, H] measured on the calibration text
  // Vector codebooks (format 1.4), in place of the levels: VectorQuantiser of each layer. U units, H or 1, of N
  // coordinates.
  int units = 0, coordinates = 0;                ///< U, N; 0 without vector codebooks
  std::vector<uint8_t> group_width, group_bits;  ///< [L, U, N]
  std::vector<float> vectors;                    ///< of all layers, one after another
  std::vector<float> forward, inverse;           ///< [L, U, N, N] below /rotation
  std::vector<float> rotation_mean;              ///< [L, U, N]
  std::vector<uint16_t> channel_order;           ///< [L, U, N] without a rotation; else empty
  /// [L, U, N, K] Values that are predicted: times the token's decoded keys before RoPE (K channels a unit), what is
  /// taken off before coding and added after; else empty. Format 1.6.
  std::vector<float> from_key;
  TensorStats stats;
};

struct Codebook {
  std::string format_version = "1.0";  ///< as read
  Scheme scheme;
  ModelInfo model;
  Provenance provenance;
  std::vector<uint16_t> layer_index;  ///< [L]
  TensorCodebooks key, value;
  std::string content_sha256;  ///< set by read and write
  Tree extras;                 ///< datasets and attributes this build does not know, kept when the file is rewritten
};

/// The accounting of what the artifact holds: its measured outliers, and of vector codebooks its allocation and what a
/// deployment keeps (codebooks, the transforms' numbers that are not 0, means).
EffectiveBitsQuery bits_query(const Codebook& codebook, EffectiveBitsQuery query = {});

/// Where the vectors of each layer begin among tensor.vectors, and their number at the end: [L + 1].
std::vector<size_t> vector_offsets(const TensorCodebooks& tensor, int layers);

/// Writes beside the name and renames. Equal content gives equal bytes. Sets content_sha256. Throws Error(failed) for
/// content that read_codebook would refuse, before anything is written.
void write_codebook(const std::string& path, Codebook& codebook);
/// The same to a name that was taken before the work.
void write_codebook(AtomicFile& file, const std::string& path, Codebook& codebook);

/// The objects of the artifact's file, for exports of what no file holds. Sets content_sha256. Throws as
/// write_codebook.
Tree codebook_tree(Codebook& codebook);

/// Reads and checks structure, version, shapes, meaning and checksum. Throws Error(bad_input) with path and dataset.
Codebook read_codebook(const std::string& path);

/// All that is wrong with the file, one line each ("/key/scale: …"); empty when it is sound. Throws only if it can't be
/// opened.
std::vector<std::string> validate_codebook(const std::string& path);

}  // namespace kvcc
