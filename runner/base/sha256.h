// SHA-256 (FIPS 180-4), by OpenSSL.
// Threads: one thread at a time per object.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(const void* data, size_t bytes);
  // 64 lower-case hex digits; ends the object's use.
  [[nodiscard]] std::string hex_digest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string sha256_hex(std::string_view bytes);
// HMAC-SHA256 (RFC 2104): 64 lower-case hex digits. Any bytes and lengths.
std::string hmac_sha256_hex(std::string_view key, std::string_view bytes);

}  // namespace lockstep
