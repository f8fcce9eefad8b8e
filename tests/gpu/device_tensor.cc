#include "tests/gpu/device_tensor.h"

#include <algorithm>
#include <cstring>

namespace kvcc::gpu {

DeviceTensor::DeviceTensor(Launcher& launcher, const HostTensor& host, bool packed, std::mt19937& random)
    : host_(host) {
  const int64_t page_bytes = host.facts.page_bytes;
  int64_t total = 0;
  for (const Sequence& s : host.sequences) {
    const int pages = static_cast<int>(s.pages.size() / page_bytes);
    max_pages_ = std::max(max_pages_, pages);
    total += pages;
  }
  pool_pages_ = total + 2;
  std::vector<int32_t> free(pool_pages_);
  for (size_t i = 0; i < free.size(); ++i) free[i] = static_cast<int32_t>(i);
  std::shuffle(free.begin(), free.end(), random);
  table_.assign(host.sequences.size() * max_pages_, -1);
  std::vector<int32_t> lengths;
  for (size_t s = 0; s < host.sequences.size(); ++s) {
    lengths.push_back(host.sequences[s].length);
    for (size_t i = 0; i < host.sequences[s].pages.size() / page_bytes; ++i) {
      table_[s * max_pages_ + i] = free.back();
      free.pop_back();
    }
  }
  pages_ = Array<uint8_t>(launcher, pool(packed));
  page_table_ = Array<int32_t>(launcher, table_);
  lengths_ = Array<int32_t>(launcher, lengths);
  exact_ = Array<uint16_t>(launcher, exact_rows(packed));
  needed_ = Array<uint32_t>(launcher, needed(packed));
  scale_ = Array<float>(launcher, host.scale);
  zero_ = Array<float>(launcher, host.zero);
  lower_ = Array<float>(launcher, host.lower);
  upper_ = Array<float>(launcher, host.upper);
  head_words_ = Array<uint32_t>(launcher, host.head_words);
}

std::vector<uint8_t> DeviceTensor::pool(bool packed) const {
  const int64_t page_bytes = host_.facts.page_bytes;
  std::vector<uint8_t> pool(pool_pages_ * page_bytes, 0xff);
  for (size_t s = 0; s < host_.sequences.size(); ++s) {
    const std::vector<uint8_t>& pages = host_.sequences[s].pages;
    for (size_t i = 0; i < pages.size() / page_bytes; ++i) {
      uint8_t* to = pool.data() + table_[s * max_pages_ + i] * page_bytes;
      if (packed) {
        std::memcpy(to, pages.data() + i * page_bytes, page_bytes);
      } else {
        std::memset(to, 0, page_bytes);
      }
    }
  }
  return pool;
}

std::vector<uint16_t> DeviceTensor::exact_rows(bool packed) const {
  std::vector<uint16_t> rows;
  const size_t columns = static_cast<size_t>(host_.facts.heads) * host_.spec.head_dim;
  for (const Sequence& s : host_.sequences) {
    const size_t begin = rows.size();
    rows.insert(rows.end(), s.exact.begin(), s.exact.end());
    const size_t sinks = std::min(host_.facts.sink, s.length);  // those that pack writes
    if (!packed) std::fill_n(rows.begin() + begin, sinks * columns, uint16_t{0xffff});
  }
  return rows;
}

std::vector<uint32_t> DeviceTensor::needed(bool packed) const {
  std::vector<uint32_t> all;
  const bool by_head = host_.layout == Layout::mma;
  const size_t each = static_cast<size_t>(max_pages_) * (by_head ? host_.facts.heads : 1);
  for (const Sequence& s : host_.sequences) {
    all.insert(all.end(), s.needed.begin(), s.needed.end());
    all.resize(all.size() + each - s.needed.size(), 0);
  }
  if (!packed) std::fill(all.begin(), all.end(), 0u);
  return all;
}

KvccCache DeviceTensor::view() const {
  KvccCache c = host_.facts;
  c.pages = pages_.data();
  c.page_table = page_table_.data();
  c.max_pages = max_pages_;
  c.lengths = lengths_.data();
  c.exact = exact_.data();
  c.scale = scale_.data();
  c.zero = zero_.data();
  c.lower = lower_.data();
  c.upper = upper_.data();
  // One width needs no table of heads; both ways are used.
  c.head_words = host_.spec.mixed || c.layer % 2 == 1 ? head_words_.data() : nullptr;
  c.needed = needed_.data();
  return c;
}

KvccCache DeviceTensor::view(int s) const {
  KvccCache c = view();
  const int64_t columns = static_cast<int64_t>(c.heads) * host_.spec.head_dim;
  c.sequences = 1;
  c.page_table += static_cast<int64_t>(s) * max_pages_;
  c.lengths += s;
  if (c.exact) c.exact += s * columns * (c.sink + c.residual);
  if (c.needed) c.needed += static_cast<int64_t>(s) * max_pages_ * (host_.layout == Layout::mma ? c.heads : 1);
  return c;
}

uint32_t DeviceTensor::most_needed() const {
  const std::vector<uint32_t> all = needed_.download();
  return *std::max_element(all.begin(), all.end());
}

std::string DeviceTensor::compare_packed() const {
  const std::vector<uint8_t> found = pages_.download(), wanted = pool(true);
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == wanted[i]) continue;
    const int64_t page = static_cast<int64_t>(i) / host_.facts.page_bytes;
    const auto at = std::find(table_.begin(), table_.end(), static_cast<int32_t>(page));
    const int64_t entry = at - table_.begin();
    std::string place = "pool page " + std::to_string(page) + ", which no sequence uses";
    if (at != table_.end()) {
      place = "sequence " + std::to_string(entry / max_pages_) + ", page " + std::to_string(entry % max_pages_);
    }
    return place + ", byte " + std::to_string(i % host_.facts.page_bytes) + " (records begin at " +
           std::to_string(host_.fixed_bytes) + "): " + std::to_string(found[i]) + "; wanted " +
           std::to_string(wanted[i]);
  }
  const std::string rows = first_difference("exact rows", exact_.download(), exact_rows(true));
  return rows.empty() ? first_difference("records needed", needed_.download(), needed(true)) : rows;
}

template <class T>
std::string first_difference(const std::string& what, const std::vector<T>& found, const std::vector<T>& wanted) {
  if (found.size() != wanted.size()) {
    return what + ": " + std::to_string(found.size()) + " elements; wanted " + std::to_string(wanted.size());
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == wanted[i]) continue;
    return what + ", element " + std::to_string(i) + ": " + std::to_string(found[i]) + "; wanted " +
           std::to_string(wanted[i]);
  }
  return "";
}
template std::string first_difference(const std::string&, const std::vector<uint8_t>&, const std::vector<uint8_t>&);
template std::string first_difference(const std::string&, const std::vector<uint16_t>&, const std::vector<uint16_t>&);
template std::string first_difference(const std::string&, const std::vector<uint32_t>&, const std::vector<uint32_t>&);

std::string first_difference(const std::string& what, const std::vector<float>& found,
                             const std::vector<float>& wanted) {
  for (size_t i = 0; i < found.size(); ++i) {
    if (float_bits(found[i]) == float_bits(wanted[i])) continue;
    return what + ", element " + std::to_string(i) + ": " + std::to_string(found[i]) + "; wanted the bits of " +
           std::to_string(wanted[i]);
  }
  return "";
}

}  // namespace kvcc::gpu
