#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "formats/store/codebook_fields.h"
#include "formats/store/codebook_parse.h"
#include "formats/store/model_json.h"

namespace kvcc {
namespace {

constexpr uint32_t kPadding = 0x7fc00000;  ///< bit pattern of codebook entries beyond 2^bits

/// Adds problems of one tensor; of each rule only the first place, with how many there are.
class TensorCheck {
 public:
  TensorCheck(const Codebook& codebook, bool key, std::vector<std::string>& problems)
      : tensor_(key ? codebook.key : codebook.value),
        scheme_(key ? codebook.scheme.key : codebook.scheme.value),
        heads_(codebook.model.shape.kv_heads),
        path_(key ? "/key" : "/value"),
        layer_index_(codebook.layer_index),
        problems_(problems) {}

  void run() {
    if (scheme_.grid == Grid::vector) {
      check_groups();
      check_transform();
    } else {
      check_bits();
      check_levels();
    }
    if (const size_t found = tensor_.stats.code_use.size(); found > 0 && found != tensor_.codebook.size()) {
      problems_.push_back(fmt::format("{}/stats/code_use: {} values; wanted {}, one for each of the codebook", path_,
                                      found, tensor_.codebook.size()));
    }
    check_each(
        "scale", tensor_.scale, [](float x) { return std::isfinite(x) && x > 0; }, "a finite scale above 0");
    check_each(
        "zero", tensor_.zero, [](float x) { return std::isfinite(x); }, "a finite value");
    check_each(
        "outlier_fraction", tensor_.outlier_fraction, [](float x) { return x >= 0 && x <= 1; }, "0 to 1");
    check_each(
        "norm_scale", tensor_.norm_scale, [](float x) { return std::isfinite(x) && x > 0; }, "a finite scale above 0");
    check_each(
        "norm_offset", tensor_.norm_offset, [](float x) { return std::isfinite(x); }, "a finite value");
    check_pairs("threshold_lower", tensor_.threshold_lower, "threshold_upper", tensor_.threshold_upper);
    check_pairs("stats/min", tensor_.stats.min, "stats/max", tensor_.stats.max);
    for (const CodebookField& field : tensor_fields()) {
      if (field.stat_floats == nullptr) continue;
      const std::string name = field.path;
      const std::vector<float>& values = tensor_.stats.*field.stat_floats;
      if (std::string(field.axes) == "layer") {
        for (size_t layer = 0; layer < values.size(); ++layer) {
          if (std::isfinite(values[layer]) && values[layer] >= 0) continue;
          report(name, 1, fmt::format("layer {}", layer_index_[layer]), fmt::format("{}", values[layer]),
                 "a finite value, 0 or more");
          break;
        }
      } else if (name == "stats/sqnr_db") {  // +infinity: nothing was lost
        check_each(
            name, values, [](float x) { return std::isfinite(x) || x > 0; }, "a number or +infinity");
      } else if (name == "stats/min" || name == "stats/max" || name == "stats/mean") {
        check_each(
            name, values, [](float x) { return std::isfinite(x); }, "a finite value");
      } else {
        check_each(
            name, values, [](float x) { return std::isfinite(x) && x >= 0; }, "a finite value, 0 or more");
      }
    }
  }

 private:
  /// "layer 3 head 1 channel 5" of element i of an array with `per_head` values a head.
  std::string position(size_t i, size_t per_head, const char* axis) const {
    const size_t head = i / per_head;
    const size_t layer = head / static_cast<size_t>(heads_);
    std::string text = fmt::format("layer {} head {}", layer_index_[layer], head % static_cast<size_t>(heads_));
    if (per_head > 1) text += fmt::format(" {} {}", axis, i % per_head);
    return text;
  }

  size_t heads_in_all() const { return layer_index_.size() * static_cast<size_t>(heads_); }

  void report(const std::string& name, size_t count, const std::string& where, const std::string& found,
              const std::string& wanted) {
    if (count == 0) return;
    const std::string more = count > 1 ? fmt::format(" (and {} more)", count - 1) : "";
    problems_.push_back(fmt::format("{}/{}: {} at {}{}; wanted {}", path_, name, found, where, more, wanted));
  }

  template <typename Good>
  void check_each(const std::string& name, const std::vector<float>& values, Good good, const std::string& wanted) {
    const size_t per_head = values.size() / std::max<size_t>(1, heads_in_all());
    size_t count = 0, first = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!good(values[i]) && count++ == 0) first = i;
    }
    if (count > 0) report(name, count, position(first, per_head, "channel"), fmt::format("{}", values[first]), wanted);
  }

  void check_pairs(const std::string& lower_name, const std::vector<float>& lower, const std::string& upper_name,
                   const std::vector<float>& upper) {
    if (lower.size() != upper.size()) return;  // one of them is missing: reported, or both are optional
    const size_t per_head = lower.size() / std::max<size_t>(1, heads_in_all());
    size_t count = 0, first = 0;
    for (size_t i = 0; i < lower.size(); ++i) {
      const bool good = std::isfinite(lower[i]) && std::isfinite(upper[i]) && lower[i] <= upper[i];
      if (!good && count++ == 0) first = i;
    }
    if (count == 0) return;
    report(lower_name, count, position(first, per_head, "channel"),
           fmt::format("{} with {} {}", lower[first], upper_name, upper[first]), "finite, and not above " + upper_name);
  }

  /// "layer 3 unit 0 coordinate 5" of element i of a [L, U, N] array.
  std::string place_of(size_t i) const {
    const size_t n = static_cast<size_t>(tensor_.coordinates), units = static_cast<size_t>(tensor_.units);
    return fmt::format("layer {} unit {} coordinate {}", layer_index_[i / n / units], i / n % units, i % n);
  }

  void check_groups() {
    constexpr int kMostWidth = 8;
    const size_t n = static_cast<size_t>(tensor_.coordinates);
    size_t wrong = 0, where = 0, wrong_bits = 0, where_bits = 0;
    for (size_t row = 0; row < tensor_.group_width.size(); row += n) {
      size_t covered = 0;  // coordinates of groups so far
      for (size_t i = 0; i < n; ++i) {
        const int width = tensor_.group_width[row + i], bits = tensor_.group_bits[row + i];
        const bool begins = i == covered;
        if (begins ? width < 1 || width > kMostWidth || i + width > n : width != 0) {
          if (wrong++ == 0) where = row + i;
        }
        if (bits > (width > 0 ? scheme_.bits : 0) && wrong_bits++ == 0) where_bits = row + i;
        if (begins) covered += std::max(width, 1);
      }
    }
    if (wrong > 0) {
      report("group_width", wrong, place_of(where), fmt::format("{}", tensor_.group_width[where]),
             "groups of 1 to 8 coordinates, one after another, 0 inside them");
    }
    if (wrong_bits > 0) {
      report("group_bits", wrong_bits, place_of(where_bits), fmt::format("{}", tensor_.group_bits[where_bits]),
             fmt::format("at most {} where a group begins, as the scheme says, and 0 inside it", scheme_.bits));
    }
    if (wrong + wrong_bits > 0) return;
    const size_t wanted = vector_offsets(tensor_, static_cast<int>(layer_index_.size())).back();
    if (tensor_.vectors.size() != wanted) {
      problems_.push_back(fmt::format("{}/vectors: {} numbers; wanted {}, 2^bits times width of every group", path_,
                                      tensor_.vectors.size(), wanted));
    }
  }

  void check_transform() {
    const auto finite = [&](const char* name, const std::vector<float>& values) {
      const auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
      if (bad != values.end()) {
        problems_.push_back(fmt::format("{}: {} at {}; wanted finite values", name, *bad, bad - values.begin()));
      }
    };
    finite((path_ + "/vectors").c_str(), tensor_.vectors);
    finite(("/rotation" + path_ + "/forward").c_str(), tensor_.forward);
    finite(("/rotation" + path_ + "/inverse").c_str(), tensor_.inverse);
    finite(("/rotation" + path_ + "/mean").c_str(), tensor_.rotation_mean);
    finite(("/rotation" + path_ + "/from_key").c_str(), tensor_.from_key);
    const size_t n = static_cast<size_t>(tensor_.coordinates);
    for (size_t row = 0; row < tensor_.channel_order.size(); row += n) {
      std::vector<bool> seen(n);
      for (size_t i = row; i < row + n; ++i) {
        const uint16_t channel = tensor_.channel_order[i];
        if (channel < n && !seen[channel]) {
          seen[channel] = true;
          continue;
        }
        problems_.push_back(
            fmt::format("{}/channel_order: {} at {}; wanted every channel once", path_, channel, place_of(i)));
        return;
      }
    }
  }

  void check_bits() {
    size_t count = 0, first = 0;
    int most = 0;
    for (size_t i = 0; i < tensor_.bits.size(); ++i) {
      const int bits = tensor_.bits[i];
      most = std::max(most, bits);
      if ((bits < 1 || bits > 8 || bits != scheme_.bits) && count++ == 0) first = i;
    }
    if (count > 0) {
      report("bits", count, position(first, 1, ""), fmt::format("{}", tensor_.bits[first]),
             fmt::format("{} as the scheme says", scheme_.bits));
    }
    if (most <= 8 && tensor_.codes != 1 << most) {
      problems_.push_back(
          fmt::format("{}/codebook: {} codes; wanted {}, 2^bits of the largest", path_, tensor_.codes, 1 << most));
    }
  }

  void check_levels() {
    const size_t codes = static_cast<size_t>(tensor_.codes);
    size_t count = 0;
    std::string where, found, wanted;
    const auto fault = [&](size_t i, std::string what, std::string rule) {
      if (count++ > 0) return;
      where = position(i, codes, "code");
      found = std::move(what);
      wanted = std::move(rule);
    };
    for (size_t head = 0; head < tensor_.bits.size(); ++head) {
      const size_t used = std::min<size_t>(codes, size_t{1} << std::min<int>(tensor_.bits[head], 16));
      for (size_t c = 0; c < codes; ++c) {
        const size_t i = head * codes + c;
        const float level = tensor_.codebook[i];
        if (c >= used) {
          if (std::bit_cast<uint32_t>(level) != kPadding) {
            fault(i, fmt::format("{:#010x}", std::bit_cast<uint32_t>(level)), "the padding 0x7fc00000 beyond 2^bits");
          }
        } else if (!std::isfinite(level) || std::fabs(level) > 1.0f) {
          fault(i, fmt::format("{}", level), "levels in [-1, 1]");
        } else if (c > 0 && level < tensor_.codebook[i - 1]) {
          fault(i, fmt::format("{} after {}", level, tensor_.codebook[i - 1]), "levels that do not decrease");
        }
      }
    }
    report("codebook", count, where, found, wanted);
  }

  const TensorCodebooks& tensor_;
  const TensorScheme& scheme_;
  const int heads_;
  const std::string path_;
  const std::vector<uint16_t>& layer_index_;
  std::vector<std::string>& problems_;
};

/// Texts of JSON, which are parsed where they are needed.
void check_json(const Codebook& codebook, std::vector<std::string>& problems) {
  try {
    check_rope_scaling(codebook.model.rope, "/model: attribute rope_scaling", "/model: attribute rope_scaling_json");
    const std::string& sources = codebook.provenance.sources_json;
    if (sources.empty()) return;
    const std::string place = "/provenance: attribute sources";  // a list; the parser takes objects alone
    const auto document = parse_json<nlohmann::json>("{\"sources\":" + sources + "}", place);
    for (const auto& source : json_member<std::vector<nlohmann::json>>(document, "sources", place)) {
      json_member<std::string>(source, "text_flavour", place);
    }
  } catch (const Error& error) {
    problems.push_back(error.what());
  }
}

/// Kernels turn pairs of channels of a head, so an odd or larger number would make them read beyond it.
void check_model(const ModelInfo& model, std::vector<std::string>& problems) {
  const CacheShape& shape = model.shape;
  if (model.rope.rotary_dim % 2 != 0 || model.rope.rotary_dim > shape.head_dim) {
    problems.push_back(
        fmt::format("/model: attribute rope_rotary_dim is {}; wanted an even number from 0 to {}, head_dim",
                    model.rope.rotary_dim, shape.head_dim));
  }
  std::set<int> seen;
  for (const int layer : model.sliding_window_layers) {
    const bool inside = layer >= 0 && layer < shape.layers;
    if (inside && seen.insert(layer).second) continue;
    problems.push_back(
        fmt::format("/model: attribute sliding_window_layers has {}{}; wanted different numbers from 0 to {}", layer,
                    inside ? " twice" : "", shape.layers - 1));
    break;
  }
}

}  // namespace

void check_codebook_values(const Codebook& codebook, std::vector<std::string>& problems) {
  check_model(codebook.model, problems);
  check_json(codebook, problems);
  for (size_t i = 1; i < codebook.layer_index.size(); ++i) {
    if (codebook.layer_index[i] <= codebook.layer_index[i - 1]) {
      problems.push_back(fmt::format("/layer_index: {} after {}; wanted ascending numbers", codebook.layer_index[i],
                                     codebook.layer_index[i - 1]));
      break;
    }
  }
  TensorCheck(codebook, true, problems).run();
  TensorCheck(codebook, false, problems).run();
}

}  // namespace kvcc
