// Blocks of the types that look values up in a table, and of those with fewer than four bits. Each decodes one block
// (block_formats.h) in the arithmetic of PyPI gguf.
#pragma once

namespace kvcc {

using BlockByte = unsigned char;

void q1_0_block(const BlockByte* in, float* out);    ///< 128, signs alone
void q2_k_block(const BlockByte* in, float* out);    ///< 256 values
void q3_k_block(const BlockByte* in, float* out);    ///< 256
void tq1_0_block(const BlockByte* in, float* out);   ///< 256, ternary: five values a byte
void tq2_0_block(const BlockByte* in, float* out);   ///< 256, ternary
void iq4_nl_block(const BlockByte* in, float* out);  ///< 32
void iq4_xs_block(const BlockByte* in, float* out);  ///< 256
void mxfp4_block(const BlockByte* in, float* out);   ///< 32 (OCP Microscaling Formats 1.0)
void nvfp4_block(const BlockByte* in, float* out);   ///< 64

}  // namespace kvcc
