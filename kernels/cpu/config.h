// What the text of the CPU units asks about its configuration. Emitted units answer with constants, so that the
// compiler folds every choice; the built-in ones look into the configuration and tables that they are given.
//
// A Tensor has
//   head_dim(), axis(), sparse()      as in KvccCpuTensor
//   bits(layer, head)                 width of the head's codes; 0: the unit does not serve this head (mixed widths)
//   levels(layer, head)               f32 [2^bits], non-decreasing
// and a Config
//   key(), value()                    Tensors; a unit of one tensor has that one alone
//   rope(), rotary_dim(), dtype()     as in KvccCpuConfig
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/units.h"

namespace kvcc::cpu {

/// A tensor known at run time.
class RuntimeTensor {
 public:
  RuntimeTensor(const KvccCpuTensor& tensor, const float* levels, const uint8_t* bits, int32_t codes, int32_t heads)
      : tensor_(tensor), levels_(levels), bits_(bits), codes_(codes), heads_(heads) {}
  int32_t head_dim() const { return tensor_.head_dim; }
  int32_t axis() const { return tensor_.axis; }
  int32_t sparse() const { return tensor_.sparse; }
  int32_t bits(int32_t layer, int32_t head) const { return bits_[row(layer, head)]; }
  const float* levels(int32_t layer, int32_t head) const { return levels_ + row(layer, head) * codes_; }

 private:
  size_t row(int32_t layer, int32_t head) const { return static_cast<size_t>(layer) * heads_ + head; }
  KvccCpuTensor tensor_;
  const float* levels_;
  const uint8_t* bits_;
  int32_t codes_, heads_;
};

/// A configuration known at run time. `heads`: H of the launch parameters.
class RuntimeConfig {
 public:
  RuntimeConfig(const KvccCpuConfig& config, const KvccCpuTables& tables, int32_t heads)
      : config_(config),
        key_(config.key, tables.key_levels, tables.key_bits, tables.key_codes, heads),
        value_(config.value, tables.value_levels, tables.value_bits, tables.value_codes, heads) {}
  const RuntimeTensor& key() const { return key_; }
  const RuntimeTensor& value() const { return value_; }
  int32_t rope() const { return config_.rope; }
  int32_t rotary_dim() const { return config_.rotary_dim; }
  int32_t dtype() const { return config_.dtype; }

 private:
  KvccCpuConfig config_;
  RuntimeTensor key_, value_;
};

}  // namespace kvcc::cpu
