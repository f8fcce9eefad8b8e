// The entry of libkvcc_ranks.so.
#pragma once

#include "calib/ranks/ranks.h"

namespace kvcc {

using JoinC10d = Ranks*(const Launch& launch, const RankSettings& settings);
constexpr const char* kJoinC10d = "kvcc_join_c10d_1";  ///< the number goes up when Launch, RankSettings or Ranks change

}  // namespace kvcc
