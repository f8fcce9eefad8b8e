// What a warp's tensor core operations compute, from and to the operands of its 32 lanes. Host only.
#pragma once

#include "kernels/emulator/machine.h"

namespace kvcc::emulator::internal {

/// c += A B of fragments as intrinsics.cuh lays them out. Products are exact; each sum is taken in double, in the order
/// of k, c last, and rounded once. (The hardware's order and inner precision are not documented: a family that uses it
/// has a tolerance.)
void multiply_fragments(Thread* lanes);
/// result of lane 4 g + t: elements [2t][g], [2t + 1][g] of the matrix whose [g][2t], [g][2t + 1] it gave.
void transpose_fragments(Thread* lanes);

}  // namespace kvcc::emulator::internal
