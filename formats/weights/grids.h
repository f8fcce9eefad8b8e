// Points that the blocks of GGUF's IQ1, IQ2 and IQ3 types are made of, eight or four coordinates each.
#pragma once

#include <array>
#include <cstdint>

namespace kvcc {

using Grid8 = std::array<int8_t, 8>;
using Grid4 = std::array<int8_t, 4>;

extern const std::array<Grid8, 2048> kGridIq1;    ///< IQ1_S and IQ1_M: -1, 0, 1
extern const std::array<Grid8, 256> kGridIq2Xxs;  ///< 8, 25, 43; so are the next two
extern const std::array<Grid8, 512> kGridIq2Xs;
extern const std::array<Grid8, 1024> kGridIq2S;
extern const std::array<Grid4, 256> kGridIq3Xxs;  ///< 4 to 62
extern const std::array<Grid4, 512> kGridIq3S;    ///< 1, 3, ..., 15

}  // namespace kvcc
