// Certificates for tests: an authority and what it signs, made with OpenSSL at run time.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::fake {

struct CertificateAndKey {
  std::string certificate_pem;  // with its chain, when it has one
  std::string key_pem;
};

struct CertificateSpec {
  std::string common_name = "server";
  std::vector<std::string> dns_names;
  std::vector<std::string> addresses;  // IPv4 or IPv6, in digits
  std::chrono::hours valid_from{-1};   // from now
  std::chrono::hours valid_until{24};
};

// An authority with a key of its own (P-256).
class CertificateAuthority {
 public:
  explicit CertificateAuthority(const std::string& common_name);
  ~CertificateAuthority();
  CertificateAuthority(CertificateAuthority&&) noexcept;

  [[nodiscard]] const std::string& certificate_pem() const;
  [[nodiscard]] CertificateAndKey issue(const CertificateSpec& spec) const;
  // An authority below this one; what it issues carries its certificate as chain.
  [[nodiscard]] CertificateAuthority issue_authority(const std::string& common_name) const;

 private:
  struct Impl;
  explicit CertificateAuthority(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::fake
