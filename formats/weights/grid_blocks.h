// Blocks of the types whose values are points of a grid (grids.h) with signs beside. Each decodes one block of 256
// values (block_formats.h) in the arithmetic of PyPI gguf.
#pragma once

#include "formats/weights/low_bit_blocks.h"

namespace kvcc {

void iq1_s_block(const BlockByte* in, float* out);
void iq1_m_block(const BlockByte* in, float* out);
void iq2_xxs_block(const BlockByte* in, float* out);
void iq2_xs_block(const BlockByte* in, float* out);
void iq2_s_block(const BlockByte* in, float* out);
void iq3_xxs_block(const BlockByte* in, float* out);
void iq3_s_block(const BlockByte* in, float* out);

}  // namespace kvcc
