// SHA-256, for provenance and content addressing.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kvcc {

/// Incremental SHA-256 (OpenSSL).
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  Sha256& update(const void* data, size_t bytes);
  Sha256& update(std::string_view text) { return update(text.data(), text.size()); }
  std::string hex();  ///< finishes; 64 lower-case digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::string_view bytes);
/// Streams the file. Throws Error(bad_input) when it can't be read.
std::string sha256_file(const std::string& path);

}  // namespace kvcc
