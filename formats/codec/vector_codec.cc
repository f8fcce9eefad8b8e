#include "formats/codec/vector_codec.h"

#include <algorithm>
#include <map>

#include "formats/codec/coded.h"
#include "formats/codec/matrix.h"
#include "formats/codec/nearest_vector.h"
#include "formats/codec/rows.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

Error refuse(const std::string& found, const std::string& wanted) {
  return Error(ErrorKind::failed, "vector codec", found, wanted);
}

/// Tokens that go through the transform at once.
constexpr int64_t kChunk = 64;

class VectorCodec : public TensorCodec {
 public:
  explicit VectorCodec(VectorQuantiser q)
      : TensorCodec(q.heads, q.dim), q_(std::move(q)), groups_(groups_of(q_)), place_(groups_.size()) {
    const size_t n = q_.size(), units = q_.units;
    if (q_.mean.size() != units * n || q_.forward.size() != units * n * n || q_.inverse.size() != units * n * n) {
      throw refuse(std::to_string(q_.forward.size()) + " numbers of a transform", std::to_string(units * n * n));
    }
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].bits > 0) place_[g].index = counts_[groups_[g].bits]++;
    }
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].bits > 0) place_[g].part = std::distance(counts_.begin(), counts_.find(groups_[g].bits));
    }
  }

  std::vector<PartShape> parts(int64_t tokens) const override {
    std::vector<PartShape> parts;
    for (const auto& [bits, count] : counts_) parts.push_back({"codes", bits, tokens * count});
    return parts;
  }

  void encode(std::span<const float> x, CodedTokens& out, const std::string& place, int64_t first) const override {
    const int64_t tokens = check_tokens(*this, x, place, first);
    start_parts(*this, tokens, out);
    for_chunks(tokens, [&](int64_t begin, int64_t count, Buffers& buffers) {
      for (int u = 0; u < q_.units; ++u) to_coordinates(x, u, begin, count, buffers);
      for (size_t g = 0; g < groups_.size(); ++g) {
        if (groups_[g].bits == 0) continue;
        nearest(groups_[g], count, buffers);
        std::vector<uint16_t>& codes = out[place_[g].part].values;
        const int64_t stride = counts_.at(groups_[g].bits);
        for (int64_t t = 0; t < count; ++t) codes[(begin + t) * stride + place_[g].index] = buffers.code[t];
      }
    });
  }

  void decode(const CodedTokens& in, std::span<float> out) const override {
    const int64_t tokens = check_rows(out.size(), out.size(), int64_t{heads()} * dim(), "decoded");
    check_parts(*this, tokens, in);
    for_chunks(tokens, [&](int64_t begin, int64_t count, Buffers& buffers) {
      for (size_t g = 0; g < groups_.size(); ++g) {
        for (int64_t t = 0; t < count; ++t) {
          const int code = groups_[g].bits == 0
                               ? 0
                               : in[place_[g].part].values[(begin + t) * counts_.at(groups_[g].bits) + place_[g].index];
          put(groups_[g], code, t, buffers);
        }
      }
      for (int u = 0; u < q_.units; ++u) to_values(u, begin, count, buffers, out);
    });
  }

  int64_t round_trip(std::span<const float> x, std::span<float> out, int threads, const std::string& place,
                     int64_t first) const override {
    const int64_t n = int64_t{heads()} * dim(), tokens = check_rows(x.size(), out.size(), n, place);
    check_tokens(*this, x, place, first);
    return over_rows(tokens, threads, [&](int64_t begin, int64_t end) {
      const std::span<const float> from = x.subspan(begin * n, (end - begin) * n);
      const std::span<float> to = out.subspan(begin * n, (end - begin) * n);
      for_chunks(end - begin, [&](int64_t at, int64_t count, Buffers& buffers) {
        for (int u = 0; u < q_.units; ++u) to_coordinates(from, u, at, count, buffers);
        for (const CodeGroup& group : groups_) {
          if (group.bits > 0) nearest(group, count, buffers);
          for (int64_t t = 0; t < count; ++t) put(group, group.bits > 0 ? buffers.code[t] : 0, t, buffers);
        }
        for (int u = 0; u < q_.units; ++u) to_values(u, at, count, buffers, to);
      });
      return int64_t{0};
    });
  }

 private:
  struct Place {
    int64_t part = 0, index = 0;
  };
  struct Buffers {
    std::vector<float> centred, z;  ///< [N, kChunk], [U N, kChunk]
    std::vector<float> values;      ///< [kChunk, N]
    std::vector<uint16_t> code;     ///< [kChunk]
  };

  template <typename Work>
  void for_chunks(int64_t tokens, const Work& work) const {
    const size_t n = q_.size();
    Buffers buffers;
    buffers.centred.resize(n * kChunk);
    buffers.z.resize(n * kChunk * q_.units);
    buffers.values.resize(n * kChunk);
    buffers.code.resize(kChunk);
    for (int64_t begin = 0; begin < tokens; begin += kChunk) work(begin, std::min(kChunk, tokens - begin), buffers);
  }

  void to_coordinates(std::span<const float> x, int unit, int64_t begin, int64_t count, Buffers& buffers) const {
    const int64_t n = q_.size(), row = int64_t{heads()} * dim();
    const float* mean = q_.mean.data() + unit * n;
    for (int64_t t = 0; t < count; ++t) {
      const float* from = x.data() + (begin + t) * row + unit * n;
      for (int64_t i = 0; i < n; ++i) buffers.centred[i * kChunk + t] = from[i] - mean[i];
    }
    multiply(static_cast<int>(n), static_cast<int>(count), static_cast<int>(n),
             {q_.forward.data() + unit * n * n, n, 1}, {buffers.centred.data(), kChunk, 1},
             buffers.z.data() + unit * n * kChunk, kChunk);
  }

  float* coordinates(const CodeGroup& group, Buffers& buffers) const {
    return buffers.z.data() + (int64_t{group.unit} * q_.size() + group.first) * kChunk;
  }

  void nearest(const CodeGroup& group, int64_t count, Buffers& buffers) const {
    nearest_vectors({group.width, count, coordinates(group, buffers), kChunk}, q_.vectors.data() + group.vectors,
                    group.entries(), buffers.code.data(), nullptr);
  }

  void put(const CodeGroup& group, int code, int64_t t, Buffers& buffers) const {
    const float* vector = q_.vectors.data() + group.vectors + int64_t{code} * group.width;
    float* z = coordinates(group, buffers);
    for (int i = 0; i < group.width; ++i) z[i * kChunk + t] = vector[i];
  }

  void to_values(int unit, int64_t begin, int64_t count, Buffers& buffers, std::span<float> out) const {
    const int64_t n = q_.size(), row = int64_t{heads()} * dim();
    multiply(static_cast<int>(n), static_cast<int>(count), static_cast<int>(n),
             {q_.inverse.data() + unit * n * n, n, 1}, {buffers.z.data() + unit * n * kChunk, kChunk, 1},
             buffers.values.data(), kChunk);
    const float* mean = q_.mean.data() + unit * n;
    for (int64_t t = 0; t < count; ++t) {
      float* to = out.data() + (begin + t) * row + unit * n;
      for (int64_t i = 0; i < n; ++i) to[i] = buffers.values[i * kChunk + t] + mean[i];
    }
  }

  VectorQuantiser q_;
  std::vector<CodeGroup> groups_;
  std::map<int, int64_t> counts_;  ///< groups of each width of codes but 0
  std::vector<Place> place_;       ///< of each group's code among those of its width
};

}  // namespace

std::vector<CodeGroup> groups_of(const VectorQuantiser& q) {
  const int n = q.size();
  if (q.units < 1 || (q.units != 1 && q.units != q.heads) || q.width.size() != static_cast<size_t>(n) * q.units ||
      q.bits.size() != q.width.size()) {
    throw refuse(std::to_string(q.units) + " units with " + std::to_string(q.width.size()) + " widths",
                 "one unit or one a head, a width for every coordinate");
  }
  std::vector<CodeGroup> groups;
  int64_t vectors = 0;
  for (int u = 0; u < q.units; ++u) {
    for (int at = 0; at < n;) {
      const size_t i = static_cast<size_t>(u) * n + at;
      const int width = q.width[i], bits = q.bits[i];
      if (width < 1 || width > kMostGroupWidth || at + width > n || bits > kMostGroupBits) {
        throw refuse("a group of " + std::to_string(width) + " coordinates and " + std::to_string(bits) + " bits",
                     "1 to " + std::to_string(kMostGroupWidth) + " within the unit, at most " +
                         std::to_string(kMostGroupBits) + " bits");
      }
      for (int k = 1; k < width; ++k) {
        if (q.width[i + k] != 0 || q.bits[i + k] != 0) throw refuse("a group within another", "zeros inside a group");
      }
      groups.push_back({u, at, width, bits, vectors});
      vectors += (int64_t{1} << bits) * width;
      at += width;
    }
  }
  if (static_cast<int64_t>(q.vectors.size()) != vectors) {
    throw refuse(std::to_string(q.vectors.size()) + " numbers of vectors", std::to_string(vectors));
  }
  return groups;
}

std::shared_ptr<const TensorCodec> make_codec(VectorQuantiser quantiser) {
  return std::make_shared<VectorCodec>(std::move(quantiser));
}

}  // namespace kvcc
