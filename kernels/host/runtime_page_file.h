// Pages of a sequence as a cache file has them: only what the layout gives a meaning, all other bytes zero. Host
// only.
#pragma once

#include <cstdint>
#include <string>

#include "formats/layout/mma.h"
#include "kernels/host/runtime_artifact.h"

namespace kvcc::host {

/// Copies the first `slots` tokens of a page to one whose lists have another capacity, which is enough; what means
/// nothing becomes zero. The shapes are alike otherwise.
void copy_page(const mma::PageShape& from_shape, const uint8_t* from, const mma::PageShape& to_shape, uint8_t* to,
               int slots);

/// Most records that a tile of the page holds.
uint32_t most_records(const mma::PageShape& shape, const uint8_t* page);

/// Everything in a page that readers and pack rely on, of its first `slots` tokens: class ends, and records that are in
/// order, of filled slots, within the head, with the code of their place and a finite value; finite ranges; on the
/// token axis 2 * tail outliers a token. Of vector codebooks: no bit but those of the filled slots' codes. Throws
/// Error(bad_input) at `place`.
void check_page(const PackedTensor& tensor, int layer, const mma::PageShape& shape, const uint8_t* page, int slots,
                const std::string& place);

}  // namespace kvcc::host
