// TlsOptions: the settings of TLS connections to an API server, as a kubeconfig has them.
#pragma once

#include <string>

namespace lockstep::kube {

// PEM text, or the file that holds it. A file is read again when it changes.
struct PemSource {
  std::string file;
  std::string text;

  [[nodiscard]] bool empty() const { return file.empty() && text.empty(); }
  bool operator==(const PemSource&) const = default;
};

struct TlsOptions {
  PemSource authority;           // the only roots trusted; empty: those of the system
  PemSource client_certificate;  // with its chain
  PemSource client_key;
  std::string server_name;   // what the server's certificate must be for; empty: the host of the address
  bool skip_verify = false;  // the server's certificate is not checked

  bool operator==(const TlsOptions&) const = default;
};

}  // namespace lockstep::kube
