// The CUDA driver API, loaded at run time, so that programs link and run where there is no driver. Only what launching
// needs is declared here (values as in cuda.h, which need not be there either). Internal to kernels/host.
#pragma once

#include <cstddef>
#include <string>

namespace kvcc::host {

using CuResult = int;
using CuDevice = int;
using CuContext = struct CuContextOpaque*;
using CuModule = struct CuModuleOpaque*;
using CuFunction = struct CuFunctionOpaque*;
using CuStream = void*;

enum : CuResult {
  kCuSuccess = 0,
  kCuNoDevice = 100,
  kCuInvalidImage = 200,
  kCuNoBinaryForDevice = 209,
  kCuInvalidPtx = 218,
  kCuUnsupportedPtxVersion = 222,
  kCuNotFound = 500,
};
enum CuDeviceAttribute : int {
  kCuMultiprocessors = 16,
  kCuCapabilityMajor = 75,
  kCuCapabilityMinor = 76,
  kCuSharedBytesOptIn = 97,  ///< a block's most
};
enum CuFunctionAttribute : int { kCuDynamicSharedBytes = 8 };
enum CuJitOption : int { kCuErrorLog = 5, kCuErrorLogBytes = 6 };

/// The driver's functions. Symbols with the version that the API has had since CUDA 11.
class Driver {
 public:
  /// Loads libcuda.so.1, or what KVCC_CUDA_DRIVER names, and initialises it. Throws Error(failed) when it is not there,
  /// lacks a function, or finds no device. It stays loaded until the process ends.
  Driver();

  /// Throws Error(failed) "PLACE: WHAT: CUDA's name and text of the error".
  void check(CuResult result, const std::string& place, const char* what) const;
  std::string text(CuResult result) const;

  CuResult (*init)(unsigned);
  CuResult (*driver_version)(int*);
  CuResult (*device_count)(int*);
  CuResult (*device)(CuDevice*, int);
  CuResult (*device_name)(char*, int, CuDevice);
  CuResult (*device_attribute)(int*, CuDeviceAttribute, CuDevice);
  CuResult (*retain_primary_context)(CuContext*, CuDevice);
  CuResult (*release_primary_context)(CuDevice);
  CuResult (*push_context)(CuContext);
  CuResult (*pop_context)(CuContext*);
  CuResult (*load_module)(CuModule*, const void*, unsigned, CuJitOption*, void**);
  CuResult (*unload_module)(CuModule);
  CuResult (*module_function)(CuFunction*, CuModule, const char*);
  CuResult (*set_function_attribute)(CuFunction, CuFunctionAttribute, int);
  CuResult (*launch)(CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream, void**,
                     void**);
  CuResult (*error_name)(CuResult, const char**);
  CuResult (*error_string)(CuResult, const char**);
};

}  // namespace kvcc::host
