#include "calib/fit/vector_fit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "calib/fit/key_regression.h"
#include "calib/fit/parallel.h"
#include "formats/codec/key_prediction.h"
#include "formats/core/effective_bits.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr int kTensors = 2;
constexpr int64_t kTokensAtOnce = 2048;  ///< of a task

/// Effective bits above which fours, whose codes end at 2.5 bits a coordinate, are not enough for the last coordinates.
constexpr double kManyBits = 3.5;

/// Widths of the groups that `left` coordinates from `first` on may be taken in; `taken`: how many they cover. Pairs
/// among the last half only with `pairs`: few bits are spent there, and fours spend them better.
std::vector<std::vector<int>> ways_of(int first, int size, int width, bool pairs, int& taken) {
  const int left = size - first;
  if (width > 0) {
    taken = std::min(width, left);
    return {{taken}};
  }
  constexpr int kBlock = 4;
  taken = std::min(kBlock, left);
  if (taken < kBlock || (first >= size / 2 && !pairs)) return {{taken}};
  return {{4}, {2, 2}};
}

/// What the transforms keep: means, and what is not 0 in the matrices.
double numbers_of(const std::vector<UnitTransform>& units) {
  double numbers = 0;
  for (const UnitTransform& unit : units) {
    numbers += static_cast<double>(unit.mean.size());
    for (const auto* m : {&unit.forward, &unit.inverse}) {
      numbers += static_cast<double>(m->size() - std::count(m->begin(), m->end(), 0.0f));
    }
  }
  return numbers;
}

double bits_of_numbers(double numbers) { return numbers * 32 / static_cast<double>(EffectiveBitsQuery{}.amortise); }

}  // namespace

/// One tensor's rows, weights and coordinates.
struct VectorFit::Data {
  int tensor = 0;
  int64_t tokens = 0, fitted = 0;  ///< of the fitted samples, which come first
  std::vector<uint8_t> in_fit;
  std::vector<UnitRows> rows;               ///< [U]
  std::vector<std::vector<float>> weights;  ///< [U] of all tokens, 0 for first ones
  std::vector<UnitTransform> units;
  std::vector<float> rest;  ///< [tokens, H, D] of values that are predicted, what is coded of them: rows' x; else empty
  std::vector<float> z;     ///< [U, N, tokens]
};

VectorFit::VectorFit(const CacheShape& shape, std::span<const Scheme> schemes, const VectorFitSettings& settings)
    : shape_(shape), schemes_(schemes.begin(), schemes.end()), settings_(settings) {
  tensors_.resize(static_cast<size_t>(shape.layers) * kTensors);
}

bool VectorFit::together(const Scheme& a, const Scheme& b) {
  if (a.value.predicted || b.value.predicted) return false;  // from keys as one budget decodes them
  if ((a.budget > kManyBits) != (b.budget > kManyBits)) return false;
  return a.key == b.key && a.value == b.value && a.weight == b.weight;
}

VectorFit::Data VectorFit::data_of(const LayerActivations& a, int tensor) const {
  const bool key = tensor == 0;
  const int dim = dim_of(tensor), heads = shape_.kv_heads;
  const std::string place = "layer " + std::to_string(a.layer) + (key ? " key" : " value");
  const std::span<const float> x = key ? a.key : a.value, grad = key ? a.key_grad : a.value_grad;
  Data data;
  data.tensor = tensor;
  const auto samples = static_cast<int64_t>(a.starts.size()) - 1, used = samples - settings_.held_out;
  data.tokens = a.starts.back();
  data.fitted = used > 0 ? a.starts[used] : 0;
  const size_t wanted = static_cast<size_t>(data.tokens) * heads * dim;
  if (data.fitted <= used || x.size() != wanted || (!grad.empty() && grad.size() != wanted)) {
    throw bad_input(place, std::to_string(samples) + " samples of together " + std::to_string(data.tokens) + " tokens",
                    "some that are not held out, of 2 tokens or more");
  }
  for (const std::span<const float> values : {x, grad}) {
    const auto bad = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
    if (bad == values.end()) continue;
    const int64_t i = bad - values.begin(), channel = i % dim, head = i / dim % heads, token = i / dim / heads;
    throw bad_input(place + ", head " + std::to_string(head) + ", token " + std::to_string(token) + ", channel " +
                        std::to_string(channel),
                    "NaN or infinity", "finite values");
  }
  data.in_fit.resize(data.tokens);
  std::fill_n(data.in_fit.begin(), data.fitted, 1);
  for (int64_t s = 0; s < used; ++s) data.in_fit[a.starts[s]] = 0;
  const bool weighted = schemes_[0].weight != FitWeight::none && !grad.empty();
  const int units = units_of(tensor), size = unit_size(tensor);
  for (int u = 0; u < units; ++u) {
    const int64_t at = int64_t{u} * size;
    data.rows.push_back(
        {data.tokens, size, int64_t{heads} * dim, x.data() + at, weighted ? grad.data() + at : nullptr, data.in_fit});
  }
  data.weights.resize(units);
  parallel_for(units, settings_.threads, [&](int u) {
    data.weights[u] = token_weights(data.rows[u]);
    for (int64_t s = 0; s < samples; ++s) data.weights[u][a.starts[s]] = 0;
  });
  return data;
}

void VectorFit::transform(Data& data) const {
  const int units = static_cast<int>(data.rows.size()), size = data.rows[0].size;
  data.z.resize(static_cast<size_t>(units) * size * data.tokens);
  const int chunks = static_cast<int>((data.tokens + kTokensAtOnce - 1) / kTokensAtOnce);
  parallel_for(units * chunks, settings_.threads, [&](int task) {
    const int unit = task / chunks;
    const int64_t begin = int64_t{task % chunks} * kTokensAtOnce;
    transform_rows(data.units[unit], data.rows[unit], data.z.data() + int64_t{unit} * size * data.tokens, begin,
                   std::min(begin + kTokensAtOnce, data.tokens));
  });
}

WeightedPoints VectorFit::points(const Data& data, const Block& block, const Group& group, bool fitted) const {
  const int64_t first = fitted ? 0 : data.fitted, count = fitted ? data.fitted : data.tokens - data.fitted;
  const int64_t plane = int64_t{block.unit} * data.rows[0].size + group.first;
  return {{group.width, count, data.z.data() + plane * data.tokens + first, data.tokens},
          data.weights[block.unit].data() + first};
}

std::vector<float> VectorFit::tempered(const WeightedPoints& points) const {
  std::vector<float> weights(points.weight, points.weight + points.points.count);
  for (float& w : weights) w = static_cast<float>(std::pow(w, settings_.weight_power));
  return weights;
}

std::vector<float> VectorFit::energies(const Data& data) const {
  const int size = data.rows[0].size;
  std::vector<float> out(data.rows.size() * size);
  parallel_for(static_cast<int>(out.size()), settings_.threads, [&](int i) {
    const float *z = data.z.data() + i * data.tokens, *weight = data.weights[i / size].data();
    double sum = 0;
    for (int64_t t = 0; t < data.fitted; ++t) sum += double{weight[t]} * z[t] * z[t];
    out[i] = static_cast<float>(0.5 * sum / static_cast<double>(data.fitted));
  });
  return out;
}

std::vector<VectorFit::Block> VectorFit::blocks_of(int tensor) const {
  const TensorScheme& scheme = scheme_of(tensor);
  const int units = units_of(tensor), size = unit_size(tensor);
  std::vector<Block> blocks;
  for (int u = 0; u < units; ++u) {
    for (int at = 0, taken = 0; at < size; at += taken) {
      Block block;
      block.unit = u;
      for (const std::vector<int>& widths : ways_of(at, size, scheme.width, schemes_[0].budget > kManyBits, taken)) {
        std::vector<Group> groups;
        int first = at;
        for (const int width : widths) {
          groups.push_back({first, width, {}, {}, {}});
          first += width;
        }
        block.ways.push_back(std::move(groups));
      }
      blocks.push_back(std::move(block));
    }
  }
  return blocks;
}

void VectorFit::tabulate(int row, const LayerActivations& activations) {
  std::vector<Data> data;
  for (int tensor = 0; tensor < kTensors; ++tensor) data.push_back(data_of(activations, tensor));
  if (!schemes_[0].value.predicted) return tabulate(row, activations.layer, data);
  tabulate(row, activations.layer, {data.data(), 1});
  // Bits are known when all layers are tabulated; keys of this layer's own best are much like what they will be.
  const std::vector<float> keys = decode(provisional_keys(row), activations.key);
  tensors_.at(static_cast<size_t>(row) * kTensors + 1).from_key = regress(data[1], keys);
  take_off(row, keys, data[1]);
  tabulate(row, activations.layer, {data.data() + 1, 1});
}

VectorQuantiser VectorFit::provisional_keys(int row) const {
  const Tensor& keys = tensors_.at(static_cast<size_t>(row) * kTensors);
  std::vector<GroupChoice> choices;
  for (const Block& block : keys.blocks) {
    GroupChoice choice;
    for (const std::vector<Group>& way : block.ways) {
      std::vector<RateCurve> curves;
      for (const Group& group : way) {
        RateCurve curve{group.held_out.empty() ? group.fitted : group.held_out, {}};
        for (size_t b = 0; b < curve.error.size(); ++b) curve.cost.push_back(static_cast<double>(b));
        curves.push_back(std::move(curve));
      }
      choice.ways.push_back(std::move(curves));
    }
    choices.push_back(std::move(choice));
  }
  const std::vector<GroupBits> chosen = kvcc::allocate(choices, schemes_[0].budget * shape_.kv_heads * shape_.head_dim);
  std::vector<std::vector<VectorCodebook>> books;
  for (size_t b = 0; b < keys.blocks.size(); ++b) {
    books.emplace_back();
    const std::vector<Group>& way = keys.blocks[b].ways[chosen[b].way];
    for (size_t g = 0; g < way.size(); ++g) books.back().push_back(way[g].books[chosen[b].bits[g]]);
  }
  return quantiser_of(row, 0, chosen, books).quantiser;
}

std::vector<float> VectorFit::decode(VectorQuantiser quantiser, std::span<const float> x) const {
  std::vector<float> decoded(x.size());
  make_codec(std::move(quantiser))->round_trip(x, decoded, settings_.threads, "keys", 0);
  return decoded;
}

std::vector<float> VectorFit::regress(const Data& values, const std::vector<float>& keys) const {
  const int units = units_of(1), k = unit_size(0), n = unit_size(1);
  std::vector<float> map;
  for (int u = 0; u < units; ++u) {
    std::vector<float> weights = values.weights[u];
    for (size_t t = 0; t < weights.size(); ++t) {
      const bool used = values.in_fit[t] != 0 && weights[t] > 0;
      weights[t] = used ? static_cast<float>(std::pow(weights[t], settings_.spread_power)) : 0.0f;
    }
    const std::vector<float> own = regress_on_keys({keys.data() + int64_t{u} * k, int64_t{units} * k, k},
                                                   {values.rows[u].x, values.rows[u].step, n}, weights);
    map.insert(map.end(), own.begin(), own.end());
  }
  return map;
}

void VectorFit::take_off(int row, const std::vector<float>& keys, Data& values) const {
  const std::vector<float>& map = tensors_.at(static_cast<size_t>(row) * kTensors + 1).from_key;
  const float* x = values.rows[0].x;  // units lie side by side
  values.rest.resize(static_cast<size_t>(values.tokens) * values.rows[0].step);
  KeyPrediction{units_of(1), unit_size(0), unit_size(1), map}.predict(keys, values.rest, settings_.threads);
  for (size_t i = 0; i < values.rest.size(); ++i) values.rest[i] = x[i] - values.rest[i];
  for (size_t u = 0; u < values.rows.size(); ++u) {
    values.rows[u].x = values.rest.data() + static_cast<int64_t>(u) * values.rows[u].size;
  }
}

void VectorFit::tabulate(int row, int layer, std::span<Data> data) {
  struct Task {
    Data* data;
    Block* block;
    Group* group;
  };
  std::vector<Task> tasks;
  for (Data& d : data) d.units.resize(d.rows.size());
  const int first = static_cast<int>(data[0].rows.size()),
            units = first + (data.size() > 1 ? static_cast<int>(data[1].rows.size()) : 0);
  parallel_for(units, settings_.threads, [&](int task) {
    Data& d = data[task < first ? 0 : 1];
    const int u = task < first ? task : task - first;
    const std::string place = "layer " + std::to_string(layer) + (d.tensor == 0 ? " key" : " value");
    const TensorScheme& scheme = scheme_of(d.tensor);
    d.units[u] = fisher_transform(d.rows[u], d.weights[u],
                                  {scheme.rotation, scheme.width, settings_.shrink, settings_.spread_power}, place);
  });
  for (Data& d : data) {
    transform(d);
    Tensor& to = tensors_.at(static_cast<size_t>(row) * kTensors + d.tensor);
    to.units = d.units;
    to.numbers = numbers_of(to.units) + static_cast<double>(to.from_key.size());
    to.blocks = blocks_of(d.tensor);
    for (Block& block : to.blocks) {
      for (std::vector<Group>& way : block.ways) {
        for (Group& group : way) tasks.push_back({&d, &block, &group});
      }
    }
  }
  parallel_for(static_cast<int>(tasks.size()), settings_.threads, [&](int i) {
    const Task& task = tasks[i];
    const Data& d = *task.data;
    Group& group = *task.group;
    const WeightedPoints fitted = points(d, *task.block, group, true), held = points(d, *task.block, group, false);
    const std::vector<float> weights = tempered(fitted);
    group.books = grow_codebooks({fitted.points, weights.data()}, scheme_of(d.tensor).bits, settings_.table_rounds);
    for (const VectorCodebook& book : group.books) {
      group.fitted.push_back(0.5 * coding_error(fitted, book.vectors) / static_cast<double>(fitted.points.count));
      if (held.points.count > 0) {
        group.held_out.push_back(0.5 * coding_error(held, book.vectors) / static_cast<double>(held.points.count));
      }
    }
  });
}

void VectorFit::write_table(int row, ByteWriter& out) const {
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    const Tensor& table = tensors_.at(static_cast<size_t>(row) * kTensors + tensor);
    out.put(table.numbers);
    for (const Block& block : table.blocks) {
      for (const std::vector<Group>& way : block.ways) {
        for (const Group& group : way) {
          out.put(group.fitted);
          out.put(group.held_out);
        }
      }
    }
  }
}

void VectorFit::read_table(int row, ByteReader& in) {
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    Tensor& table = tensors_.at(static_cast<size_t>(row) * kTensors + tensor);
    in.get(table.numbers);
    table.blocks = blocks_of(tensor);
    for (Block& block : table.blocks) {
      for (std::vector<Group>& way : block.ways) {
        for (Group& group : way) {
          in.get(group.fitted);
          in.get(group.held_out);
        }
      }
    }
  }
}

Excess VectorFit::excess() const {
  std::vector<HeldOutRatio> ratios;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    for (const Block& block : tensors_[t].blocks) {
      for (const std::vector<Group>& way : block.ways) {
        for (const Group& group : way) {
          for (size_t b = 0; b < group.held_out.size(); ++b) {
            const double ratio = std::log(group.held_out[b] / group.fitted[b]);
            if (!std::isfinite(ratio)) continue;
            ratios.push_back({static_cast<int>(t), group.width, place_of(t, group), static_cast<int>(b), ratio});
          }
        }
      }
    }
  }
  return Excess(ratios);
}

int VectorFit::place_of(size_t tensor, const Group& group) const {
  return group.first * kExcessPlaces / unit_size(static_cast<int>(tensor % kTensors));
}

void VectorFit::allocate() {
  const Excess more = excess();
  double numbers = 0;
  for (const Tensor& tensor : tensors_) numbers += tensor.numbers;
  const double elements =
      static_cast<double>(shape_.layers) * shape_.kv_heads * (shape_.head_dim + shape_.value_head_dim);
  const double context = static_cast<double>(EffectiveBitsQuery{}.context);
  for (const Scheme& scheme : schemes_) {
    const double full = std::min<double>(scheme.sink + scheme.residual, context) / context;
    std::vector<GroupChoice> choices;
    first_block_.clear();
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const Tensor& tensor = tensors_[t];
      first_block_.push_back(choices.size());
      for (const Block& block : tensor.blocks) {
        GroupChoice choice;
        for (const std::vector<Group>& way : block.ways) {
          std::vector<RateCurve> curves;
          for (const Group& group : way) {
            RateCurve curve;
            for (size_t b = 0; b < group.fitted.size(); ++b) {
              const int bits = static_cast<int>(b);
              curve.error.push_back(group.fitted[b] *
                                    more.factor(static_cast<int>(t), group.width, place_of(t, group), bits));
              curve.cost.push_back(static_cast<double>(b) * (1 - full) +
                                   bits_of_numbers(std::ldexp(group.width, bits)));
            }
            curves.push_back(std::move(curve));
          }
          choice.ways.push_back(std::move(curves));
        }
        choices.push_back(std::move(choice));
      }
    }
    chosen_.push_back(
        kvcc::allocate(choices, scheme.budget * elements - 16 * full * elements - bits_of_numbers(numbers)));
  }
}

std::vector<LayerVectors> VectorFit::fit(int row, const LayerActivations& activations) const {
  std::vector<LayerVectors> out(schemes_.size());
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    const size_t at = static_cast<size_t>(row) * kTensors + tensor;
    const Tensor& tables = tensors_[at];
    Data data = data_of(activations, tensor);
    if (tensor == 1 && schemes_[0].value.predicted) {
      take_off(row, decode(out[0].key.quantiser, activations.key), data);
    }
    data.units = tables.units;
    transform(data);
    // Schemes that agree in a group's bits share its codebook.
    using Wanted = std::tuple<size_t, int, size_t, int>;  // block, way, group, bits
    std::map<Wanted, VectorCodebook> books;
    for (const std::vector<GroupBits>& chosen : chosen_) {
      for (size_t b = 0; b < tables.blocks.size(); ++b) {
        const GroupBits& bits = chosen[first_block_[at] + b];
        for (size_t g = 0; g < bits.bits.size(); ++g) books[{b, bits.way, g, bits.bits[g]}];
      }
    }
    std::vector<std::map<Wanted, VectorCodebook>::iterator> tasks;
    for (auto entry = books.begin(); entry != books.end(); ++entry) tasks.push_back(entry);
    parallel_for(static_cast<int>(tasks.size()), settings_.threads, [&](int i) {
      const auto& [b, way, g, bits] = tasks[i]->first;
      const Block& block = tables.blocks[b];
      const Group& group = block.ways[way][g];
      tasks[i]->second = group.books[bits];
      if (bits == 0) return;
      WeightedPoints fitted = points(data, block, group, true);
      const std::vector<float> weights = tempered(fitted);
      fitted.weight = weights.data();
      improve(fitted, tasks[i]->second, settings_.final_rounds);
    });
    const std::vector<float> energy = energies(data);
    for (size_t s = 0; s < schemes_.size(); ++s) {
      std::vector<std::vector<VectorCodebook>> kept;
      for (size_t b = 0; b < tables.blocks.size(); ++b) {
        const GroupBits& bits = chosen_[s][first_block_[at] + b];
        kept.emplace_back();
        for (size_t g = 0; g < bits.bits.size(); ++g) kept.back().push_back(books.at({b, bits.way, g, bits.bits[g]}));
      }
      TensorVectors& to = tensor == 0 ? out[s].key : out[s].value;
      to = quantiser_of(row, tensor, {chosen_[s].data() + first_block_[at], tables.blocks.size()}, kept);
      to.energy = energy;
      to.from_key = tables.from_key;
      measure(activations, tensor, schemes_[s], data.rest, to);
    }
  }
  return out;
}

TensorVectors VectorFit::quantiser_of(int row, int tensor, std::span<const GroupBits> chosen,
                                      const std::vector<std::vector<VectorCodebook>>& books) const {
  const size_t at = static_cast<size_t>(row) * kTensors + tensor;
  const Tensor& tables = tensors_[at];
  TensorVectors out;
  VectorQuantiser& q = out.quantiser;
  q.heads = shape_.kv_heads;
  q.dim = dim_of(tensor);
  q.units = static_cast<int>(tables.units.size());
  for (const UnitTransform& unit : tables.units) {
    q.mean.insert(q.mean.end(), unit.mean.begin(), unit.mean.end());
    q.forward.insert(q.forward.end(), unit.forward.begin(), unit.forward.end());
    q.inverse.insert(q.inverse.end(), unit.inverse.begin(), unit.inverse.end());
    out.order.insert(out.order.end(), unit.order.begin(), unit.order.end());
  }
  const size_t n = static_cast<size_t>(q.size());
  q.width.resize(n * q.units);
  q.bits.resize(n * q.units);
  for (size_t b = 0; b < tables.blocks.size(); ++b) {
    const GroupBits& bits = chosen[b];
    const std::vector<Group>& groups = tables.blocks[b].ways[bits.way];
    for (size_t g = 0; g < groups.size(); ++g) {
      const size_t i = tables.blocks[b].unit * n + groups[g].first;
      q.width[i] = static_cast<uint8_t>(groups[g].width);
      q.bits[i] = static_cast<uint8_t>(bits.bits[g]);
      q.vectors.insert(q.vectors.end(), books[b][g].vectors.begin(), books[b][g].vectors.end());
    }
  }
  return out;
}

}  // namespace kvcc
