#include "calib/fit/allocate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <queue>
#include <tuple>

namespace kvcc {
namespace {

/// The width of least error + price cost; the cheaper of equal ones.
int best_bits(const RateCurve& curve, double price) {
  int best = 0;
  for (size_t b = 1; b < curve.error.size(); ++b) {
    if (curve.error[b] + price * curve.cost[b] < curve.error[best] + price * curve.cost[best]) {
      best = static_cast<int>(b);
    }
  }
  return best;
}

GroupBits best_way(const GroupChoice& choice, double price, double& cost) {
  GroupBits best;
  double least = std::numeric_limits<double>::infinity(), best_cost = 0;
  for (size_t w = 0; w < choice.ways.size(); ++w) {
    GroupBits now;
    now.way = static_cast<int>(w);
    double value = 0, spent = 0;
    for (const RateCurve& curve : choice.ways[w]) {
      const int bits = best_bits(curve, price);
      now.bits.push_back(bits);
      value += curve.error[bits] + price * curve.cost[bits];
      spent += curve.cost[bits];
    }
    if (value < least) {
      least = value;
      best_cost = spent;
      best = std::move(now);
    }
  }
  cost += best_cost;
  return best;
}

std::vector<GroupBits> at_price(std::span<const GroupChoice> choices, double price, double& cost) {
  std::vector<GroupBits> all;
  cost = 0;
  for (const GroupChoice& choice : choices) all.push_back(best_way(choice, price, cost));
  return all;
}

/// Steps of more bits for single groups, the best first, while they fit.
void spend(std::span<const GroupChoice> choices, std::vector<GroupBits>& all, double left) {
  using Step = std::tuple<double, int64_t, int64_t>;  // fall of error a cost; choice, group (negative: the first wins)
  std::priority_queue<Step> steps;
  const auto curve_of = [&](size_t c, size_t g) -> const RateCurve& { return choices[c].ways[all[c].way][g]; };
  const auto push = [&](size_t c, size_t g) {
    const RateCurve& curve = curve_of(c, g);
    const size_t b = static_cast<size_t>(all[c].bits[g]);
    if (b + 1 >= curve.error.size()) return;
    const double cost = curve.cost[b + 1] - curve.cost[b], fall = curve.error[b] - curve.error[b + 1];
    if (fall > 0 && cost <= left) steps.emplace(fall / cost, -static_cast<int64_t>(c), -static_cast<int64_t>(g));
  };
  for (size_t c = 0; c < choices.size(); ++c) {
    for (size_t g = 0; g < all[c].bits.size(); ++g) push(c, g);
  }
  while (!steps.empty()) {
    const auto [slope, c, g] = steps.top();
    steps.pop();
    const RateCurve& curve = curve_of(-c, -g);
    int& bits = all[-c].bits[-g];
    const double cost = curve.cost[bits + 1] - curve.cost[bits];
    if (cost > left) continue;
    left -= cost;
    ++bits;
    push(-c, -g);
  }
}

}  // namespace

std::vector<GroupBits> allocate(std::span<const GroupChoice> choices, double budget) {
  double cost = 0, high = 1;
  std::vector<GroupBits> best = at_price(choices, std::numeric_limits<double>::max() / 1e200, cost);
  if (cost >= budget) return best;
  double left = budget - cost;
  while (at_price(choices, high, cost), cost > budget) high *= 4;
  double low = high;
  while (low > 1e-300) {  // prices of errors from 1e-300 on
    low /= 4;
    std::vector<GroupBits> now = at_price(choices, low, cost);
    if (cost > budget) break;
    high = low;
    best = std::move(now);
    left = budget - cost;
  }
  for (int step = 0; step < 60; ++step) {
    const double middle = low + (high - low) / 2;
    std::vector<GroupBits> now = at_price(choices, middle, cost);
    if (cost > budget) {
      low = middle;
    } else {
      high = middle;
      best = std::move(now);
      left = budget - cost;
    }
  }
  spend(choices, best, left);
  return best;
}

}  // namespace kvcc
