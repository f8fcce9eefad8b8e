#include "calib/eval/eviction.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "formats/core/error.h"

namespace kvcc {
namespace {

const char* kind_name(EvictionKind kind) {
  switch (kind) {
    case EvictionKind::h2o:
      return "h2o";
    case EvictionKind::snapkv:
      return "snapkv";
    case EvictionKind::pyramidkv:
      return "pyramidkv";
  }
  throw Error(ErrorKind::failed, "eviction", "a kind without a name");
}

/// x with zeros up to `columns` of its last dimension.
at::Tensor widened(const at::Tensor& x, int64_t columns) {
  return at::constant_pad_nd(x, {0, columns - x.size(-1)}, 0);
}

}  // namespace

Eviction parse_eviction(std::string_view text) {
  const size_t colon = text.find(':');
  const auto wrong = [&](const std::string& found) {
    return Error(ErrorKind::usage, "eviction " + std::string(text), found,
                 "h2o:BUDGET, snapkv:BUDGET or pyramidkv:BUDGET, tokens a head, such as snapkv:1024");
  };
  Eviction eviction;
  bool known = false;
  for (const EvictionKind kind : {EvictionKind::h2o, EvictionKind::snapkv, EvictionKind::pyramidkv}) {
    if (text.substr(0, colon) != kind_name(kind)) continue;
    eviction.kind = kind;
    known = true;
  }
  if (!known) throw wrong("no such method");
  if (colon == std::string_view::npos) throw wrong("no budget");
  const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(begin, end, eviction.budget);
  if (error != std::errc() || stopped != end || eviction.budget < 2) throw wrong("a budget that is no number above 1");
  eviction.window = std::min(eviction.window, eviction.budget - 1);
  return eviction;
}

std::string eviction_name(const Eviction& eviction) {
  return std::string(kind_name(eviction.kind)) + ":" + std::to_string(eviction.budget);
}

int64_t kept_tokens(const Eviction& e, int64_t layer, int64_t layers, int64_t tokens) {
  if (tokens <= e.budget) return tokens;
  const int64_t room = e.budget - e.window;
  if (e.kind != EvictionKind::pyramidkv || tokens < 2 * room || layers == 1) return e.budget;
  int64_t least = room / e.beta, most = 2 * room - least;
  if (most >= tokens - e.window) {
    most = tokens - e.window;
    least = 2 * room - most;
  }
  return std::min(tokens, most - layer * ((most - least) / (layers - 1)) + e.window);
}

void EvictionScores::attended(const at::Tensor& weights) {
  const int64_t queries = weights.size(1), rows = weights.size(2);
  const at::Tensor by_head = weights.view({kv_heads_, -1, queries, rows}).sum(1);  // [H, N, M]
  if (eviction_.kind == EvictionKind::h2o) {
    const at::Tensor now = by_head.sum(1);
    sums_ = sums_.defined() ? widened(sums_, rows) + now : now;
    return;
  }
  const at::Tensor all = sums_.defined() ? at::cat({widened(sums_, rows), by_head}, 1) : by_head;
  const int64_t count = std::min(eviction_.window, all.size(1));
  sums_ = all.narrow(1, all.size(1) - count, count).clone();
}

at::Tensor EvictionScores::select(const at::Tensor& kept) const {
  const int64_t length = kept.size(1), there = kept[0].sum().item<int64_t>();
  const int64_t stays = kept_tokens(eviction_, layer_, layers_, there);
  if (stays >= there) return kept;
  const bool h2o = eviction_.kind == EvictionKind::h2o;
  const int64_t last = h2o ? eviction_.budget - eviction_.budget / 2 : eviction_.window;  // kept as they are the last
  at::Tensor scores = widened(h2o ? sums_ : sums_.sum(1), length).narrow(1, 0, length - last);
  if (!h2o) {
    // Zeros beyond both ends count, as in torch's avg_pool1d.
    scores = at::avg_pool1d(scores.contiguous(), {eviction_.kernel}, {1}, {eviction_.kernel / 2});
  }
  scores = scores.masked_fill(kept.narrow(1, 0, length - last).logical_not(), -std::numeric_limits<float>::infinity());
  const at::Tensor best = scores.argsort(/*stable=*/true, 1, /*descending=*/true).narrow(1, 0, stays - last);
  at::Tensor result = at::zeros_like(kept);
  result.scatter_(1, best, true);
  result.narrow(1, length - last, last).fill_(true);
  return result;
}

void EvictionScores::compact(const at::Tensor& index) {
  if (!sums_.defined()) return;
  sums_ =
      sums_.dim() == 2 ? sums_.gather(1, index) : sums_.gather(2, index.unsqueeze(1).expand({-1, sums_.size(1), -1}));
}

}  // namespace kvcc
