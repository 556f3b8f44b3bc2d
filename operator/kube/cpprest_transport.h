// The HttpTransport that production uses: cpprestsdk, which no other file knows.
//
// The .cc describes each workaround for the library where it is used. Limits that remain: HTTP/1.1; no proxy; name
// resolution cannot be interrupted (callers still return in time; the end of the process may wait for the resolver).
// Threads: one in the background for all transports of the process. A transport outlives the calls that are in it.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "operator/kube/http_transport.h"
#include "operator/kube/tls_options.h"

namespace lockstep::kube {

struct CpprestTransportOptions {
  std::string url;  // "https://host:6443", with a path prefix if there is one; IPv6 in brackets
  TlsOptions tls;
  // Room for ten of the largest objects that etcd takes, or 50 of 300 kB. The client asks for a page that is larger
  // again, for fewer objects. Up to nine informers list at a time.
  size_t body_bytes_max = size_t{16} << 20;
  // How often the files of `tls` are checked for changes.
  std::chrono::milliseconds poll_files_every{10'000};
};

// kInvalid when the address or a certificate cannot be used; names it.
Result<std::shared_ptr<HttpTransport>> make_cpprest_transport(const CpprestTransportOptions& options);

}  // namespace lockstep::kube
