#include "tests/gpu/parity.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "tests/gpu/parity_run.h"

namespace kvcc::gpu {

Run::Run(const Case& c_, const Set& set_) : c(c_), set(set_), random(c_.seed) {
  key = make_tensor(c, set.key, set.layout, random);
  value = make_tensor(c, set.value, set.layout, random);
  longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  rotary = make_rotary(set.key, longest + 64, c.factor);
  query = made_rows(sequences() * c.heads * c.group, set.key.head_dim, random);
}

namespace {

/// Cases of a set: heads, group, sink, residual, window, lengths, splits, tail, layer, factor.
std::vector<Case> cases_of(const Set& set) {
  const int tile = set.key.group_tile;
  const bool is_mma = set.layout == Layout::mma;
  std::vector<Case> cases;
  const auto add = [&](Case c) {
    c.set = set.name;
    c.seed = static_cast<uint32_t>(1 + cases.size());
    if (!is_mma) c.window = 0;
    cases.push_back(c);
  };
  add({.heads = 2, .group = 1, .lengths = {130}, .splits = {1, 2}});
  add({.heads = 3,
       .group = tile > 8 ? 16
                : is_mma ? 8
                         : tile,  // linear-1: at most the tile
       .sink = 1,
       .lengths = {200, 65, 0, 64, 1},
       .splits = {1, 3},
       .tail = 3,
       .layer = 1,
       .factor = 1.25});
  add({.heads = 2,
       .group = tile > 8 ? 11 : 3,
       .sink = 4,
       .residual = 37,
       .window = 90,
       .lengths = {300, 141, 98, 131},
       .splits = {1, 2, 5},
       .layer = 2});
  add({.heads = 1, .group = 4, .sink = 70, .residual = 64, .lengths = {333}, .splits = {4}, .layer = 3});
  return cases;
}

}  // namespace

std::string beyond(const std::string& what, const std::vector<float>& found, const std::vector<double>& wanted,
                   const std::function<double(size_t)>& bound) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::fabs(found[i] - wanted[i]) <= bound(i)) continue;  // false for NaN
    return what + ", element " + std::to_string(i) + ": " + std::to_string(found[i]) + "; wanted " +
           std::to_string(wanted[i]) + " within " + std::to_string(bound(i));
  }
  return "";
}

std::vector<Checks> parity_checks() {
  std::vector<Checks> all;
  for (const Set& set : sets()) {
    for (const Case& c : cases_of(set)) {
      auto run = std::make_shared<std::optional<Run>>();
      Checks checks{describe(c), {}, [run] { run->reset(); }};
      const auto add = [&](const std::string& name, const auto& check) {
        checks.checks.push_back({name, [run, c, &set, check](Launcher& launcher) {
                                   if (!*run) run->emplace(c, set);
                                   return check(launcher, **run);
                                 }});
      };
      for (const mma::Tensor t : {mma::Tensor::key, mma::Tensor::value}) {
        const std::string tensor = t == mma::Tensor::key ? " keys" : " values";
        add("pack" + tensor, [t](Launcher& l, Run& r) { return check_pack(l, r, t); });
        const Spec& spec = t == mma::Tensor::key ? set.key : set.value;
        if (set.layout == Layout::mma && spec.sparse != linear::Sparse::none) {
          add("pack again" + tensor, [t](Launcher& l, Run& r) { return check_repeat(l, r, t); });
        }
        add("dequantise" + tensor, [t](Launcher& l, Run& r) { return check_dequantise(l, r, t); });
        add("copy_pages of" + tensor, [t](Launcher& l, Run& r) { return check_copy(l, r, t); });
      }
      if (set.parts[0].key.key_scores) add("key_scores", check_key_scores);
      if (set.parts[0].value.value_mix) add("value_mix", check_value_mix);
      if (set.parts[0].attention) add("attention", check_attention);
      all.push_back(std::move(checks));
    }
  }
  return all;
}

}  // namespace kvcc::gpu
