#include "calib/report/warnings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "formats/core/json.h"

namespace kvcc {
namespace {

/// A channel whose mean lies this many standard deviations from 0 spends its range on an offset (Qwen2's key biases).
constexpr double kOffset = 8;
/// Per channel the zero-point takes the offset out; what is kept exactly is fp16, of which this many standard
/// deviations leave a rounding of 3 % of one.
constexpr double kOffsetOfChannel = 64;
/// More than half of what the fit weighs with.
constexpr double kMostOfTheMass = 0.5;
/// Of the median mass of the kind's heads. Layers differ by a thousandfold, so that only what is far below counts.
constexpr double kLittleMass = 1e-6;
/// Standard deviations by which channels' means move between the halves of the text (root mean square).
constexpr double kDrift = 0.5;
/// Asked outliers times this.
constexpr double kTooManyOutliers = 2;
/// Tokens beyond a threshold, expected in a tail of a channel: with fewer the quantile is a guess.
constexpr double kTailTokens = 8;

/// What the rules look at beside the head itself.
struct Context {
  const Codebook& codebook;
  double median_mass[2] = {0, 0};  ///< of keys' and of values' heads
  const TensorScheme& scheme(const HeadReport& head) const {
    return is_key(head) ? codebook.scheme.key : codebook.scheme.value;
  }
  static bool is_key(const HeadReport& head) { return head.kind[0] == 'k'; }
  double median(const HeadReport& head) const { return median_mass[is_key(head) ? 0 : 1]; }
  /// Whether the fit of the head weighs with the Fisher diagonal.
  bool weighs(const HeadReport& head) const {
    return scheme(head).grid == Grid::nuq && codebook.scheme.weight != FitWeight::none;
  }
};

/// severity: 0 when the head does not raise it; the greater the worse. NaN (no statistic) never raises.
struct Rule {
  const char *name, *meaning, *cure;
  double (*severity)(const HeadReport&, const Context&);
  std::string (*cause)(const HeadReport&, const Context&);
};

double above(double value, double limit) { return value > limit ? value : 0; }
double percent(double share) { return 100 * share; }

constexpr std::array kRules = {
    Rule{"no-fisher", "no gradient reached the head: its k-means is unweighted",
         "calibrate on more text, and collect without --no-fisher",
         [](const HeadReport& h, const Context& c) { return h.fisher_mass == 0 && c.weighs(h) ? 1.0 : 0.0; },
         [](const HeadReport&, const Context&) { return std::string("the Fisher mass is 0"); }},
    Rule{"little-fisher", "almost no Fisher mass: the weights of the k-means are noise, or the head does not matter",
         "calibrate on more or other text",
         [](const HeadReport& h, const Context& c) {
           const double share = h.fisher_mass / c.median(h);
           return h.fisher_mass > 0 && share < kLittleMass && c.weighs(h) ? 1 / share : 0.0;
         },
         [](const HeadReport& h, const Context& c) {
           return fmt::format("a Fisher mass of {:.3g}, {:.1g} of the median {} head's", h.fisher_mass,
                              h.fisher_mass / c.median(h), h.kind);
         }},
    Rule{"thin", "gradients reach the head at fewer than 1 % of the tokens, so that its statistics say little",
         "calibrate on more or other text",
         [](const HeadReport& h, const Context& c) {
           const int64_t tokens = c.codebook.provenance.tokens;
           return h.reached > 0 && is_thin(static_cast<uint32_t>(h.reached), tokens)
                      ? static_cast<double>(tokens) / static_cast<double>(h.reached)
                      : 0.0;
         },
         [](const HeadReport& h, const Context& c) {
           return fmt::format("gradients at {} of {} tokens", h.reached, c.codebook.provenance.tokens);
         }},
    Rule{"constant-channels", "channels that never change on the calibration text; they decode exactly to their value",
         "nothing, where the model has them; else calibrate on text that moves them",
         [](const HeadReport& h, const Context&) { return above(static_cast<double>(h.constant_channels), 0); },
         [](const HeadReport& h, const Context&) {
           return fmt::format("{} of {} channels never change", h.constant_channels, h.channels.size());
         }},
    Rule{"offset", "a channel's mean is far from 0, such as a key bias of Qwen2's",
         "scale keys per channel before RoPE (@prerope/channel), whose zero-point takes the offset out: a range per "
         "token is wasted on it; with such a scheme only exact tokens and outliers, in fp16, lose precision",
         [](const HeadReport& h, const Context& c) {
           const bool taken_out = c.scheme(h).axis == Axis::channel || c.codebook.scheme.is_vector();
           return above(h.offset, taken_out ? kOffsetOfChannel : kOffset);
         },
         [](const HeadReport& h, const Context&) {
           return fmt::format("a channel's mean is {:.1f} standard deviations from 0", h.offset);
         }},
    Rule{"first-token",
         "over half of the Fisher mass is on the first token of the samples, which is quantised or fitted",
         "keep it exact (-sink1) and out of the fit, as the kvcc presets do",
         [](const HeadReport& h, const Context& c) {
           const Scheme& scheme = c.codebook.scheme;
           const bool counts = scheme.sink == 0 || (scheme.first_in_kmeans && c.weighs(h));
           return counts ? above(h.first_token_share, kMostOfTheMass) : 0;
         },
         [](const HeadReport& h, const Context&) {
           return fmt::format("{:.0f} % of the Fisher mass is on the first tokens", percent(h.first_token_share));
         }},
    Rule{"one-token", "one token that is not a first one carries over half of the remaining Fisher mass",
         "the k-means serves that token alone: calibrate on more text, or leave that sample out",
         [](const HeadReport& h, const Context& c) { return c.weighs(h) ? above(h.token_share, kMostOfTheMass) : 0; },
         [](const HeadReport& h, const Context&) {
           return fmt::format("token {} of sample {} carries {:.0f} % of the Fisher mass beyond first tokens",
                              h.token_position, h.token_sample, percent(h.token_share));
         }},
    Rule{"one-sample", "one sample carries most of the Fisher mass: the others hardly count in the k-means",
         "calibrate on more samples; look at the text of that one",
         [](const HeadReport& h, const Context& c) {
           const auto samples = static_cast<double>(std::max<int64_t>(1, c.codebook.provenance.samples));
           // Of two samples one always has half: the limit lies halfway between the even share and all for few samples.
           return c.weighs(h) ? above(h.sample_share, kMostOfTheMass + kMostOfTheMass / samples) : 0;
         },
         [](const HeadReport& h, const Context& c) {
           return fmt::format("sample {} of {} carries {:.0f} % of the Fisher mass beyond first tokens",
                              h.heaviest_sample, c.codebook.provenance.samples, percent(h.sample_share));
         }},
    Rule{"held-out-outliers",
         "thresholds fitted to one half of the text catch over twice the asked outliers on the other",
         "calibrate on more text, or on text of the kind that will be served",
         [](const HeadReport& h, const Context& c) {
           const double asked = c.codebook.scheme.sparse;
           return asked > 0 && c.scheme(h).axis == Axis::channel ? above(h.held_out_outliers, kTooManyOutliers * asked)
                                                                 : 0;
         },
         [](const HeadReport& h, const Context& c) {
           return fmt::format("{:.2f} % outliers on held-out text, {:.4g} % asked", percent(h.held_out_outliers),
                              percent(c.codebook.scheme.sparse));
         }},
    Rule{"few-levels", "fewer different levels than codes: too few different values, or more bits than they need",
         "calibrate on more text, or take fewer bits",
         [](const HeadReport& h, const Context&) {
           return h.distinct >= 0 ? above(static_cast<double>((1L << h.bits) - h.distinct), 0) : 0;
         },
         [](const HeadReport& h, const Context&) {
           return fmt::format("{} different levels for {} codes", h.distinct, 1L << h.bits);
         }},
    Rule{"unused-codes", "codebook entries that no element of the calibration text takes",
         "take fewer bits, or levels fitted to the data (nuq)",
         [](const HeadReport& h, const Context&) { return above(static_cast<double>(h.unused_codes), 0); },
         [](const HeadReport& h, const Context&) {
           return fmt::format("{} of {} levels are never used", h.unused_codes, 1L << h.bits);
         }},
    Rule{"drift",
         "the two halves of the calibration text differ: channels' means move by over half a standard deviation",
         "the text is of several kinds or too short: calibrate on more samples, mixed as they will be served",
         [](const HeadReport& h, const Context&) { return above(h.drift, kDrift); },
         [](const HeadReport& h, const Context&) {
           return fmt::format("channels' means move by {:.2f} standard deviations between the halves", h.drift);
         }},
};

struct WholeRule {
  const char *name, *meaning, *cure;
  /// "" when it is not raised.
  std::string (*cause)(const Codebook&);
};

bool has_tokens_flavour(const Provenance& from) {
  if (from.dataset_flavour == "tokens") return true;
  if (from.sources_json.empty()) return false;
  using nlohmann::json;
  const std::string place = "/provenance";  // the parser takes objects alone
  const auto document = parse_json<json>("{\"sources\":" + from.sources_json + "}", place + ": sources");
  const auto sources = json_member<std::vector<json>>(document, "sources", place);
  return std::any_of(sources.begin(), sources.end(), [&](const json& source) {
    return json_member<std::string>(source, "text_flavour", place + ": sources") == "tokens";
  });
}

constexpr std::array kWholeRules = {
    WholeRule{"thin-data", "fewer samples than asked for", "give more text, or see why samples were left out",
              [](const Codebook& c) {
                const Provenance& from = c.provenance;
                if (from.samples_asked <= from.samples) return std::string();
                return fmt::format("{} samples of {} tokens, {} asked for", from.samples, from.seqlen,
                                   from.samples_asked);
              }},
    WholeRule{"few-tokens", "too few tokens for the thresholds: each rests on a handful of values",
              "more --samples or a larger --seqlen",
              [](const Codebook& c) {
                const bool channel = c.scheme.key.axis == Axis::channel || c.scheme.value.axis == Axis::channel;
                const double tail = static_cast<double>(c.provenance.tokens) * c.scheme.sparse / 2;
                if (!channel || c.scheme.sparse == 0 || tail >= kTailTokens) return std::string();
                return fmt::format("{} tokens: {:.1f} of a channel lie beyond each threshold", c.provenance.tokens,
                                   tail);
              }},
    WholeRule{"tokens-flavour",
              "calibration text of the tokens flavour: rare words are <unk> and spaces surround punctuation",
              "calibrate on the raw flavour of the data set, or on your own text",
              [](const Codebook& c) {
                if (!has_tokens_flavour(c.provenance)) return std::string();
                return fmt::format("{} is of the tokens flavour, with <unk> for rare words", c.provenance.dataset_name);
              }},
};

double median_mass(const std::vector<HeadReport>& heads, bool key) {
  std::vector<double> masses;
  for (const HeadReport& head : heads) {
    if (Context::is_key(head) == key && head.fisher_mass > 0) masses.push_back(head.fisher_mass);
  }
  if (masses.empty()) return 0;
  std::nth_element(masses.begin(), masses.begin() + static_cast<long>(masses.size() / 2), masses.end());
  return masses[masses.size() / 2];
}

}  // namespace

std::span<const char* const> warning_names() {
  static const auto names = [] {
    std::vector<const char*> all;
    for (const WholeRule& rule : kWholeRules) all.push_back(rule.name);
    for (const Rule& rule : kRules) all.push_back(rule.name);
    return all;
  }();
  return names;
}

std::string warning_meaning(const std::string& name) {
  const auto text = [](const auto& rule) { return fmt::format("{}; {}", rule.meaning, rule.cure); };
  for (const WholeRule& rule : kWholeRules) {
    if (name == rule.name) return text(rule);
  }
  for (const Rule& rule : kRules) {
    if (name == rule.name) return text(rule);
  }
  return "";
}

std::vector<Warning> find_warnings(const Codebook& codebook, std::vector<HeadReport>& heads) {
  std::vector<Warning> warnings;
  for (const WholeRule& rule : kWholeRules) {
    if (std::string cause = rule.cause(codebook); !cause.empty()) {
      warnings.push_back({rule.name, "calibration text", std::move(cause), rule.cure, {}});
    }
  }
  const Context context{codebook, {median_mass(heads, true), median_mass(heads, false)}};
  for (HeadReport& head : heads) head.flags.clear();
  for (const Rule& rule : kRules) {
    std::vector<std::pair<double, size_t>> found;
    for (size_t i = 0; i < heads.size(); ++i) {
      const double severity = rule.severity(heads[i], context);
      if (!(severity > 0)) continue;
      heads[i].flags.emplace_back(rule.name);
      found.emplace_back(severity, i);
    }
    if (found.empty()) continue;
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    const HeadReport& worst = heads[found.front().second];
    Warning warning{rule.name,
                    fmt::format("layer {} {} head {}", worst.layer, worst.kind, worst.head),
                    rule.cause(worst, context),
                    rule.cure,
                    {}};
    if (found.size() > 1) warning.where += fmt::format(" and {} more", found.size() - 1);
    for (const auto& [severity, i] : found) warning.heads.push_back(i);
    warnings.push_back(std::move(warning));
  }
  return warnings;
}

}  // namespace kvcc
