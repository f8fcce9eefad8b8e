// libtorch's exceptions as the project's.
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "formats/core/error.h"

namespace kvcc {

/// Runs f; a libtorch error becomes an Error without its back trace: `resource` when memory ran out (then with
/// `memory_hint`), else `failed`.
template <typename F>
auto with_torch_errors(const F& f, const char* memory_hint = "a smaller --seqlen needs less memory") -> decltype(f()) {
  try {
    return f();
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    text = text.substr(0, text.find('\n'));
    const bool memory = text.find("alloc") != std::string::npos && text.find("memory") != std::string::npos;
    throw Error(memory ? ErrorKind::resource : ErrorKind::failed, "libtorch", text, "", memory ? memory_hint : "");
  }
}

}  // namespace kvcc
