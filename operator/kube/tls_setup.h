// TlsSetup: the certificates of one server's connections, and in words why a handshake failed. OpenSSL, without any
// HTTP.
//
// Role: `configure` prepares the SSL_CTX of each new connection: only the roots of TlsOptions (never the system's
// beside them), TLS 1.2 or newer, the client certificate, and a verification of our own that checks the name as Go does
// (subjectAltName only) and records what was wrong; libraries above only say "handshake failed".
// Threads: safe from all threads. Connections may outlive the TlsSetup.
// Errors: kInvalid names the field or file and what is wrong with it.
#pragma once

#include <memory>
#include <string>

#include "operator/kube/server_url.h"
#include "operator/kube/tls_options.h"
#include "runner/base/result.h"

using SSL_CTX = struct ssl_ctx_st;  // NOLINT(readability-identifier-naming): OpenSSL's name

namespace lockstep::kube {

class TlsSetup {
 public:
  // Reads and checks everything once.
  static Result<std::unique_ptr<TlsSetup>> make(const TlsOptions& options, const ServerUrl& url);
  ~TlsSetup();

  Status configure(SSL_CTX* context) const;

  // Reads the files that have changed. True: new connections will differ from the old ones, which should be dropped.
  // Files that cannot be read, or do not match (the key is replaced already, its certificate is not), leave everything
  // as it was; the next call reads them again.
  bool refresh();

  // The last refusal, by us or by the server: "the server's certificate has expired (…)". Empty when there was none.
  [[nodiscard]] std::string last_refusal() const;

 private:
  struct Impl;
  explicit TlsSetup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::kube
