// The operator's HTTP endpoints: /metrics for Prometheus, /healthz and /readyz for the kubelet.
//
// A check returns what is wrong, as a sentence, or nothing. /readyz answers 503 while one fails; the body names all:
//   [+] crd: ok
//   [-] pods: no list of pods yet: the list failed: …
// Threads: the server's own (runner/base/http_server.h) calls `metrics` and the checks, one at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runner/base/http_server.h"
#include "runner/base/result.h"

namespace lockstep::control {

struct HealthCheck {
  std::string name;
  std::function<std::optional<std::string>()> trouble;
};

struct HealthServerOptions {
  int port = 8080;                       // 0: any free one
  std::function<std::string()> metrics;  // Prometheus text format
  std::vector<HealthCheck> ready;
};
// Listens on all addresses, IPv4 and IPv6. kUnavailable when it cannot, with the system's reason.
Result<std::unique_ptr<HttpServer>> start_health_server(HealthServerOptions options);

}  // namespace lockstep::control
