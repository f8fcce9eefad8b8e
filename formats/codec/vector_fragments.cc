#include "formats/codec/vector_fragments.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "formats/codec/vector_tables.h"
#include "formats/layout/half.h"

namespace kvcc {
namespace {

constexpr int kColumns = 4, kOfColumn = 4;  // of a step, and coordinates of each
constexpr int kStepCoordinates = kColumns * kOfColumn;

/// A head's quads in the order of steps: wide ones (3 or 4 coordinates), then narrow ones.
struct Order {
  int together;  ///< steps of one kind come in as many
  std::vector<const KvccVectorQuad*> wide{}, narrow{};
  int steps_of(size_t quads, int each) const {
    const int of_all = each * together;
    return (static_cast<int>(quads) + of_all - 1) / of_all * together;
  }
  int wide_steps() const { return steps_of(wide.size(), kColumns); }
  int steps() const { return wide_steps() + steps_of(narrow.size(), 2 * kColumns); }
};
Order order_of(const KvccVectorTensor& t, int head, FragmentsOf of) {
  Order order{of == FragmentsOf::keys ? 1 : 2};
  for (int32_t q = t.first_quad[head]; q < t.first_quad[head + 1]; ++q) {
    (t.quads[q].width > 2 ? order.wide : order.narrow).push_back(&t.quads[q]);
  }
  return order;
}

/// Powers of two that bring each coordinate's largest number into [1, 2).
std::array<int, kOfColumn> exponents_of(const KvccVectorTensor& t, const KvccVectorQuad& quad) {
  std::array<int, kOfColumn> exponents{};
  for (int i = 0; i < quad.width; ++i) {
    float most = 0;
    for (int code = 0; code < 1 << quad.bits; ++code) {
      most = std::max(most, std::fabs(t.tables[quad.table + int64_t{code} * KVCC_VECTOR_ROW + i]));
    }
    if (most > 0) exponents[i] = std::clamp(std::ilogb(most), -100, 100);
  }
  return exponents;
}

/// Appends the quad's rows, of two or four numbers.
void append_rows(const KvccVectorTensor& t, const KvccVectorQuad& quad, int row, std::vector<uint8_t>& rows) {
  const std::array<int, kOfColumn> exponents = exponents_of(t, quad);
  for (int code = 0; code < 1 << quad.bits; ++code) {
    for (int i = 0; i < row; ++i) {
      const float z = i < quad.width ? t.tables[quad.table + int64_t{code} * KVCC_VECTOR_ROW + i] : 0.0f;
      const uint16_t half = float_to_half(std::ldexp(z, -exponents[i]));
      rows.push_back(static_cast<uint8_t>(half & 255u));
      rows.push_back(static_cast<uint8_t>(half >> 8));
    }
  }
}

/// What coordinate i of a quad, as its rows hold it, adds to a channel.
double coefficient(const KvccVectorTensor& t, int head, const KvccVectorQuad& quad, int i, int exponent, int channel) {
  const int32_t place = t.place[int64_t{head} * t.head_dim + quad.first + i];
  const double own = t.transform ? t.inverse[(int64_t{head} * t.head_dim + channel) * t.head_dim + place]
                                 : (place == channel ? 1.0 : 0.0);
  return std::ldexp(own, exponent);
}

uint32_t place_of(const KvccVectorQuad& quad) {
  const auto bit = static_cast<uint32_t>(2 * quad.first_bit);
  return bit / 32u | bit % 32u << 8 | static_cast<uint32_t>(quad.bits) << 16;
}

}  // namespace

int fragment_steps(const KvccVectorTensor& tensor, int heads, FragmentsOf of) {
  int most = 0;
  for (int head = 0; head < heads; ++head) most = std::max(most, order_of(tensor, head, of).steps());
  return most;
}

VectorFragments make_fragments(const KvccVectorTensor& t, int heads, FragmentsOf of, int steps) {
  const int dim = t.head_dim, octets = dim / 8;
  VectorFragments out;
  out.slots.assign(static_cast<size_t>(heads) * steps * kColumns, KvccVectorSlot{});
  out.fragments.assign(static_cast<size_t>(heads) * steps * octets * 64, 0u);
  if (of == FragmentsOf::values) out.back.assign(static_cast<size_t>(heads) * steps * kStepCoordinates * dim, 0.0f);
  out.mean.assign(t.transform ? t.active_mean : t.constant, (t.transform ? t.active_mean : t.constant) + heads * dim);
  for (int head = 0; head < heads; ++head) {
    const Order order = order_of(t, head, of);
    const size_t begin = out.rows.size();
    out.rows.resize(begin + 16, 0);  // the row of slots without a code
    std::vector<double> reach(dim);
    for (int c = 0; c < dim; ++c) reach[c] = std::fabs(out.mean[static_cast<size_t>(head) * dim + c]);
    // `quad` gives coordinates [at, at + row) of a column.
    const auto add = [&](const KvccVectorQuad& quad, int step, int column, int at, int row) {
      KvccVectorSlot& slot = out.slots[(static_cast<size_t>(head) * steps + step) * kColumns + column];
      slot.place[at / 2] = place_of(quad);
      slot.table[at / 2] = static_cast<uint32_t>(out.rows.size() - begin);
      append_rows(t, quad, row, out.rows);
      const std::array<int, kOfColumn> exponents = exponents_of(t, quad);
      for (int i = 0; i < quad.width; ++i) {
        for (int c = 0; c < dim; ++c) {
          const double number = coefficient(t, head, quad, i, exponents[i], c);
          reach[c] += 2 * std::fabs(number);
          out.greatest = std::max(out.greatest, std::fabs(number));
          const size_t octet = (static_cast<size_t>(head) * steps + step) * octets + c / 8;
          uint32_t& word = out.fragments[(octet * 32 + c % 8 * 4 + column) * 2 + (at + i) / 2];
          word |= static_cast<uint32_t>(float_to_half(static_cast<float>(number))) << 16 * ((at + i) % 2);
          if (of == FragmentsOf::keys) continue;
          // Slot 4 (step % 2) + column is a fragment's row; its coordinates are rows row and row + 8 of two fragments.
          const int place = step / 2 * 32 + (at + i) / 2 * 16 + (at + i) % 2 * 8 + step % 2 * kColumns + column;
          out.back[(static_cast<size_t>(head) * steps * kStepCoordinates + place) * dim + c] =
              static_cast<float>(number);
        }
      }
    };
    for (size_t q = 0; q < order.wide.size(); ++q) {
      add(*order.wide[q], static_cast<int>(q) / kColumns, static_cast<int>(q) % kColumns, 0, 4);
    }
    for (size_t q = 0; q < order.narrow.size(); ++q) {
      const int column = static_cast<int>(q) / 2 % kColumns;
      add(*order.narrow[q], order.wide_steps() + static_cast<int>(q) / (2 * kColumns), column,
          static_cast<int>(q) % 2 * 2, 2);
    }
    out.rows.resize((out.rows.size() + 15) / 16 * 16, 0);
    const int bytes = static_cast<int>(out.rows.size() - begin);
    out.heads.push_back({order.steps(), order.wide_steps(), bytes, 0, static_cast<int64_t>(begin)});
    out.table_bytes = std::max(out.table_bytes, bytes);
    for (const double most : reach) out.greatest = std::max(out.greatest, most);
  }
  return out;
}

void VectorFragments::append_to(std::string& bytes, std::array<int64_t, KVCC_VECTOR_ARRAYS>& places) const {
  places[KVCC_VECTOR_HEADS] = append_array(bytes, heads);
  places[KVCC_VECTOR_SLOTS] = append_array(bytes, slots);
  places[KVCC_VECTOR_ROWS] = append_array(bytes, rows);
  places[KVCC_VECTOR_FRAGMENTS] = append_array(bytes, fragments);
  places[KVCC_VECTOR_FRAGMENT_MEAN] = append_array(bytes, mean);
  places[KVCC_VECTOR_BACK] = append_array(bytes, back);
}

}  // namespace kvcc
