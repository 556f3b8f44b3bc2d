// ControlClient: sends requests to the agents of a run through the sockets in its folder (agent/control_socket.h).
// Threads: one. Blocks.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/line_channel.h"
#include "runner/base/result.h"

namespace lockstep {

class ControlClient {
 public:
  // Connects to the agent of `node`. kNotFound, kGone: no agent is listening.
  static Result<ControlClient> connect(const std::string& folder, int node);

  // Sends the request and returns the answer. kInvalid: the agent's error; kGone: it has ended; kRetry: it did not
  // answer in time.
  Result<Json> ask(const Json& request, std::chrono::milliseconds timeout = std::chrono::seconds(10));

 private:
  explicit ControlClient(int fd) : channel_(std::make_unique<LineChannel>(fd)) {}

  std::unique_ptr<LineChannel> channel_;
};

// The folder of the run that was started last: `where` or one of its subfolders. kNotFound: there is no run.
Result<std::string> find_run_folder(const std::string& where);

}  // namespace lockstep
