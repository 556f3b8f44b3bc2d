// StatusServer: the agent's HTTP server: /metrics, /healthz, /readyz, /status, a web page at /, files of the run's
// folder (run_folder_reader.h), and the operator's POST requests (operator_requests.h).
//
// StatusBoard holds the last published status of the run; the agent's event loop publishes it, the server's thread
// reads it. Threads: the board is safe from all threads. The server has one thread (base/http_server.h).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runner/agent/operator_requests.h"
#include "runner/agent/run_folder_view.h"
#include "runner/base/http_server.h"
#include "runner/base/mutex.h"
#include "runner/base/result.h"
#include "runner/contract/messages.h"
#include "runner/contract/run_status.h"

namespace lockstep {

class StatusBoard {
 public:
  void publish(RunStatus status);
  // All metric families of a worker of this node; they replace its earlier ones.
  void publish_metrics(int local_rank, std::vector<MetricFamily> families);
  void publish_agent_metrics(std::vector<MetricFamily> families);

  [[nodiscard]] std::shared_ptr<const RunStatus> status() const;
  [[nodiscard]] std::string metrics() const;  // Prometheus text

 private:
  // Published objects are immutable. Readers copy the pointer and release the mutex, so that the agent's loop never
  // waits while a response is being written.
  using Families = std::shared_ptr<const std::vector<MetricFamily>>;

  mutable Mutex mutex_;
  std::shared_ptr<const RunStatus> status_ GUARDED_BY(mutex_) = std::make_shared<const RunStatus>();
  Families agent_families_ GUARDED_BY(mutex_) = std::make_shared<const std::vector<MetricFamily>>();
  std::map<int, Families> worker_families_ GUARDED_BY(mutex_);
};

// Are all workers training (or done)? /readyz reports it.
bool is_ready(const RunStatus& status);

class StatusServer {
 public:
  // Listens on all addresses. `board` and `folder` outlive the server; `folder` is null except on node 0. kUnavailable
  // when the port is taken.
  static Result<std::unique_ptr<StatusServer>> start(int port, const StatusBoard& board, RunFolderView* folder,
                                                     OperatorControl control);

 private:
  explicit StatusServer(std::unique_ptr<HttpServer> server);

  std::unique_ptr<HttpServer> server_;
};

}  // namespace lockstep
