// Which of a machine's addresses the other ranks can reach it at, without asking for its name: names of machines often
// resolve to the loopback, or not at all.
#pragma once

#include <string>
#include <vector>

namespace kvcc {

/// The address that this machine talks to `host` (name or address) from, as text; "" when it has no way there.
std::string address_towards(const std::string& host, int port);

/// The own one of the addresses that the ranks found towards rank 0 [size]. Rank 0, and those beside it, may have found
/// the loopback, which serves only when all have: then it is the one towards a rank elsewhere.
std::string reachable_address(const std::vector<std::string>& addresses, size_t rank, int port);

}  // namespace kvcc
