#include "tests/gpu/sets.h"

#include <algorithm>

namespace kvcc::gpu {
namespace {

std::vector<Set>& all() {
  static std::vector<Set> sets;
  return sets;
}

}  // namespace

bool add_set(Set set) {
  std::vector<Set>& to = all();
  const auto before = [](const Set& a, const Set& b) { return a.name < b.name; };
  to.insert(std::upper_bound(to.begin(), to.end(), set, before), std::move(set));
  return true;
}

const std::vector<Set>& sets() { return all(); }

std::string describe(const Spec& s) {
  constexpr const char* kSparse[] = {"none", "csr", "tail"};
  constexpr const char* kRope[] = {"none", "half", "interleaved"};
  constexpr const char* kDtype[] = {"f16", "bf16", "f32"};
  std::string text = (s.mixed ? std::string("mixed") : std::to_string(s.bits)) + " bits, head_dim " +
                     std::to_string(s.head_dim) + (s.axis == device::Axis::channel ? ", channel/" : ", token/") +
                     kSparse[static_cast<int>(s.sparse)];
  if (s.tensor == mma::Tensor::key) {
    text += std::string(", rope ") + kRope[static_cast<int>(s.rope)];
    if (s.rope != device::Rope::none) text += " " + std::to_string(s.rotary);
  }
  return text + ", group tile " + std::to_string(s.group_tile) + ", " + kDtype[static_cast<int>(s.dtype)];
}

}  // namespace kvcc::gpu
