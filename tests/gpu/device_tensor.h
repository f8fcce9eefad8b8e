// A case's tensor on the device: the pool of pages in a shuffled order behind a page table, exact rows and constants.
#pragma once

#include "tests/gpu/case.h"
#include "tests/gpu/launcher.h"

namespace kvcc::gpu {

class DeviceTensor {
 public:
  /// packed: as the reference packed it; else empty pages and sink rows, for pack to fill. Pool pages that no sequence
  /// uses, and table entries past a sequence's pages, are filled with ones.
  DeviceTensor(Launcher& launcher, const HostTensor& host, bool packed, std::mt19937& random);

  /// All sequences, or sequence `s` alone.
  KvccCache view() const;
  KvccCache view(int s) const;

  int64_t pool_pages() const { return pool_pages_; }
  const std::vector<int32_t>& table() const { return table_; }
  int max_pages() const { return max_pages_; }

  /// The most records that a page or tile needs, as pack found it.
  uint32_t most_needed() const;

  /// What differs from the reference's packed cache, or "": pages, exact rows, counts of records.
  std::string compare_packed() const;

 private:
  std::vector<uint8_t> pool(bool packed) const;
  std::vector<uint16_t> exact_rows(bool packed) const;
  std::vector<uint32_t> needed(bool packed) const;

  const HostTensor& host_;
  int64_t pool_pages_ = 0;
  int max_pages_ = 0;
  std::vector<int32_t> table_;
  Array<uint8_t> pages_;
  Array<int32_t> page_table_, lengths_;
  Array<uint16_t> exact_;
  Array<float> scale_, zero_, lower_, upper_;
  Array<uint32_t> head_words_, needed_;
};

/// "" when equal; else names `what`, the first element that differs, and both values.
template <class T>
std::string first_difference(const std::string& what, const std::vector<T>& found, const std::vector<T>& wanted);
extern template std::string first_difference(const std::string&, const std::vector<uint8_t>&,
                                             const std::vector<uint8_t>&);
extern template std::string first_difference(const std::string&, const std::vector<uint16_t>&,
                                             const std::vector<uint16_t>&);
extern template std::string first_difference(const std::string&, const std::vector<uint32_t>&,
                                             const std::vector<uint32_t>&);
/// Of floats by their bits.
std::string first_difference(const std::string& what, const std::vector<float>& found,
                             const std::vector<float>& wanted);

}  // namespace kvcc::gpu
