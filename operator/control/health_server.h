// HealthServer: the operator's HTTP endpoints: /metrics for Prometheus, /healthz and /readyz for the kubelet.
//
// A check returns what is wrong, as a sentence, or nothing. /healthz answers 503 while a check of `healthy` fails (the
// kubelet then restarts the operator), /readyz while a check of either list fails; the body names all checks:
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

class HealthServer {
 public:
  struct Options {
    int port = 8080;                       // 0: any free one, see `port`
    std::function<std::string()> metrics;  // Prometheus text format
    std::vector<HealthCheck> healthy;
    std::vector<HealthCheck> ready;
  };
  // Listens on all addresses, IPv4 and IPv6. kUnavailable when it cannot, with the system's reason.
  static Result<std::unique_ptr<HealthServer>> start(Options options);

  [[nodiscard]] int port() const;

 private:
  explicit HealthServer(std::unique_ptr<HttpServer> server);

  std::unique_ptr<HttpServer> server_;
};

}  // namespace lockstep::control
