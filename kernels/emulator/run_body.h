// Launches a body of kernels/device in the emulator. Compile with -DKVCC_EMULATE.
#pragma once

#include <string>

#include "kernels/device/launch.cuh"
#include "kernels/emulator/emulator.h"

namespace kvcc::emulator {

template <class Body>
void run(const typename Body::Params& params, KvccGrid grid, const Options& options = {},
         const std::string& name = "kernel") {
  launch([](const void* p) { device::run_thread<Body>(*static_cast<const typename Body::Params*>(p)); }, &params, grid,
         Body::kThreads, sizeof(typename Body::Shared), options, name);
}

}  // namespace kvcc::emulator
