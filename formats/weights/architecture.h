// Which tensors an architecture has, under which names and in which shapes. Data: a new architecture is new rows.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "formats/weights/model_files.h"

namespace kvcc {

/// Extents that shapes are made of.
enum class Extent { none, hidden, vocab, query_rows, kv_rows, feed_forward };

/// When a tensor is there.
enum class Presence { always, untied, attention_bias, mlp_bias };

/// GGUF stores rows of q and k of some architectures with the two halves of each head interleaved (METHODS.md, 10).
enum class RowOrder { plain, query_heads, kv_heads };

struct TensorRule {
  const char* hf;    ///< "{}" stands for the layer; without it the tensor is not per layer
  const char* gguf;  ///< likewise
  std::array<Extent, 2> shape;
  Presence presence = Presence::always;
  RowOrder gguf_rows = RowOrder::plain;
};

struct Architecture {
  const char* name;  ///< model_type in config.json, general.architecture in GGUF
  std::span<const TensorRule> tensors;
  std::span<const char* const> ignored_suffixes;  ///< tensors of old files that carry nothing (stored buffers)
};

/// Throws Error(bad_input) at `place` that names the unknown architecture and lists the known ones.
const Architecture& find_architecture(const std::string& name, const std::string& place);

/// One tensor that the model must have.
struct ExpectedTensor {
  std::string hf, gguf;
  std::vector<int64_t> shape;
  int64_t interleaved_heads = 0;  ///< in GGUF: heads whose rows are interleaved; 0: plain order
};

/// All of them, layers in numeric order. `config` is complete and checked.
std::vector<ExpectedTensor> expected_tensors(const Architecture& architecture, const DecoderConfig& config);

/// A tensor of a file, for the comparison with what the architecture needs.
struct FoundTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string bad_type;  ///< "" when kvcc reads the type, else its name
};

/// Throws one Error(bad_input) that lists every tensor that is missing, has the wrong shape or an unreadable type, and
/// every one in the file that the architecture doesn't use (its effect would be lost silently).
void check_tensors(const std::string& place, const Architecture& architecture, const DecoderConfig& config,
                   const std::vector<ExpectedTensor>& expected, bool gguf_names, const std::vector<FoundTensor>& found);

/// Throws Error(bad_input) naming the field when the numbers don't make a decoder.
void check_config(const std::string& place, const DecoderConfig& config);

/// Orders names with their numbers as numbers: layers.2 before layers.10.
bool name_less(const std::string& a, const std::string& b);

}  // namespace kvcc
