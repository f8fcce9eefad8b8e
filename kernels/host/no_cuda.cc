// The launcher of builds without one.
#include "formats/core/error.h"
#include "kernels/host/launcher.h"

namespace kvcc::host {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::failed, what, "this build launches no kernels", "a build with the CUDA launcher",
              "load the cubin with the CUDA driver as kvcc_NAME.h and kernels.json describe");
}

}  // namespace

struct Module::State {};

bool launcher_available() { return false; }
Module::Module(const std::string& path) { refuse(path); }
Module::~Module() = default;
void Module::launch(const std::string& symbol, KvccGrid, const void*, size_t, void*) const { refuse(symbol); }

}  // namespace kvcc::host
