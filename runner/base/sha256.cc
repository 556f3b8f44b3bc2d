#include "runner/base/sha256.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <climits>

#include "runner/base/check.h"

namespace lockstep {
namespace {

std::string hex_of(const unsigned char* bytes, size_t size) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * size);
  for (size_t i = 0; i < size; ++i) {
    hex.push_back(kDigits[bytes[i] >> 4U]);
    hex.push_back(kDigits[bytes[i] & 0xFU]);
  }
  return hex;
}

}  // namespace

struct Sha256::Context {
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> evp{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  LOCKSTEP_CHECK(context_->evp && EVP_DigestInit_ex(context_->evp.get(), EVP_sha256(), nullptr) == 1,
                 "OpenSSL offers no SHA-256");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(const void* data, size_t bytes) {
  LOCKSTEP_CHECK(EVP_DigestUpdate(context_->evp.get(), data, bytes) == 1, "SHA-256 update failed");
}

std::string Sha256::hex_digest() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  LOCKSTEP_CHECK(EVP_DigestFinal_ex(context_->evp.get(), digest.data(), &size) == 1, "SHA-256 final failed");
  return hex_of(digest.data(), size);
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 sum;
  sum.update(bytes.data(), bytes.size());
  return sum.hex_digest();
}

std::string hmac_sha256_hex(std::string_view key, std::string_view bytes) {
  LOCKSTEP_CHECK(key.size() <= INT_MAX, "an HMAC key of more than 2 GiB");
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  const unsigned char* const sum =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(bytes.data()),
           bytes.size(), digest.data(), &size);
  LOCKSTEP_CHECK(sum != nullptr, "OpenSSL offers no HMAC-SHA256");
  return hex_of(digest.data(), size);
}

}  // namespace lockstep
