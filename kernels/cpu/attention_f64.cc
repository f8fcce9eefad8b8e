// attention in double, for comparison: rows as the dequantising units give them, equal to the reference codec's bit for
// bit, turned by the tables as they are; all else in double, rounded to f32 once. Another implementation in double then
// gives the same f32 nearly always, whatever order it adds in, so that two runs of a model stay together though each
// keeps its own rows. A hundred times slower than the other arithmetics.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/builtin.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/walk.h"

namespace kvcc::cpu {
namespace {

/// The queries of a block, and what they have gathered.
class PreciseAttention {
 public:
  PreciseAttention(const KvccCpuConfig& config, const KvccAttentionParams& p, const KvccCpuTables& tables,
                   const Work& work)
      : config_(config),
        p_(p),
        tables_(tables),
        work_(work),
        key_dim_(config.key.head_dim),
        value_dim_(config.value.head_dim),
        key_(rows_of(p.key, key_dim_)),
        value_(rows_of(p.value, value_dim_)),
        turned_(key_dim_),
        sum_(static_cast<size_t>(work.queries) * value_dim_) {
    const int64_t first = work.row(p.key, p.group) * key_dim_;
    for (int64_t i = 0; i < int64_t{work.queries} * key_dim_; ++i) {
      query_.push_back(load_element(config.dtype, p.query, first + i));
    }
  }

  /// Positions [begin, end), at most 64, those that `counts` says.
  template <class Counts>
  void add(int32_t begin, int32_t end, const Counts& counts) {
    if (begin >= end) return;
    read(KVCC_CPU_DEQUANTISE_KEY, p_.key, begin, key_);
    read(KVCC_CPU_DEQUANTISE_VALUE, p_.value, begin, value_);
    for (int32_t position = begin; position < end; ++position) {
      if (!counts(position)) continue;
      turn(row(key_, p_.key, key_dim_, position - begin), position);
      const float* const value = row(value_, p_.value, value_dim_, position - begin);
      for (int g = 0; g < work_.queries; ++g) add(g, value);
    }
  }

  void store() const {
    const int64_t rows = int64_t{p_.key.heads} * p_.group, first = work_.row(p_.key, p_.group);
    for (int g = 0; g < work_.queries; ++g) {
      const double* const sum = sum_.data() + static_cast<size_t>(g) * value_dim_;
      if (p_.splits == 1) {
        float* const out = p_.out + (first + g) * value_dim_;
        for (int c = 0; c < value_dim_; ++c) out[c] = total_[g] > 0 ? static_cast<float>(sum[c] / total_[g]) : 0.0f;
        continue;
      }
      const int64_t at = (int64_t{work_.sequence} * p_.splits + work_.split) * rows + first + g - work_.sequence * rows;
      float* const partial = p_.partial + at * (value_dim_ + 2);
      for (int c = 0; c < value_dim_; ++c) partial[c] = static_cast<float>(sum[c]);
      partial[value_dim_] = total_[g] > 0 ? static_cast<float>(reference_[g]) : -1e30f;
      partial[value_dim_ + 1] = static_cast<float>(total_[g]);
    }
  }

 private:
  /// Room for 64 rows of all heads and sequences, as dequantising lays them.
  static std::vector<float> rows_of(const KvccCache& c, int dim) {
    return std::vector<float>(size_t{KVCC_PAGE_TOKENS} * c.sequences * c.heads * dim);
  }
  const float* row(const std::vector<float>& rows, const KvccCache& c, int dim, int32_t i) const {
    return rows.data() + ((int64_t{work_.sequence} * KVCC_PAGE_TOKENS + i) * c.heads + work_.head) * dim;
  }
  void read(int family, const KvccCache& cache, int32_t begin, std::vector<float>& rows) {
    first_.assign(cache.sequences, begin);
    // Always 64, from which the rows' places follow; those below the sequence's length are written.
    const KvccDequantiseParams p{cache, rows.data(), first_.data(), KVCC_PAGE_TOKENS};
    const auto block = static_cast<uint32_t>(work_.sequence * cache.heads + work_.head);
    kvcc_cpu_run(family, &config_, &p, &tables_, block, block + 1);
  }

  /// A key by its position, into turned_.
  void turn(const float* key, int32_t position) {
    const int half = config_.rope == KVCC_ROPE_NONE ? 0 : config_.rotary_dim / 2;
    const int64_t base = int64_t{position / KVCC_ROPE_BLOCK} * half, slot = int64_t{position % KVCC_ROPE_BLOCK} * half;
    for (int c = 2 * half; c < key_dim_; ++c) turned_[c] = key[c];
    for (int i = 0; i < half; ++i) {
      const double bc = p_.rope.base_cosine[base + i], bs = p_.rope.base_sine[base + i];
      const double rc = tables_.relative_cosine[slot + i], rs = tables_.relative_sine[slot + i];
      const double cosine = bc * rc - bs * rs, sine = bs * rc + bc * rs;
      const bool pairs = config_.rope == KVCC_ROPE_INTERLEAVED;
      const int a = pairs ? 2 * i : i, b = pairs ? 2 * i + 1 : i + half;
      turned_[a] = key[a] * cosine - key[b] * sine;
      turned_[b] = key[b] * cosine + key[a] * sine;
    }
  }

  /// The token under way to query g.
  void add(int g, const float* value) {
    const double* const query = query_.data() + static_cast<size_t>(g) * key_dim_;
    double* const sum = sum_.data() + static_cast<size_t>(g) * value_dim_;
    double score = 0;
    for (int c = 0; c < key_dim_; ++c) score += query[c] * turned_[c];
    score *= p_.multiplier * 1.4426950408889634;
    if (score > reference_[g]) {
      const double factor = std::exp2(reference_[g] - score);
      total_[g] *= factor;
      for (int c = 0; c < value_dim_; ++c) sum[c] *= factor;
      reference_[g] = score;
    }
    const double weight = std::exp2(score - reference_[g]);
    total_[g] += weight;
    for (int c = 0; c < value_dim_; ++c) sum[c] += weight * value[c];
  }

  const KvccCpuConfig& config_;
  const KvccAttentionParams& p_;
  const KvccCpuTables& tables_;
  const Work& work_;
  int key_dim_, value_dim_;
  std::vector<float> key_, value_;
  std::vector<double> query_, turned_, sum_;
  std::vector<int32_t> first_;
  std::vector<double> total_ = std::vector<double>(work_.queries);
  std::vector<double> reference_ =  ///< greatest score so far, in units of log 2
      std::vector<double>(work_.queries, -std::numeric_limits<double>::infinity());
};

}  // namespace

void builtin_attention_f64(const KvccCpuConfig& config, const void* params, const KvccCpuTables& tables, uint32_t first,
                           uint32_t last) {
  const auto& p = *static_cast<const KvccAttentionParams*>(params);
  const RuntimeConfig heads(config, tables, p.key.heads);
  for (uint32_t block = first; block < last; ++block) {
    const Work work(p.key, block, p.group, p.splits, p.window);
    if (heads.key().bits(p.key.layer, work.head) == 0 || heads.value().bits(p.value.layer, work.head) == 0) continue;
    PreciseAttention attention(config, p, tables, work);
    for (int32_t i = work.page; i < work.page_end; ++i) {
      const Slots slots = work.context.slots(i);
      const int32_t page = p.key.sink + i * KVCC_PAGE_TOKENS;
      attention.add(page + std::max(slots.begin, 0), page + std::min(slots.end, kPage), [](int32_t) { return true; });
    }
    for (int32_t i = work.tile; i < work.tile_end; ++i) {
      const int32_t from = work.context.exact_block(i) * kPage;
      attention.add(from, from + kPage, [&](int32_t position) { return work.context.exact(p.key, position); });
    }
    attention.store();
  }
}

}  // namespace kvcc::cpu
