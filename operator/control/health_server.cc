#include "operator/control/health_server.h"

#include <CivetServer.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep::control {

namespace {

constexpr const char* kThreads = "4";               // scrapes and probes
constexpr const char* kRequestTimeoutMs = "10000";  // a peer that stays silent frees its thread
constexpr const char* kText = "text/plain; charset=utf-8";
constexpr const char* kPrometheus = "text/plain; version=0.0.4; charset=utf-8";

struct Answer {
  int code = 200;
  const char* type = kText;
  std::string body;
};

Answer ask(const std::vector<const std::vector<HealthCheck>*>& lists) {
  Answer answer;
  for (const std::vector<HealthCheck>* list : lists) {
    for (const HealthCheck& check : *list) {
      const std::optional<std::string> trouble = check.trouble();
      if (trouble) answer.code = 503;
      answer.body.append(trouble ? "[-] " : "[+] ").append(check.name).append(": ");
      answer.body.append(trouble ? *trouble : "ok").append("\n");
    }
  }
  if (answer.body.empty()) answer.body = "ok\n";
  return answer;
}

class Handler : public CivetHandler {
 public:
  explicit Handler(HealthServer::Options options) : options_(std::move(options)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override { return send(connection, true); }
  bool handleHead(CivetServer*, mg_connection* connection) override { return send(connection, false); }

 private:
  [[nodiscard]] Answer answer(const std::string& path) const {
    if (path == "/metrics") return {200, kPrometheus, options_.metrics ? options_.metrics() : std::string()};
    if (path == "/healthz") return ask({&options_.healthy});
    if (path == "/readyz") return ask({&options_.healthy, &options_.ready});
    return {404, kText, "not found; there are /metrics, /healthz and /readyz\n"};
  }

  bool send(mg_connection* connection, bool with_body) const {
    const Answer told = answer(mg_get_request_info(connection)->local_uri);
    mg_printf(connection,
              "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
              "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
              told.code, mg_get_response_code_text(connection, told.code), told.type, told.body.size());
    if (with_body) mg_write(connection, told.body.data(), told.body.size());
    return true;
  }

  const HealthServer::Options options_;
};

// Why a port cannot be listened on: the web server does not say. Nothing when it can.
std::optional<std::string> refusal(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::strerror(errno);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  std::optional<std::string> reason;
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || ::listen(fd, 1) != 0) {
    reason = std::strerror(errno);
  }
  ::close(fd);
  return reason;
}

Error cannot_listen(int port) {
  std::string message = "port " + std::to_string(port);
  message.append(" for metrics and health checks cannot be listened on: ");
  message.append(refusal(port).value_or("the web server did not start"));
  return Error{ErrorCode::kUnavailable, message.append("; choose another one")};
}

}  // namespace

struct HealthServer::Impl {
  explicit Impl(Options options) : handler(std::move(options)) {}

  // Declared first, so that it outlives the server that calls it.
  Handler handler;
  std::unique_ptr<CivetServer> server;
};

HealthServer::HealthServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HealthServer::~HealthServer() = default;

Result<std::unique_ptr<HealthServer>> HealthServer::start(Options options) {
  const int port = options.port;
  if (port < 0 || port > 65535) {
    return Error{ErrorCode::kInvalid, "port " + std::to_string(port) + " is no port: expected 0 to 65535"};
  }
  auto impl = std::make_unique<Impl>(std::move(options));
  // "+port": IPv4 and IPv6. Machines without IPv6 refuse that, and get IPv4 alone.
  for (const std::string& ports : {"+" + std::to_string(port), std::to_string(port)}) {
    const std::vector<std::string> civet{"listening_ports", ports, "num_threads", kThreads, "request_timeout_ms",
                                         kRequestTimeoutMs};
    try {
      impl->server = std::make_unique<CivetServer>(civet);
      break;
    } catch (const CivetException&) {
      // The next form, or the error below.
    }
  }
  if (impl->server == nullptr) return cannot_listen(port);
  impl->server->addHandler("/", impl->handler);
  return std::unique_ptr<HealthServer>(new HealthServer(std::move(impl)));
}

int HealthServer::port() const { return impl_->server->getListeningPorts().front(); }

}  // namespace lockstep::control
