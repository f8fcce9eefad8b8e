#include "formats/codec/vector_tables.h"

#include <algorithm>
#include <limits>
#include <string>

#include "formats/core/error.h"
#include "formats/layout/vector.h"

namespace kvcc {
namespace {

constexpr int kMostPlaneBits = 6;  // KvccVectorQuad::plane
constexpr size_t kPlaneStep = 16;  // entries of a plane come in as many

Error refuse(std::string found, std::string wanted, std::string hint = "") {
  return Error(ErrorKind::usage, "vector codebooks", std::move(found), std::move(wanted), std::move(hint));
}

/// What a channel decodes to where its group has this vector: the codec's sum over coordinates ascending, whose other
/// terms are 0, and the mean.
float folded(const VectorQuantiser& q, const CodeGroup& group, const float* vector, int channel) {
  const int64_t n = q.dim;
  const float* row = q.inverse.data() + (group.unit * n + channel) * n + group.first;
  float sum = 0;
  for (int i = 0; i < group.width; ++i) sum += row[i] * vector[i];
  return sum + q.mean[group.unit * n + channel];
}

}  // namespace

VectorTables::VectorTables(const VectorQuantiser& q, Form form)
    : heads_(q.heads), dim_(q.dim), transform_(form == Form::transform) {
  const std::vector<CodeGroup> groups = groups_of(q);
  if (q.units != q.heads) {
    throw refuse("a transform across the heads of a layer",
                 "groups of one head: a rank of a tensor-parallel model has not all heads, and a head's values would "
                 "wait for all others'",
                 "fit the form -head or -channels of the preset, such as kvcc-2-head");
  }
  if (!vector_page::supports(static_cast<uint32_t>(q.dim)) || int64_t{q.heads} * q.dim > 65536) {
    throw refuse(std::to_string(q.heads) + " heads of " + std::to_string(q.dim) + " channels",
                 "16 to 256 channels, a multiple of 16, and at most 65536 in all");
  }
  std::vector<std::vector<CodeGroup>> by_head(heads_);
  for (const CodeGroup& group : groups) by_head[group.unit].push_back(group);
  std::vector<std::vector<std::vector<int>>> channels(heads_);
  for (int h = 0; h < heads_; ++h) {
    channels[h] = channels_of(q, h, by_head[h]);
    transform_ = transform_ || channels[h].empty();
  }
  const size_t row = static_cast<size_t>(heads_) * dim_;
  constant_.assign(row, 0.0f);
  place_.assign(row, 0);
  mean_ = transform_ ? q.mean : std::vector<float>(row, 0.0f);
  active_mean_ = mean_;
  for (int h = 0; h < heads_; ++h) {
    first_quad_.push_back(static_cast<int32_t>(quads_.size()));
    first_group_.push_back(static_cast<int32_t>(groups_.size()));
    places_.push_back(0);
    int bits = 0;
    for (size_t g = 0; g < by_head[h].size(); ++g) {
      const CodeGroup& group = by_head[h][g];
      std::vector<int> places;
      for (int i = 0; i < group.width; ++i) places.push_back(group.first + i);
      if (!transform_) places = channels[h][g];
      if (group.bits > 0) add_planes(q, group, bits);
      add_quads(q, group, bits, places);
      bits += group.bits;
    }
    if (!transform_) {  // channels that no coordinate reaches
      std::vector<bool> reached(dim_, false);
      for (const auto& of_group : channels[h]) {
        for (const int channel : of_group) reached[channel] = true;
      }
      for (int c = 0; c < dim_; ++c) {
        if (!reached[c]) constant_[static_cast<size_t>(h) * dim_ + c] = q.mean[static_cast<size_t>(h) * dim_ + c];
      }
    }
    add_rest_of_places();
    token_bits_.push_back(bits);
    head_words_.push_back(code_words_);
    code_words_ += vector_page::tile_words(static_cast<uint32_t>(bits));
    add_matrices(q, h);
  }
  first_quad_.push_back(static_cast<int32_t>(quads_.size()));
  first_group_.push_back(static_cast<int32_t>(groups_.size()));
  if (transform_) inverse_ = q.inverse;
  forward_mean_ = q.mean;
  tensor_ = {dim_,
             transform_ ? 1 : 0,
             token_bits_.data(),
             first_quad_.data(),
             quads_.data(),
             tables_.data(),
             places_.data(),
             place_.data(),
             constant_.data(),
             transform_ ? inverse_.data() : nullptr,
             transform_ ? active_.data() : nullptr,
             mean_.data(),
             active_mean_.data(),
             forward_.data(),
             forward_mean_.data(),
             first_group_.data(),
             groups_.data(),
             planes_.data(),
             nullptr,
             nullptr,
             nullptr,
             nullptr,
             nullptr,
             nullptr};
}

std::array<int64_t, KVCC_VECTOR_ARRAYS> VectorTables::append_to(std::string& bytes) const {
  std::array<int64_t, KVCC_VECTOR_ARRAYS> places;
  places.fill(-1);
  const auto append = [&](int array, const auto& values) { places[array] = append_array(bytes, values); };
  append(KVCC_VECTOR_HEAD_WORDS, head_words_);
  append(KVCC_VECTOR_TOKEN_BITS, token_bits_);
  append(KVCC_VECTOR_FIRST_QUAD, first_quad_);
  append(KVCC_VECTOR_QUADS, quads_);
  append(KVCC_VECTOR_TABLES, tables_);
  append(KVCC_VECTOR_PLACES, places_);
  append(KVCC_VECTOR_PLACE, place_);
  append(KVCC_VECTOR_CONSTANT, constant_);
  append(KVCC_VECTOR_INVERSE, inverse_);
  append(KVCC_VECTOR_ACTIVE, active_);
  append(KVCC_VECTOR_MEAN, mean_);
  append(KVCC_VECTOR_ACTIVE_MEAN, active_mean_);
  append(KVCC_VECTOR_FORWARD, forward_);
  append(KVCC_VECTOR_FORWARD_MEAN, forward_mean_);
  append(KVCC_VECTOR_FIRST_GROUP, first_group_);
  append(KVCC_VECTOR_GROUPS, groups_);
  append(KVCC_VECTOR_PLANES, planes_);
  return places;
}

std::vector<std::vector<int>> VectorTables::channels_of(const VectorQuantiser& q, int head,
                                                        const std::vector<CodeGroup>& groups) {
  std::vector<std::vector<int>> channels(groups.size());
  for (int c = 0; c < q.dim; ++c) {
    const float* row = q.inverse.data() + (static_cast<int64_t>(head) * q.dim + c) * q.dim;
    size_t owner = groups.size();
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto begin = row + groups[g].first, end = begin + groups[g].width;
      if (std::all_of(begin, end, [](float x) { return x == 0; })) continue;
      if (owner < groups.size()) return {};
      owner = g;
    }
    if (owner < groups.size()) channels[owner].push_back(c);
  }
  return channels;
}

void VectorTables::add_planes(const VectorQuantiser& q, const CodeGroup& group, int first_bit) {
  groups_.push_back({group.first, group.width, first_bit, group.bits, static_cast<int64_t>(planes_.size())});
  const size_t entries = group.entries(), padded = (entries + kPlaneStep - 1) / kPlaneStep * kPlaneStep;
  for (int i = 0; i < group.width; ++i) {
    for (size_t e = 0; e < padded; ++e) {
      planes_.push_back(e < entries ? q.vectors[group.vectors + e * group.width + i]
                                    : std::numeric_limits<float>::infinity());
    }
  }
}

/// `places`: coordinates of the group or, without a transform, the channels that it gives.
void VectorTables::add_quads(const VectorQuantiser& q, const CodeGroup& group, int first_bit,
                             const std::vector<int>& places) {
  const size_t row = static_cast<size_t>(group.unit) * dim_;
  const auto value = [&](int code, int place) {
    const float* vector = q.vectors.data() + group.vectors + int64_t{code} * group.width;
    return transform_ ? vector[place - group.first] : folded(q, group, vector, place);
  };
  if (group.bits == 0) {
    for (const int place : places) constant_[row + place] = value(0, place);
    return;
  }
  for (size_t at = 0; at < places.size(); at += KVCC_VECTOR_ROW) {
    const int width = static_cast<int>(std::min<size_t>(KVCC_VECTOR_ROW, places.size() - at));
    int32_t& first = places_.back();
    quads_.push_back({first, width, first_bit, group.bits, static_cast<int64_t>(tables_.size()), -1});
    for (int i = 0; i < width; ++i) place_[row + first++] = places[at + i];
    for (int code = 0; code < group.entries(); ++code) {
      for (int i = 0; i < KVCC_VECTOR_ROW; ++i) tables_.push_back(i < width ? value(code, places[at + i]) : 0.0f);
    }
    if (group.bits > kMostPlaneBits) continue;
    quads_.back().plane = static_cast<int64_t>(tables_.size());
    for (int i = 0; i < width; ++i) {
      for (int code = 0; code < std::max(16, group.entries()); ++code) {
        tables_.push_back(code < group.entries() ? value(code, places[at + i]) : 0.0f);
      }
    }
  }
}

/// What no quad gives follows in `place_`.
void VectorTables::add_rest_of_places() {
  const auto begin = place_.begin() + static_cast<int64_t>(places_.size() - 1) * dim_, end = begin + places_.back();
  int32_t at = places_.back();
  for (int32_t i = 0; i < dim_; ++i) {
    if (std::find(begin, end, i) == end) begin[at++] = i;
  }
}

void VectorTables::add_matrices(const VectorQuantiser& q, int head) {
  const size_t n = dim_, row = head * n, matrix = row * n;
  for (size_t c = 0; c < n; ++c) {
    for (size_t i = 0; i < n; ++i) forward_.push_back(q.forward[matrix + i * n + c]);
  }
  if (!transform_) return;
  active_.resize(matrix + n * n, 0.0f);
  for (int i = 0; i < places_.back(); ++i) {
    for (size_t c = 0; c < n; ++c) active_[matrix + i * n + c] = q.inverse[matrix + c * n + place_[row + i]];
  }
  for (size_t c = 0; c < n; ++c) {
    double sum = q.mean[row + c];
    for (size_t i = 0; i < n; ++i) sum += double{q.inverse[matrix + c * n + i]} * constant_[row + i];
    active_mean_[row + c] = static_cast<float>(sum);
  }
}

}  // namespace kvcc
