// ProgressServer: takes the progress reports of the ranks' program (progress_report.h), where Kubeflow Trainer's
// variables tell them to go: HTTP on the loopback interface, any free port, with a token that lies in a file.
//
// Threads: `on_report` is called on the server's own thread (base/http_server.h), everything else on the caller's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runner/agent/progress_report.h"
#include "runner/base/environment.h"
#include "runner/base/http_server.h"
#include "runner/base/result.h"

namespace lockstep {

class ProgressServer {
 public:
  // `folder` exists; the token's file is written there. kUnavailable: no port, or the file cannot be written.
  static Result<std::unique_ptr<ProgressServer>> start(const std::string& folder,
                                                       std::function<void(ProgressReport)> on_report);

  // Sets KUBEFLOW_TRAINER_SERVER_URL and _TOKEN, unless a URL is set already: then another server is to hear of the
  // progress. Where an HTTP proxy is set, 127.0.0.1 is added to no_proxy.
  void add_variables(Environment& environment) const;

 private:
  ProgressServer(std::string token_file, std::unique_ptr<HttpServer> server);

  std::string token_file_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace lockstep
