// The termination message: why a pod ended, in one JSON object that Kubernetes shows.
// Threads: pure, except write_termination_log.
#pragma once

#include <cstdint>
#include <string>

#include "runner/base/json.h"

namespace lockstep {

inline constexpr size_t kTerminationMessageBytesMax = 4096;  // Kubernetes cuts what is longer

struct Termination {
  int exit_code = 0;
  std::string message;
  int rank = -1;
  int64_t step = -1;
  uint64_t generation = 0;
  bool job_ended = false;  // the job has ended for all nodes, so this node must not be replaced; left out when false
  // Node 0: figures_of(its status). The operator polls /status only now and then, so the figures of the last seconds
  // reach it only through this message. Empty: none.
  OrderedJson figures = OrderedJson::object();
};

// At most kTerminationMessageBytesMax bytes of valid UTF-8. If it is too long, figures are dropped from the last on,
// then the end of the message.
std::string termination_message(const Termination& termination);

// Writes it to `path`; an empty path writes nothing. Errors are ignored, because the exit code and the last line on
// stderr say the same.
void write_termination_log(const std::string& path, const Termination& termination);

}  // namespace lockstep
