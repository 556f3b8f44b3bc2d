#include "runner/agent/status_server.h"

#include <CivetServer.h>

#include <algorithm>
#include <utility>

#include "runner/agent/metrics_text.h"
#include "runner/agent/status_page.h"
#include "runner/base/json.h"

namespace lockstep {

void StatusBoard::publish(RunStatus status) {
  const std::lock_guard lock(mutex_);
  status_ = std::move(status);
}

void StatusBoard::publish_metrics(int rank, std::vector<MetricFamily> families) {
  const std::lock_guard lock(mutex_);
  worker_families_[rank] = std::move(families);
}

void StatusBoard::publish_agent_metrics(std::vector<MetricFamily> families) {
  const std::lock_guard lock(mutex_);
  agent_families_ = std::move(families);
}

RunStatus StatusBoard::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

std::string StatusBoard::metrics() const {
  const std::lock_guard lock(mutex_);
  std::vector<const std::vector<MetricFamily>*> sources{&agent_families_};
  for (const auto& [rank, families] : worker_families_) sources.push_back(&families);
  return metrics_text(sources);
}

bool is_ready(const RunStatus& status) {
  return status.phase == RunPhase::kRunning && !status.workers.empty() &&
         std::all_of(status.workers.begin(), status.workers.end(),
                     [](const WorkerStatus& w) { return w.state == "joined" || w.state == "done"; });
}

namespace {

constexpr const char* kThreads = "4";               // scrapes, probes and one open page
constexpr const char* kRequestTimeoutMs = "10000";  // a peer that stays silent frees its thread
constexpr const char* kHtml = "text/html; charset=utf-8";
constexpr const char* kJson = "application/json";
constexpr const char* kText = "text/plain; charset=utf-8";
constexpr const char* kPrometheus = "text/plain; version=0.0.4; charset=utf-8";

void send(mg_connection* connection, const HttpAnswer& answer, bool with_body) {
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
            "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            answer.code, mg_get_response_code_text(connection, answer.code), answer.type, answer.body.size());
  if (with_body) mg_write(connection, answer.body.data(), answer.body.size());
}

HttpAnswer answer_get(const StatusBoard& board, const std::string& path) {
  if (path == "/") return {200, kHtml, std::string(kStatusPage)};
  if (path == "/status") return {200, kJson, dump_pretty(to_json(board.status()))};
  if (path == "/metrics") return {200, kPrometheus, board.metrics()};
  if (path == "/healthz") return {200, kText, "ok\n"};
  if (path == "/readyz") {
    const RunStatus status = board.status();
    const bool ready = is_ready(status);
    return {ready ? 200 : 503, kText,
            std::string(ready ? "ready" : "not ready: ") + (ready ? "" : to_string(status.phase)) + "\n"};
  }
  return {404, kText,
          "not found; there are /, /status, /metrics, /healthz, /readyz, POST /nodes and POST /coordinator\n"};
}

// At most one byte more than the limit.
std::string read_body(mg_connection* connection) {
  std::string body(kRequestBodyMax + 1, '\0');
  size_t size = 0;
  while (size < body.size()) {
    const int got = mg_read(connection, body.data() + size, body.size() - size);
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  body.resize(size);
  return body;
}

class Handler : public CivetHandler {
 public:
  Handler(const StatusBoard& board, OperatorControl control) : board_(board), control_(std::move(control)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    send(connection, answer_get(board_, path_of(connection)), true);
    return true;
  }
  bool handleHead(CivetServer*, mg_connection* connection) override {
    send(connection, answer_get(board_, path_of(connection)), false);
    return true;
  }
  bool handlePost(CivetServer*, mg_connection* connection) override {
    const char* const authorization = mg_get_header(connection, "Authorization");
    const PostRequest request{.path = path_of(connection),
                              .authorization = authorization == nullptr ? "" : authorization,
                              .body = read_body(connection)};
    send(connection, answer_post(control_, request), true);
    return true;
  }

 private:
  static std::string path_of(mg_connection* connection) { return mg_get_request_info(connection)->local_uri; }

  const StatusBoard& board_;
  OperatorControl control_;
};

std::vector<std::string> civet_options(const std::string& ports) {
  return {"listening_ports", ports, "num_threads", kThreads, "request_timeout_ms", kRequestTimeoutMs};
}

}  // namespace

struct StatusServer::Impl {
  Impl(const StatusBoard& board, OperatorControl control) : handler(board, std::move(control)) {}

  // The handler is declared first, so that it outlives the server that calls it.
  Handler handler;
  std::unique_ptr<CivetServer> server;
};

StatusServer::StatusServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StatusServer::~StatusServer() = default;

Result<std::unique_ptr<StatusServer>> StatusServer::start(int port, const StatusBoard& board, OperatorControl control) {
  auto impl = std::make_unique<Impl>(board, std::move(control));
  // "+port": IPv4 and IPv6. Machines without IPv6 refuse that, and get IPv4 alone.
  for (const std::string& ports : {"+" + std::to_string(port), std::to_string(port)}) {
    try {
      impl->server = std::make_unique<CivetServer>(civet_options(ports));
      break;
    } catch (const CivetException&) {
      // The next form, or the error below.
    }
  }
  if (impl->server == nullptr) {
    return Error{ErrorCode::kUnavailable, "port " + std::to_string(port) +
                                              " for the status page is taken: choose another one with --status_port N, "
                                              "or go without with --status_port 0"};
  }
  impl->server->addHandler("/", impl->handler);
  return std::unique_ptr<StatusServer>(new StatusServer(std::move(impl)));
}

}  // namespace lockstep
