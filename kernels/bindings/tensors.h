// Tensors of an operator's arguments, checked and turned into the launch structs.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "formats/layout/launch.h"
#include "kernels/bindings/kernels_folder.h"

namespace kvcc::bindings {

using OptionalTensor = std::optional<at::Tensor>;

/// Argument checks of one operator. Each throws Error(failed) "kvcc::OP, ARGUMENT: FOUND; wanted WANTED".
class Arguments {
 public:
  Arguments(const char* op, c10::Device device) : op_(op), device_(device) {}

  /// A contiguous tensor of this dtype and shape on the operator's device; -1: any size.
  const at::Tensor& want(const at::Tensor& tensor, const char* name, c10::ScalarType dtype,
                         std::initializer_list<int64_t> shape) const;
  /// Likewise where there is a tensor; null where there is none.
  template <class T>
  T* address(const OptionalTensor& tensor, const char* name, c10::ScalarType dtype,
             std::initializer_list<int64_t> shape) const {
    return tensor ? static_cast<T*>(want(*tensor, name, dtype, shape).data_ptr()) : nullptr;
  }
  template <class T>
  T* address(const at::Tensor& tensor, const char* name, c10::ScalarType dtype,
             std::initializer_list<int64_t> shape) const {
    return static_cast<T*>(want(tensor, name, dtype, shape).data_ptr());
  }
  [[noreturn]] void refuse(const char* name, std::string found, std::string wanted) const;
  /// An int argument as the launch structs have it. Throws when it does not fit.
  int32_t number(int64_t value, const char* name) const;
  c10::Device device() const { return device_; }

 private:
  const char* op_;
  c10::Device device_;
};

/// The device that an operator runs on: the one of its first tensor. Throws the launcher's error where nothing can be
/// launched at all, and Error(failed) for tensors of the CPU, unless KVCC_HOST_DRIVER=1 says that the driver that
/// KVCC_CUDA_DRIVER names runs kernels in host memory (an emulator).
c10::Device launch_device(const char* op, const char* name, const at::Tensor& first);

/// The dtype that a unit reads beside the cache.
c10::ScalarType dtype_of(const Unit& unit);

/// One tensor's cache among an operator's arguments. Absent ones are those that the kernel does not need.
struct CacheTensors {
  const at::Tensor& pages;           ///< uint8 [pages of the pool, page_bytes]
  int64_t capacity;                  ///< records of a tile; -1: the folder's default
  const OptionalTensor& page_table;  ///< int32 [S, N]
  const OptionalTensor& lengths;     ///< int32 [S]
  const OptionalTensor& exact;       ///< float16 [S, sink + residual, H, D]
  const OptionalTensor& scale;       ///< float32 [H, D]
  const OptionalTensor& zero;
  const OptionalTensor& lower;
  const OptionalTensor& upper;
  const OptionalTensor& needed;  ///< int32 [S, N, H]
  std::string prefix;            ///< of the arguments' names: "", "key_" or "value_"
};

/// Shapes against the folder; what does not show in shapes is left to host::check(). `tensor`: "key" or "value".
KvccCache cache_of(const Arguments& arguments, KernelsFolder& kernels, const std::string& tensor, int64_t layer,
                   int64_t sequences, const CacheTensors& tensors);

/// Stream that torch launches on for the device: a CUstream.
void* current_stream(c10::Device device);

}  // namespace kvcc::bindings
