// Shapes of quantisers and rows, checked once before the loops that index them. Host only.
#pragma once

#include <cstddef>
#include <string>

#include "formats/codec/reference.h"

namespace kvcc {

/// Throw Error(failed) when an array's size is not what heads, dim and bits say, and Error(usage) for impossible tails.
void check_quantiser(const ChannelQuantiser& q, const std::string& place);
void check_quantiser(const TokenQuantiser& q, const std::string& place);
/// Throws Error(failed) unless `size` is heads * dim.
void check_row(size_t size, int heads, int dim, const std::string& place);

}  // namespace kvcc
