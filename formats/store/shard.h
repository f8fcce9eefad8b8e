// One tensor-parallel rank's part of an artifact.
#pragma once

#include <string>

#include "formats/store/codebook.h"

namespace kvcc {

struct RankShard {
  int rank = 0;   ///< from 0
  int count = 1;  ///< ranks
};

/// "1/4": rank 1 of ranks 0 to 3. Throws Error(usage) naming `option`.
RankShard parse_rank_shard(const std::string& text, const std::string& option);

/// The artifact of the rank's key/value heads [rank H/count, (rank + 1) H/count) and of the query heads that read them.
/// Codebooks, scales, thresholds and statistics are those of the heads; what is counted per token over all heads of a
/// layer (ranges of values, outliers of each tail) is over the rank's heads from then on. Provenance names the parent
/// and the shard. Throws Error(bad_input) naming `place` when heads do not divide, for a shard of a shard, and for
/// datasets that this build can't divide.
Codebook shard_codebook(const Codebook& codebook, const RankShard& shard, const std::string& place);

}  // namespace kvcc
