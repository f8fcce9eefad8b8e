#include "formats/codec/checks.h"

#include <cmath>

#include "formats/codec/tails.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

void check_size(size_t found, size_t wanted, const char* name, const std::string& place) {
  if (found == wanted) return;
  throw Error(ErrorKind::failed, place + " quantiser, " + name, std::to_string(found) + " values",
              std::to_string(wanted));
}

void check_table(const LevelTable& table, int heads, int dim, const std::string& place) {
  if (heads < 1 || dim < 1 || static_cast<int64_t>(heads) * dim > 65536) {
    throw Error(ErrorKind::failed, place + " quantiser",
                std::to_string(heads) + " heads of " + std::to_string(dim) + " channels", "1 to 65536 channels in all");
  }
  check_size(table.heads, heads, "heads of the table", place);
  check_size(table.bits.size(), heads, "bits", place);
  check_size(table.levels.size(), static_cast<size_t>(heads) * table.stride, "levels", place);
  if (!table.decoded.empty()) check_size(table.decoded.size(), table.levels.size(), "decoded levels", place);
  for (int h = 0; h < heads; ++h) {
    if (table.bits[h] < 1 || table.bits[h] > 8 || table.count(h) > table.stride) {
      throw Error(ErrorKind::failed, place + " quantiser, head " + std::to_string(h),
                  std::to_string(table.bits[h]) + " bits in a table of " + std::to_string(table.stride) + " levels",
                  "1 to 8 bits, and 2^bits levels");
    }
  }
}

}  // namespace

void check_quantiser(const ChannelQuantiser& q, const std::string& place) {
  check_table(q.table, q.heads, q.dim, place);
  const size_t n = static_cast<size_t>(q.heads) * q.dim;
  check_size(q.scale.size(), n, "scale", place);
  check_size(q.zero.size(), n, "zero", place);
  check_tails(q.heads * q.dim, q.tail, place);
  if (!q.threshold_lower.empty() || !q.threshold_upper.empty()) {
    check_size(q.threshold_lower.size(), n, "lower thresholds", place);
    check_size(q.threshold_upper.size(), n, "upper thresholds", place);
  }
}

void check_quantiser(const TokenQuantiser& q, const std::string& place) {
  check_table(q.table, q.heads, q.dim, place);
  check_tails(q.heads * q.dim, q.tail, place);
}

void check_row(size_t size, int heads, int dim, const std::string& place) {
  check_size(size, static_cast<size_t>(heads) * dim, "row", place);
}

}  // namespace kvcc
