// libtorch's exceptions as the project's.
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "formats/core/error.h"

namespace kvcc {

/// Runs f; a libtorch error becomes an Error without its back trace: `resource` when memory ran out, else `failed`.
template <typename F>
auto with_torch_errors(const F& f) -> decltype(f()) {
  try {
    return f();
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    text = text.substr(0, text.find('\n'));
    const bool memory = text.find("alloc") != std::string::npos && text.find("memory") != std::string::npos;
    throw Error(memory ? ErrorKind::resource : ErrorKind::failed, "libtorch", text, "",
                memory ? "a smaller --seqlen needs less memory" : "");
  }
}

}  // namespace kvcc
