#include "operator/control/health_server.h"

#include <utility>

namespace lockstep::control {

namespace {

HttpAnswer ask(const std::vector<HealthCheck>& checks) {
  HttpAnswer answer{200, kTextType, ""};
  for (const HealthCheck& check : checks) {
    const std::optional<std::string> trouble = check.trouble();
    if (trouble) answer.code = 503;
    answer.body.append(trouble ? "[-] " : "[+] ").append(check.name).append(": ");
    answer.body.append(trouble ? *trouble : "ok").append("\n");
  }
  return answer;
}

HttpAnswer answer(const HealthServerOptions& options, const HttpRequest& request) {
  if (request.method != "GET") return {405, kTextType, "only GET is supported\n"};
  if (request.path == "/metrics") return {200, kPrometheusType, options.metrics()};
  if (request.path == "/healthz") return {200, kTextType, "ok\n"};
  if (request.path == "/readyz") return ask(options.ready);
  return {404, kTextType, "not found; there are /metrics, /healthz and /readyz\n"};
}

}  // namespace

Result<std::unique_ptr<HttpServer>> start_health_server(HealthServerOptions options) {
  const int port = options.port;
  if (port < 0 || port > 65535) {
    return invalid("port " + std::to_string(port) + " is no port: expected 0 to 65535");
  }
  Result<std::unique_ptr<HttpServer>> server =
      HttpServer::start({.port = port, .handler = [options = std::move(options)](const HttpRequest& request) {
                           return answer(options, request);
                         }});
  if (server.ok()) return server;
  std::string message = "port " + std::to_string(port);
  message.append(" for metrics and health checks cannot be listened on: ").append(server.error().message);
  return Error{ErrorCode::kUnavailable, message.append("; choose another one")};
}

}  // namespace lockstep::control
