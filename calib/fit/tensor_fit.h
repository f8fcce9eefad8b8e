// One tensor (key or value) of one layer, fitted for several schemes at once in stages of independent tasks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "calib/fit/fit.h"
#include "calib/fit/histogram.h"

namespace kvcc {

/// Activations of one tensor. Not owned.
struct TensorInput {
  std::string name;  ///< "layer 3 key", for errors
  int64_t samples = 0;
  std::vector<int64_t> starts;  ///< [samples + 1] first row of each sample, then the number of rows
  int heads = 0, dim = 0;
  std::span<const float> x, grad;  ///< [rows, heads, dim]; grad may be empty
  int64_t rows() const { return starts.back(); }
  int64_t begin(int64_t sample) const { return starts[static_cast<size_t>(sample)]; }
  int64_t end(int64_t sample) const { return starts[static_cast<size_t>(sample) + 1]; }
  int64_t length(int64_t sample) const { return end(sample) - begin(sample); }
  int64_t sample_of(int64_t row) const {
    return std::upper_bound(starts.begin(), starts.end(), row) - starts.begin() - 1;
  }
  /// Rows from the first one of the second half of the samples; of one sample: of its tokens.
  int64_t second_half() const { return samples > 1 ? begin((samples + 1) / 2) : (rows() + 1) / 2; }
  int row_size() const { return heads * dim; }
};

/// What one scheme asks of one tensor.
struct TensorPlan {
  TensorScheme tensor;
  double sparse = 0;
  int sink = 0;
  CodebookScope scope = CodebookScope::head;
  FitWeight weight = FitWeight::fs2;
  bool first_in_thresholds = false, first_in_kmeans = false;
  bool capped = false, qnorm = false;
  bool measured = true;  ///< false: keys taken after RoPE, whose error these activations can't tell
};

/// How values become normalised: static per channel, or online per token.
struct Normaliser {
  Axis axis = Axis::channel;
  double sparse = 0;
  bool first = false;                            ///< channel: the first tokens count
  std::vector<float> scale, zero, lower, upper;  ///< channel: [H, D]
  std::vector<float> held_out;                   ///< channel with sparse part: [H] share outside, or empty
  int tail = 0;                                  ///< token: outliers of each end
  std::vector<float> token_scale, token_zero;    ///< token: [N]; scale 0: a constant token
  std::vector<uint16_t> columns;                 ///< token: [N, 2 tail] outliers, ascending
};

class TensorFitter {
 public:
  TensorFitter(TensorInput input, std::vector<TensorPlan> plans);

  /// Stages 0 … kStages - 1 in order; the tasks of a stage are independent.
  static constexpr int kStages = 6;
  int tasks(int stage) const;
  void run(int stage, int task);

  /// After the last stage.
  TensorFit result(int plan) const;

 private:
  struct Weighting {  ///< one weighted distribution of normalised values, a histogram for each head
    int normaliser;
    FitWeight weight;
    bool first;
    std::vector<std::unique_ptr<Histogram>> heads;
  };
  /// Codebooks of several widths from one weighting. `most` codes decide how fine the superpoints are: 16 for widths up
  /// to 4 bits, else the width's own, so that a scheme's bytes don't depend on the schemes fitted beside it.
  struct Clustering {
    int weighting;
    CodebookScope scope;
    int most;
    std::vector<int> counts;                     ///< numbers of codes
    std::vector<std::vector<KMeans1d>> results;  ///< [H or 1][count]
  };
  struct Work {  ///< of one plan
    int normaliser = -1, clustering = -1, count = -1;
    std::vector<double> weighted, error, energy;    ///< [samples, H]
    std::vector<int64_t> outliers;                  ///< [samples, H]
    std::vector<float> norm_scale, norm_offset;     ///< [H] of Q-Norm
    std::vector<std::vector<int64_t>> bins, codes;  ///< [samples] of [H, kUsageBins], [H, C]
  };

  TensorInput in_;
  std::vector<TensorPlan> plans_;
  std::vector<Work> work_;
  std::vector<Normaliser> normalisers_;
  std::vector<Weighting> weightings_;
  std::vector<Clustering> clusterings_;
  TensorFit stats_;  ///< the statistics that no scheme changes

  int add_normaliser(const TensorPlan& plan);
  int add_weighting(int normaliser, const TensorPlan& plan);
  void add_clustering(Work& work, int weighting, const TensorPlan& plan);

  void describe_head(int head);  // stage 0
  void describe_mass(int head);
  void normalise_channels(Normaliser& normaliser, int head);  // stage 1
  void normalise_tokens(Normaliser& normaliser, int64_t sample);
  void cluster(Clustering& clustering, int task);  // stage 3
  void match_moments(int plan, int head);          // stage 4: Q-Norm of a codebook of its own or of the layer
  void measure(int plan, int64_t sample);          // stage 5

  template <typename Use>
  void walk(const Weighting& weighting, int head, bool weighted, const Use& use) const;
  Histogram histogram(const Weighting& weighting, int head, bool weighted) const;
  LevelTable table(int plan) const;
  void add_usage(const Work& work, TensorFit& fit) const;
};

}  // namespace kvcc
