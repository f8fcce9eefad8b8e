#include "formats/core/hash.h"

#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "formats/core/error.h"

namespace kvcc {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (state_->context == nullptr || EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) != 1) {
    throw Error(ErrorKind::failed, "sha256", "OpenSSL offers no SHA-256");
  }
}

Sha256::~Sha256() = default;

Sha256& Sha256::update(const void* data, size_t bytes) {
  if (bytes > 0 && EVP_DigestUpdate(state_->context, data, bytes) != 1) {
    throw Error(ErrorKind::failed, "sha256", "OpenSSL failed to hash");
  }
  return *this;
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned length = 0;
  if (EVP_DigestFinal_ex(state_->context, digest.data(), &length) != 1) {
    throw Error(ErrorKind::failed, "sha256", "OpenSSL failed to hash");
  }
  std::string text;
  for (unsigned i = 0; i < length; ++i) {
    text += "0123456789abcdef"[digest[i] >> 4];
    text += "0123456789abcdef"[digest[i] & 15];
  }
  return text;
}

std::string sha256_hex(std::string_view bytes) { return Sha256().update(bytes).hex(); }

std::string sha256_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) throw bad_input(path, std::strerror(errno));
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), file.get())) hash.update(buffer.data(), n);
  if (std::ferror(file.get())) throw bad_input(path, std::string("cannot be read: ") + std::strerror(errno));
  return hash.hex();
}

}  // namespace kvcc
