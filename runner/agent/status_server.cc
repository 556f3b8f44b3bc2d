#include "runner/agent/status_server.h"

#include <algorithm>
#include <utility>

#include "runner/agent/metrics_text.h"
#include "runner/agent/status_page.h"
#include "runner/base/json.h"
#include "runner/base/mutex.h"

namespace lockstep {

void StatusBoard::publish(RunStatus status) {
  auto fresh = std::make_shared<const RunStatus>(std::move(status));
  const MutexLock lock(mutex_);
  status_.swap(fresh);
}

void StatusBoard::publish_metrics(int local_rank, std::vector<MetricFamily> families) {
  auto fresh = std::make_shared<const std::vector<MetricFamily>>(std::move(families));
  const MutexLock lock(mutex_);
  worker_families_[local_rank].swap(fresh);
}

void StatusBoard::publish_agent_metrics(std::vector<MetricFamily> families) {
  auto fresh = std::make_shared<const std::vector<MetricFamily>>(std::move(families));
  const MutexLock lock(mutex_);
  agent_families_.swap(fresh);
}

std::shared_ptr<const RunStatus> StatusBoard::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

std::string StatusBoard::metrics() const {
  std::vector<Families> held;
  {
    const MutexLock lock(mutex_);
    held.push_back(agent_families_);
    for (const auto& [local_rank, families] : worker_families_) held.push_back(families);
  }
  std::vector<const std::vector<MetricFamily>*> sources;
  for (const Families& families : held) sources.push_back(families.get());
  return metrics_text(sources);
}

bool is_ready(const RunStatus& status) {
  return status.phase == RunPhase::kRunning && !status.workers.empty() &&
         std::all_of(status.workers.begin(), status.workers.end(),
                     [](const WorkerStatus& w) { return w.state == "joined" || w.state == "done"; });
}

namespace {

constexpr const char* kSummaryQuery = "view=summary";
constexpr const char* kHtml = "text/html; charset=utf-8";

bool is_of_folder(const std::string& path) {
  return path == "/history" || path == "/outputs" || path.starts_with("/outputs/");
}

HttpAnswer answer_of_folder(RunFolderView* folder, const std::string& path) {
  if (folder != nullptr) return folder->answer(path, std::chrono::steady_clock::now());
  return {404, kTextType,
          "node 0's agent has the run's folder and shows it; \"coordinator\" in /status is its address\n"};
}

HttpAnswer answer_get(const StatusBoard& board, RunFolderView* folder, const HttpRequest& request) {
  const std::string& path = request.path;
  if (path == "/") return {200, kHtml, std::string(kStatusPage)};
  if (path == "/status" && request.query == kSummaryQuery)
    return {200, kJsonType, dump_line(summary_of(*board.status()))};
  if (path == "/status") return {200, kJsonType, dump_pretty(to_json(*board.status()))};
  if (is_of_folder(path)) return answer_of_folder(folder, path);
  if (path == "/metrics") return {200, kPrometheusType, board.metrics()};
  if (path == "/healthz") return {200, kTextType, "ok\n"};
  if (path == "/readyz") {
    const std::shared_ptr<const RunStatus> status = board.status();
    const bool ready = is_ready(*status);
    return {ready ? 200 : 503, kTextType,
            std::string(ready ? "ready" : "not ready: ") + (ready ? "" : to_string(status->phase)) + "\n"};
  }
  return {404, kTextType,
          "not found; there are /, /status, /history, /outputs, /metrics, /healthz, /readyz, POST /nodes and "
          "POST /coordinator\n"};
}

}  // namespace

StatusServer::StatusServer(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}

Result<std::unique_ptr<StatusServer>> StatusServer::start(int port, const StatusBoard& board, RunFolderView* folder,
                                                          OperatorControl control) {
  HttpServer::Options options{.port = port, .body_max = kRequestBodyMax};
  options.handler = [&board, folder, control = std::move(control)](const HttpRequest& request) {
    return request.method == "POST" ? answer_post(control, request) : answer_get(board, folder, request);
  };
  Result<std::unique_ptr<HttpServer>> server = HttpServer::start(std::move(options));
  if (server.ok()) return std::unique_ptr<StatusServer>(new StatusServer(std::move(*server)));
  const bool is_taken = server.error().code == ErrorCode::kConflict;
  std::string message = "port " + std::to_string(port) + " for the status page ";
  message.append(is_taken ? "is taken" : "cannot be listened on (" + server.error().message + ")");
  return Error{ErrorCode::kUnavailable, std::move(message)};
}

}  // namespace lockstep
