#include "kernels/host/runtime_page_file.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "formats/core/error.h"
#include "formats/layout/half.h"
#include "formats/layout/linear.h"

namespace kvcc::host {
namespace {

template <class T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint16_t class_end(const mma::PageShape& shape, const uint8_t* page, uint32_t head, uint32_t c) {
  return load<uint16_t>(page + mma::ends_offset(shape) + (head * shape.classes + c) * sizeof(uint16_t));
}

const uint8_t* records(const mma::PageShape& shape, const uint8_t* page, uint32_t head) {
  return page + mma::records_offset(shape) + uint64_t{head} * shape.capacity * sizeof(mma::Record);
}

bool is_finite_half(uint16_t h) { return (h & 0x7c00u) != 0x7c00u; }

/// Codes of any value are good; where none are, pack wants zeros.
void check_vector_page(const PackedTensor& tensor, int layer, uint32_t code_words, const uint8_t* page, int slots,
                       const std::string& place) {
  std::vector<uint8_t> codes(uint64_t{code_words} * 4);
  const VectorTables& tables = tensor.vectors[layer];
  const KvccVectorTensor& t = tables.tensor();
  for (size_t h = 0; h < tables.head_words().size(); ++h) {
    uint8_t* const tile = codes.data() + size_t{tables.head_words()[h]} * 4;
    for (int32_t g = t.first_group[h]; g < t.first_group[h + 1]; ++g) {
      const auto bits = static_cast<uint32_t>(t.groups[g].bits);
      for (int slot = 0; slot < slots; ++slot) {
        vector_page::put_code(tile, static_cast<uint32_t>(t.token_bits[h]), static_cast<uint32_t>(slot),
                              static_cast<uint32_t>(t.groups[g].first_bit), bits, (1u << bits) - 1u);
      }
    }
  }
  for (size_t i = 0; i < codes.size(); ++i) {
    if ((page[i] & ~codes[i] & 0xff) == 0) continue;
    throw bad_input(place + ", byte " + std::to_string(i), std::to_string(page[i]),
                    "zeros where no filled slot has a code");
  }
}

class PageCheck {
 public:
  PageCheck(const PackedTensor& tensor, int layer, const mma::PageShape& shape, const uint8_t* page, int slots,
            const std::string& place)
      : tensor_(tensor), layer_(layer), shape_(shape), page_(page), slots_(slots), place_(place) {}

  void run() {
    if (shape_.ranges) check_ranges();
    if (shape_.classes == 0) return;
    for (uint32_t h = 0; h < shape_.heads; ++h) check_head(h);
    if (!tensor_.token_axis) return;
    for (int slot = 0; slot < slots_; ++slot) {
      if (outliers_[slot] == 2 * tensor_.tail) continue;
      throw bad_input(place_ + ", slot " + std::to_string(slot), std::to_string(outliers_[slot]) + " outliers",
                      std::to_string(2 * tensor_.tail));
    }
  }

 private:
  void check_ranges() const {
    for (int slot = 0; slot < slots_; ++slot) {
      const auto range =
          load<linear::RangeRecord>(page_ + mma::ranges_offset(shape_) + slot * sizeof(linear::RangeRecord));
      const bool positive = (range.scale & 0x8000u) == 0 && range.scale != 0;
      if (positive && is_finite_half(range.scale) && is_finite_half(range.zero)) continue;
      throw bad_input(place_ + ", slot " + std::to_string(slot), "a range that is not finite, or a scale not above 0");
    }
  }

  void check_head(uint32_t h) {
    const std::string place = place_ + ", head " + std::to_string(h);
    const uint32_t bits = tensor_.bits[static_cast<size_t>(layer_) * shape_.heads + h];
    const auto dim = static_cast<uint32_t>(tensor_.head_dim);
    const uint32_t first = tensor_.head_words.empty()
                               ? mma::head_first_word(h, dim, bits)
                               : tensor_.head_words[static_cast<size_t>(layer_) * shape_.heads + h];
    std::vector<uint32_t> tile(mma::tile_words(dim, bits));  // the file's pages may lie anywhere
    std::memcpy(tile.data(), page_ + uint64_t{first} * sizeof(uint32_t), tile.size() * sizeof(uint32_t));
    uint32_t begin = 0;
    int64_t before = -1;  // of the record before: token and channel as one number
    for (uint32_t c = 0; c < shape_.classes; ++c) {
      const uint32_t end = class_end(shape_, page_, h, c);
      if (end < begin || end > shape_.capacity) {
        throw bad_input(place, "class end " + std::to_string(end) + " of class " + std::to_string(c),
                        std::to_string(begin) + " to " + std::to_string(shape_.capacity));
      }
      for (uint32_t i = begin; i < end; ++i) {
        const auto record = load<mma::Record>(records(shape_, page_, h) + i * sizeof(mma::Record));
        const mma::Element at = mma::record_element(record.place, c);
        const int64_t order = int64_t{at.token} << 8 | at.channel;
        const bool inside = at.channel < dim && static_cast<int>(at.token) < slots_ && order > before;
        const uint32_t code = inside ? mma::get_code(tile.data(), tensor_.tensor, dim, bits, at.token, at.channel) : 0;
        if (!inside || record.place != mma::record_place(at.token, at.channel, code, bits) ||
            !is_finite_half(record.value)) {
          throw bad_input(place + ", record " + std::to_string(i),
                          "place " + std::to_string(record.place) + ", value " + std::to_string(record.value),
                          "records in order, of filled slots, with the tile's code and a finite value");
        }
        before = order;
        ++outliers_[at.token];
      }
      begin = end;
    }
  }

  const PackedTensor& tensor_;
  const int layer_;
  const mma::PageShape& shape_;
  const uint8_t* const page_;
  const int slots_;
  const std::string& place_;
  std::array<int, mma::kPageTokens> outliers_{};
};

}  // namespace

void copy_page(const mma::PageShape& from_shape, const uint8_t* from, const mma::PageShape& to_shape, uint8_t* to,
               int slots) {
  std::memset(to, 0, mma::page_bytes(to_shape));
  std::memcpy(to, from, mma::ranges_offset(from_shape));
  if (from_shape.ranges) {
    const uint64_t at = mma::ranges_offset(from_shape);
    std::memcpy(to + at, from + at, slots * sizeof(linear::RangeRecord));
  }
  if (from_shape.classes == 0) return;
  const uint64_t ends = mma::ends_offset(from_shape);
  std::memcpy(to + ends, from + ends, mma::records_offset(from_shape) - ends);
  for (uint32_t h = 0; h < from_shape.heads; ++h) {
    const uint32_t count = class_end(from_shape, from, h, from_shape.classes - 1);
    uint8_t* const list = to + mma::records_offset(to_shape) + uint64_t{h} * to_shape.capacity * sizeof(mma::Record);
    std::memcpy(list, records(from_shape, from, h), std::min(count, to_shape.capacity) * sizeof(mma::Record));
  }
}

uint32_t most_records(const mma::PageShape& shape, const uint8_t* page) {
  uint32_t most = 0;
  for (uint32_t h = 0; h < shape.heads && shape.classes > 0; ++h) {
    most = std::max<uint32_t>(most, class_end(shape, page, h, shape.classes - 1));
  }
  return most;
}

void check_page(const PackedTensor& tensor, int layer, const mma::PageShape& shape, const uint8_t* page, int slots,
                const std::string& place) {
  if (tensor.is_vector()) return check_vector_page(tensor, layer, shape.code_words, page, slots, place);
  PageCheck(tensor, layer, shape, page, slots, place).run();
}

}  // namespace kvcc::host
