// A layer's vector codebooks as units and kernels take them (formats/layout/vector_launch.h). Host only.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "formats/codec/vector_codec.h"
#include "formats/layout/vector_launch.h"

namespace kvcc {

/// Arrays that kernels read begin at multiples of as many bytes.
constexpr size_t kVectorArrayAlign = 128;
/// Appends an array, and says where it begins; -1 for an empty one.
template <class T>
int64_t append_array(std::string& bytes, const std::vector<T>& values) {
  if (values.empty()) return -1;
  bytes.resize((bytes.size() + kVectorArrayAlign - 1) / kVectorArrayAlign * kVectorArrayAlign, '\0');
  const auto place = static_cast<int64_t>(bytes.size());
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return place;
}

/// Owns what tensor() points to; read only from then on. Units that share one may run in any number of threads.
class VectorTables {
 public:
  enum class Form {
    fewest,    ///< without a transform where every channel follows from one group
    transform  ///< with one, as the layers beside it need it
  };
  /// Throws Error(usage) for groups across heads and for head dimensions that the layout can't hold, Error(failed) as
  /// groups_of() does.
  explicit VectorTables(const VectorQuantiser& q, Form form = Form::fewest);
  VectorTables(VectorTables&&) = default;
  VectorTables& operator=(VectorTables&&) = default;
  VectorTables(const VectorTables&) = delete;

  const KvccVectorTensor& tensor() const { return tensor_; }
  /// First word of each head's tile in a page [H], and words of all tiles.
  const std::vector<uint32_t>& head_words() const { return head_words_; }
  uint32_t code_words() const { return code_words_; }

  /// Appends to `bytes` all that tensor() points to, and head_words(), by append_array().
  /// Where they begin, by KVCC_VECTOR_… (vector_launch.h); -1: the tensor has no such array.
  std::array<int64_t, KVCC_VECTOR_ARRAYS> append_to(std::string& bytes) const;

 private:
  /// Channels that each group of a head mixes; empty where some channel follows from several groups.
  static std::vector<std::vector<int>> channels_of(const VectorQuantiser& q, int head,
                                                   const std::vector<CodeGroup>& groups);
  void add_planes(const VectorQuantiser& q, const CodeGroup& group, int first_bit);
  void add_quads(const VectorQuantiser& q, const CodeGroup& group, int first_bit, const std::vector<int>& channels);
  void add_rest_of_places();
  void add_matrices(const VectorQuantiser& q, int head);

  int heads_ = 0, dim_ = 0;
  bool transform_ = false;
  std::vector<uint32_t> head_words_;
  uint32_t code_words_ = 0;
  std::vector<int32_t> token_bits_, first_quad_, first_group_, places_, place_;
  std::vector<KvccVectorQuad> quads_;
  std::vector<KvccVectorGroup> groups_;
  std::vector<float> tables_, planes_, constant_, inverse_, active_, mean_, active_mean_, forward_, forward_mean_;
  KvccVectorTensor tensor_{};
};

}  // namespace kvcc
