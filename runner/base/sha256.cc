#include "runner/base/sha256.h"

// The functions of this algorithm alone, which OpenSSL 3 discourages in favour of those that find one by its name:
// linked into the Python package's library without libcrypto.so, they bring nothing else along.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <algorithm>
#include <array>

#include "runner/base/check.h"

namespace lockstep {
namespace {

using Digest = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

std::string hex_of(const Digest& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const unsigned char byte : bytes) {
    hex.push_back(kDigits[byte >> 4U]);
    hex.push_back(kDigits[byte & 0xFU]);
  }
  return hex;
}

Digest final_of(SHA256_CTX& sum) {
  Digest digest{};
  LOCKSTEP_CHECK(SHA256_Final(digest.data(), &sum) == 1, "SHA-256 final failed");
  return digest;
}

// Of both, one after the other.
Digest digest_of(std::string_view first, const void* rest, size_t rest_bytes) {
  SHA256_CTX sum{};
  LOCKSTEP_CHECK(SHA256_Init(&sum) == 1 && SHA256_Update(&sum, first.data(), first.size()) == 1 &&
                     SHA256_Update(&sum, rest, rest_bytes) == 1,
                 "SHA-256 failed");
  return final_of(sum);
}

}  // namespace

struct Sha256::Context {
  SHA256_CTX sum{};
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  LOCKSTEP_CHECK(SHA256_Init(&context_->sum) == 1, "SHA-256 init failed");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(const void* data, size_t bytes) {
  LOCKSTEP_CHECK(SHA256_Update(&context_->sum, data, bytes) == 1, "SHA-256 update failed");
}

std::string Sha256::hex_digest() { return hex_of(final_of(context_->sum)); }

std::string sha256_hex(std::string_view bytes) {
  Sha256 sum;
  sum.update(bytes.data(), bytes.size());
  return sum.hex_digest();
}

std::string hmac_sha256_hex(std::string_view key, std::string_view bytes) {
  constexpr unsigned char kInner = 0x36;
  constexpr unsigned char kOuter = 0x5c;
  std::array<unsigned char, SHA256_CBLOCK> block{};
  if (key.size() > block.size()) {
    const Digest digest = digest_of({}, key.data(), key.size());
    std::copy(digest.begin(), digest.end(), block.begin());
  } else {
    std::copy(key.begin(), key.end(), block.begin());
  }
  const auto padded = [&block](unsigned char pad) {
    std::string text;
    for (const unsigned char byte : block) text.push_back(static_cast<char>(byte ^ pad));
    return text;
  };
  const Digest inner = digest_of(padded(kInner), bytes.data(), bytes.size());
  return hex_of(digest_of(padded(kOuter), inner.data(), inner.size()));
}

}  // namespace lockstep
