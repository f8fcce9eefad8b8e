// One shard as the bytes of its HDF5 file. Not for other folders.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "formats/store/activations.h"

namespace kvcc {

/// Throws Error(failed) when a tensor's size is not that of the settings. Values are not looked at.
std::string shard_image(const ActivationsSettings& settings, int sample, int layer, const Shard& shard);

/// Throws Error(bad_input) naming `place` and dataset for another shape, type, sample or layer.
Shard shard_of_image(const ActivationsSettings& settings, int sample, int layer, std::span<const std::byte> image,
                     const std::string& place);

}  // namespace kvcc
