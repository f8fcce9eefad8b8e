// What a codebook artifact, with or without the activations it was fitted to, says about itself: one structure that
// kvcc inspect prints as text, JSON, CSV and HTML. Names, units and formulas: formats/spec/statistics.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "formats/store/activations.h"
#include "formats/store/codebook.h"

namespace kvcc {

/// One head's channels, [D] each, unit of the elements. Empty where the artifact has no such statistic or the scheme no
/// such constant.
struct ChannelReport {
  std::vector<float> min, max, mean, deviation;         ///< on the calibration text; keys before RoPE
  std::vector<float> fisher;                            ///< mean squared gradient, (nat/element)^2
  std::vector<float> scale, zero;                       ///< static ones
  std::vector<float> threshold_lower, threshold_upper;  ///< static ones
  std::vector<float> range_min, range_max;              ///< of the activations given; keys before RoPE
  std::vector<float> rotated_min, rotated_max;          ///< the same keys after RoPE; empty for values
  size_t size() const { return min.size(); }
};

/// One head of one tensor of one layer.
struct HeadReport {
  int layer = 0;                ///< the model's number
  const char* kind = "key";     ///< "key" or "value"
  int head = 0;                 ///< KV head
  int bits = 0;                 ///< width of a code; -1 where groups of vector codebooks have their own
  std::vector<float> codebook;  ///< the 2^bits levels, normalised
  // Where the artifact has no such statistic the number is NaN: "-" in tables, null in JSON. Counts are -1 there.
  double range_min = 0, range_max = 0;  ///< over the head's channels, unit of the elements
  double outlier_fraction = 0;          ///< stored sparse on the calibration text
  double held_out_outliers = 0;         ///< outside thresholds fitted to the other half of the text
  double fisher_mass = 0;               ///< sum of F over tokens and channels
  double weighted_sse = 0;              ///< sum of F (x - x^)^2, nat^2
  double sqnr_db = 0;
  double first_token_share = 0;    ///< of fisher_mass, on the first token of samples
  double sample_share = 0;         ///< of fisher_mass, on the heaviest sample
  double token_share = 0;          ///< of fisher_mass, on the heaviest token
  double drift = 0;                ///< of channels' means between the halves of the text, in standard deviations
  double offset = 0;               ///< greatest |mean| / standard deviation of a channel
  double fit_gap_bound = 0;        ///< relative distance of the fit from the optimum, at most
  int64_t distinct = -1;           ///< different levels
  int64_t reached = -1;            ///< tokens with a gradient other than 0; all of them without gradients
  int64_t unused_codes = -1;       ///< of the different levels, those that no element took
  int64_t constant_channels = -1;  ///< channels whose least and largest value are the same
  int64_t heaviest_sample = -1;    ///< number of the sample of sample_share
  int64_t token_sample = -1, token_position = -1;  ///< of the token of token_share
  std::vector<float> histogram;  ///< [kNormalisedBins] share of the elements in each bin (normalised_edge), or empty
  std::vector<float> code_use;   ///< [2^bits] share of the codes, or empty
  ChannelReport channels;
  std::vector<std::string> flags;  ///< names of the warnings that this head has, see warnings.h
};

/// Something that makes a calibration doubtful, once for all heads that it concerns.
struct Warning {
  std::string name;           ///< "thin-data", …: warning_names()
  std::string where;          ///< "calibration text"; "layer 3 key head 1 and 11 more heads", the worst first
  std::string cause;          ///< what was found, with numbers of the worst
  std::string cure;           ///< what to do
  std::vector<size_t> heads;  ///< of ReportData::heads, the worst first; empty: of the whole artifact
};

/// Ranges of an activations folder per channel, [L, H, D] each; keys before and after RoPE.
struct ActivationRanges {
  std::vector<int> layer_index;  ///< [L]
  int heads = 0, dim = 0, value_dim = 0;
  std::string content_sha256;                                     ///< of the folder
  std::vector<float> key_min, key_max, rotated_min, rotated_max;  ///< rotated: empty with a rotated_problem
  std::vector<float> value_min, value_max;
  std::string rotated_problem;  ///< why keys could not be turned; "" otherwise
};

/// Reads all shards, with `threads` threads. A key at position p of its sample is turned as the model turns it there.
/// `progress` is called once a layer and may be empty. Throws Error(bad_input).
ActivationRanges read_activation_ranges(const ActivationsReader& reader, int threads,
                                        const std::function<void()>& progress = {});

struct ReportData {
  Codebook codebook;
  std::vector<HeadReport> heads;  ///< by layer, kind (keys first) and head
  std::vector<Warning> warnings;
  bool has_rotated = false;     ///< channels.rotated_* of keys are there
  std::string rotated_problem;  ///< why they are not though activations were given; "" otherwise
};

/// Everything about an artifact. With `ranges` also the channels' ranges in those activations; throws Error(bad_input)
/// naming `ranges_place` when they are of another geometry.
ReportData report_data(Codebook codebook, const ActivationRanges* ranges = nullptr,
                       const std::string& ranges_place = "");

/// The statistics of the first `samples` samples of an activations folder that need no codebook, with ranges before and
/// after RoPE; heads have no levels, and the codebook's scheme is fp. `progress` is called once a layer and may be
/// empty. Throws Error(bad_input).
ReportData activations_report(const ActivationsReader& reader, int64_t samples, int threads,
                              const std::function<void()>& progress = {});

}  // namespace kvcc
