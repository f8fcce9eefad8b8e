#include "formats/weights/packed_tensors.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/core/error.h"
#include "formats/core/json.h"
#include "formats/core/text.h"
#include "formats/weights/block_formats.h"
#include "formats/weights/config_fields.h"

namespace kvcc {
namespace {

using nlohmann::json;
using Kind = WeightPacking::Kind;

constexpr int64_t kInWord = 8;  ///< 4-bit integers of a 32-bit word

/// E4M3 without infinities (OCP 8-bit floating point 1.0): bias 7, all ones is NaN.
std::array<float, 256> make_e4m3() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) {
    const int e = (code >> 3) & 15, m = code & 7;
    float value = e == 0 ? std::ldexp(static_cast<float>(m), -9) : std::ldexp(static_cast<float>(8 + m), e - 10);
    if (e == 15 && m == 7) value = std::numeric_limits<float>::quiet_NaN();
    table[code] = (code & 128) ? -value : value;
  }
  return table;
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

WeightPacking fp8_packing(const std::string& path, const Fields& fields) {
  WeightPacking packing{Kind::fp8};
  const std::string format = fields.text("fmt", "e4m3");
  if (format != "e4m3") throw bad_input(path, "FP8 weights in " + format, "e4m3");
  const json* block = fields.get("weight_block_size");
  if (block == nullptr || !block->is_array() || block->size() != 2 || !(*block)[0].is_number_unsigned() ||
      !(*block)[1].is_number_unsigned()) {
    throw bad_input(path, "FP8 weights without weight_block_size",
                    "a scale for each block of so many rows and columns");
  }
  packing.block_rows = (*block)[0].get<int64_t>();
  packing.block_columns = (*block)[1].get<int64_t>();
  if (packing.block_rows < 1 || packing.block_columns < 1) throw bad_input(path, "weight_block_size of 0");
  return packing;
}

WeightPacking integer_packing(const std::string& path, const Fields& fields, Kind kind, const std::string& method) {
  WeightPacking packing{kind};
  const int64_t bits = fields.integer("bits", fields.integer("w_bit", 0));
  if (bits != 4) throw bad_input(path, method + " weights of " + std::to_string(bits) + " bits", "4 bits");
  const int64_t group = fields.integer("group_size", fields.integer("q_group_size", 128));
  if (group == 0 || group < -1) throw bad_input(path, method + " groups of " + std::to_string(group), "at least 1");
  packing.group = group == -1 ? 0 : group;
  const char* key = kind == Kind::gptq ? "checkpoint_format" : "version";
  const std::string form = fields.text(key, kind == Kind::gptq ? "gptq" : "gemm");
  const bool known = kind == Kind::gptq ? form == "gptq" || form == "gptq_v2" : form == "gemm" || form == "GEMM";
  if (!known) {
    throw bad_input(path, method + " weights packed as " + form, kind == Kind::gptq ? "gptq or gptq_v2" : "gemm");
  }
  packing.zero_offset = form == "gptq" ? 1 : 0;
  return packing;
}

std::vector<float> floats(const SafeTensor& tensor) {
  const BlockFormat& format = block_format(*tensor.type);
  std::vector<float> values(tensor.bytes.size() / static_cast<size_t>(format.bytes));
  dequantize(*tensor.type, tensor.bytes, values);
  return values;
}

uint32_t word(const SafeTensor& tensor, int64_t index) {
  uint32_t value;
  std::memcpy(&value, tensor.bytes.data() + index * 4, sizeof value);
  return value;
}

void read_fp8(const PackedTensor& t, std::span<float> out) {
  static const std::array<float, 256> table = make_e4m3();
  const int64_t rows = t.shape[0], columns = t.shape[1], wide = ceil_div(columns, t.packing.block_columns);
  const std::vector<float> scales = floats(*t.scales);
  for (int64_t r = 0; r < rows; ++r) {
    const float* scale = scales.data() + r / t.packing.block_rows * wide;
    for (int64_t c = 0; c < columns; ++c) {
      const auto code = static_cast<uint8_t>(t.values->bytes[r * columns + c]);
      out[r * columns + c] = table[code] * scale[c / t.packing.block_columns];
    }
  }
}

void read_integers(const PackedTensor& t, const std::string& place, std::span<float> out) {
  // AWQ has output 8 p + order[n] in nibble n of a word; this is the nibble of each output.
  constexpr int kAwqNibble[kInWord] = {0, 4, 1, 5, 2, 6, 3, 7};
  const bool awq = t.type == WeightType::awq;
  const int64_t outputs = t.shape[0], inputs = t.shape[1], words = outputs / kInWord;
  const int64_t group = t.packing.group == 0 ? inputs : t.packing.group, groups = ceil_div(inputs, group);
  const std::vector<float> scales = floats(*t.scales);
  const auto nibble = [&](const SafeTensor& tensor, int64_t row, int64_t output) {
    const int64_t at = output % kInWord, shift = 4 * (awq ? kAwqNibble[at] : at);
    return static_cast<int>(word(tensor, row * words + output / kInWord) >> shift & 15u);
  };
  for (int64_t i = 0; i < inputs; ++i) {
    const int64_t g = t.order ? static_cast<int32_t>(word(*t.order, i)) : i / group;
    if (g < 0 || g >= groups) {
      throw bad_input(place, "g_idx of input " + std::to_string(i) + " is " + std::to_string(g),
                      "0 to " + std::to_string(groups - 1));
    }
    for (int64_t o = 0; o < outputs; ++o) {
      const int value = awq ? nibble(*t.values, i, o)
                            : static_cast<int>(word(*t.values, i / kInWord * outputs + o) >> (4 * (i % kInWord)) & 15u);
      const int zero = nibble(*t.zeros, g, o) + t.packing.zero_offset;
      out[o * inputs + i] = static_cast<float>(value - zero) * scales[g * outputs + o];
    }
  }
}

/// A part that must be there, of one of the dtypes and of the shape; what is wrong is put into `problems`.
const SafeTensor* need(const std::map<std::string, const SafeTensor*>& tensors, const std::string& name,
                       std::initializer_list<const char*> dtypes, const std::vector<int64_t>& shape,
                       std::vector<std::string>& problems) {
  const auto it = tensors.find(name);
  if (it == tensors.end()) {
    problems.push_back(name + " " + shape_text(shape) + " is missing");
    return nullptr;
  }
  const SafeTensor& tensor = *it->second;
  for (const char* dtype : dtypes) {
    if (tensor.dtype != dtype) continue;
    if (tensor.shape == shape) return &tensor;
    problems.push_back(name + " is " + shape_text(tensor.shape) + ", not " + shape_text(shape));
    return nullptr;
  }
  problems.push_back(name + " has type " + tensor.dtype);
  return nullptr;
}

}  // namespace

WeightPacking read_packing(const std::string& path) {
  const json root = read_json<json>(path, kMostConfig);
  if (!root.contains("quantization_config") || root["quantization_config"].is_null()) return {};
  const json& object = root["quantization_config"];
  if (!object.is_object()) throw bad_input(path, "quantised weights that quantization_config does not describe");
  const Fields fields(path + ": quantization_config", object);
  const std::string method = fields.text("quant_method", "unknown");
  if (method == "fp8") return fp8_packing(path, fields);
  if (method == "gptq") return integer_packing(path, fields, Kind::gptq, method);
  if (method == "awq") return integer_packing(path, fields, Kind::awq, method);
  throw bad_input(path, "weights quantised by \"" + method + "\"", "F32, F16 or BF16 weights, or fp8, gptq or awq",
                  "use the full-precision model or a GGUF file");
}

std::map<std::string, PackedTensor> find_packed(const std::string& place, const WeightPacking& packing,
                                                const std::vector<ExpectedTensor>& expected,
                                                const std::map<std::string, const SafeTensor*>& tensors) {
  std::map<std::string, PackedTensor> packed;
  std::vector<std::string> problems;
  for (const ExpectedTensor& want : expected) {
    if (packing.kind == Kind::none || want.shape.size() != 2 || !want.hf.ends_with(".weight")) continue;
    const int64_t outputs = want.shape[0], inputs = want.shape[1];
    const std::string stem = want.hf.substr(0, want.hf.size() - 6);
    PackedTensor tensor;
    tensor.shape = want.shape;
    tensor.packing = packing;
    const auto part = [&](const char* name, std::initializer_list<const char*> dtypes, std::vector<int64_t> shape) {
      return need(tensors, stem + name, dtypes, shape, problems);
    };
    if (packing.kind == Kind::fp8) {
      const auto it = tensors.find(want.hf);
      if (it == tensors.end() || it->second->dtype != "F8_E4M3") continue;
      tensor.values = part("weight", {"F8_E4M3"}, want.shape);
      tensor.scales = part("weight_scale_inv", {"F32", "BF16"},
                           {ceil_div(outputs, packing.block_rows), ceil_div(inputs, packing.block_columns)});
    } else {
      if (!tensors.contains(stem + "qweight")) continue;
      const bool awq = packing.kind == Kind::awq;
      if (outputs % kInWord != 0 || inputs % kInWord != 0) {
        problems.push_back(stem + "qweight of " + shape_text(want.shape) + " does not fill words of eight");
        continue;
      }
      const int64_t groups = packing.group == 0 ? 1 : ceil_div(inputs, packing.group);
      const std::vector<int64_t> shape =
          awq ? std::vector<int64_t>{inputs, outputs / kInWord} : std::vector<int64_t>{inputs / kInWord, outputs};
      tensor.type = awq ? WeightType::awq : WeightType::gptq;
      tensor.values = part("qweight", {"I32"}, shape);
      tensor.zeros = part("qzeros", {"I32"}, {groups, outputs / kInWord});
      tensor.scales = part("scales", {"F16", "BF16", "F32"}, {groups, outputs});
      if (!awq && tensors.contains(stem + "g_idx")) tensor.order = part("g_idx", {"I32"}, {inputs});
    }
    packed[want.hf] = std::move(tensor);
  }
  if (problems.empty()) return packed;
  std::string text;
  for (size_t i = 0; i < problems.size() && i < 60; ++i) text += (i ? "; " : "") + problems[i];
  throw bad_input(place, text, "every part of a packed matrix");
}

void PackedTensor::read(const std::string& place, std::span<float> out) const {
  if (type == WeightType::fp8_block) return read_fp8(*this, out);
  read_integers(*this, place, out);
}

}  // namespace kvcc
