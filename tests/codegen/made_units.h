// Units of configurations without an artifact, for the drivers: by name, by list, or drawn.
#pragma once

#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"

namespace kvcc::made {

using namespace codegen;

inline TensorSpec tensor_spec(const TensorConfiguration& t) {
  TensorSpec spec;
  if (t.grid == Grid::vector) return spec;  // its units embed no tables
  const int codes = 1 << t.bits;
  for (int i = 0; i < 4 * codes; ++i) {
    spec.levels.push_back(-1.0f + 2.0f * static_cast<float>(i % codes) / static_cast<float>(codes));
  }
  if (t.mixed) spec.bits.assign(4, static_cast<uint8_t>(t.bits));
  return spec;
}

/// Two layers of two heads.
inline KernelSpec kernel_spec(const Configuration& c) {
  KernelSpec spec;
  static_cast<TensorSpec&>(spec) = tensor_spec(c);
  if (c.family == Family::attention) spec.value = tensor_spec(c.value);
  spec.configuration = c;
  spec.name = name(c);
  spec.symbol = "kvcc_" + spec.name;
  spec.layers = 2;
  spec.heads = 2;
  return spec;
}

/// A legal configuration of mma-1; keys and values of attention are drawn apart, and may be one width of several.
inline Configuration draw(std::mt19937& random) {
  const auto any = [&](const auto& values) { return values[random() % values.size()]; };
  const std::vector<Family> all = families_of(Layout::mma);
  Configuration c;
  c.family = all[random() % (all.size() - 1)];  // copy_pages, the last, has no choices
  c.layout = Layout::mma;
  const Choices& list = choices(Layout::mma, c.family);
  const auto draw_tensor = [&](TensorConfiguration& t) {
    const Scale scale = any(list.scales);
    t = {Grid::nuq, any(list.bits), random() % 4 == 0, scale.axis, any(list.head_dims), scale.sparse};
  };
  draw_tensor(c);
  if (c.family == Family::attention) {
    draw_tensor(c.value);
    c.value.head_dim = c.head_dim;
  }
  c.rope = any(list.ropes);
  if (c.rope != RopeKind::none) c.rotary_dim = 16 * (1 + static_cast<int>(random() % (c.head_dim / 16)));
  if (takes_group(c.family)) c.group_tile = random() % 2 == 0 ? 8 : 16;
  c.dtype = any(list.dtypes);
  return c;
}

/// The same, of a reader whose blocks take each page together: 9 to 16 queries of a head of more than 128 channels.
inline Configuration draw_by_block(std::mt19937& random) {
  for (;;) {
    const Configuration c = draw(random);
    if (takes_group(c.family) && c.group_tile == 16 && c.head_dim > 128) return c;
  }
}

/// NAME; "@shipped": the rows of layouts mma-1 and vector-1, "@shipped:mma" without the latter; "@FAMILY": all of its
/// list of linear-1, "@vector:FAMILY" of vector-1; "@drawn:SEED:COUNT", and
/// "@by_block:SEED:COUNT", of readers whose blocks take each page together.
inline std::vector<Configuration> configurations(const std::string& text) {
  std::vector<Configuration> result;
  if (text.at(0) != '@') return {parse_configuration(text)};
  if (text == "@shipped" || text == "@shipped:mma") {
    for (const Shipped& row : shipped()) {
      if (text == "@shipped" || row.configuration.layout != Layout::vector) result.push_back(row.configuration);
    }
  } else if (text.starts_with("@drawn:") || text.starts_with("@by_block:")) {
    const size_t seed = text.find(':') + 1, colon = text.find(':', seed);
    const auto draw_one = text.starts_with("@drawn:") ? draw : draw_by_block;
    std::mt19937 random(std::stoul(text.substr(seed, colon - seed)));
    for (unsigned long i = std::stoul(text.substr(colon + 1)); i > 0; --i) result.push_back(draw_one(random));
  } else if (text.starts_with("@vector:")) {
    result = listed(parse_families(text.substr(8)).at(0), {1, 8}, Layout::vector);
  } else {
    result = listed(parse_families(text.substr(1)).at(0), {1, 8});
  }
  return result;
}

}  // namespace kvcc::made
