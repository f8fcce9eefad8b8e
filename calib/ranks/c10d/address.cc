#include "calib/ranks/c10d/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kvcc {
namespace {

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

/// Connecting a datagram socket sends nothing, and picks the route.
std::string source_of(const addrinfo& target) {
  const int socket = ::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return "";
  sockaddr_storage own = {};
  socklen_t length = sizeof own;
  char text[NI_MAXHOST] = {};
  const bool found =
      ::connect(socket, target.ai_addr, target.ai_addrlen) == 0 &&
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
      ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0;
  ::close(socket);
  return found ? text : "";
}

}  // namespace

std::string address_towards(const std::string& host, int port) {
  addrinfo wanted = {};
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* targets = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &targets) != 0) return "";
  std::string found;
  for (const addrinfo* target = targets; target != nullptr && found.empty(); target = target->ai_next) {
    found = source_of(*target);
  }
  ::freeaddrinfo(targets);
  return found;
}

std::string reachable_address(const std::vector<std::string>& addresses, size_t rank, int port) {
  const std::string& own = addresses.at(rank);
  if (!own.empty() && !is_loopback(own)) return own;
  for (const std::string& other : addresses) {
    if (other.empty() || is_loopback(other)) continue;
    if (const std::string found = address_towards(other, port); !found.empty()) return found;
  }
  return own.empty() ? "127.0.0.1" : own;
}

}  // namespace kvcc
