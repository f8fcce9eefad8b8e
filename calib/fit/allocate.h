// Bits for groups: where each bit of a budget helps most, over all groups of a model (CODEBOOKS.md, recipe 4).
#pragma once

#include <span>
#include <vector>

namespace kvcc {

/// One group at each width of its code: error [b] is what b bits leave, cost [b] what they take. Both by the same
/// widths; costs rise.
struct RateCurve {
  std::vector<double> error, cost;
};

/// Coordinates that may be grouped in several ways: each way is a set of groups.
struct GroupChoice {
  std::vector<std::vector<RateCurve>> ways;
};

struct GroupBits {
  int way = 0;
  std::vector<int> bits;  ///< of each of its groups
};

/// For every choice the way and the widths that minimise error + price cost at one price for all, the lowest price
/// whose sum of costs is at most `budget`: points of the lower convex hull. What is then left goes, by the steepest
/// fall of error a cost, into steps that still fit. Every choice gets its cheapest where even those exceed the budget.
std::vector<GroupBits> allocate(std::span<const GroupChoice> choices, double budget);

}  // namespace kvcc
