// The termination message: why a pod ended, in one JSON object that Kubernetes shows (architecture §4).
// Threads: pure, but for write_termination_log.
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
  bool job_ended = false;  // for all nodes: no replacement of this one can do better; shown when true
  // Of node 0: figures_of its status. The operator reads /status now and then, and the last seconds of a run nowhere
  // else. Empty: none.
  OrderedJson figures = OrderedJson::object();
};

// At most kTerminationMessageBytesMax bytes of valid UTF-8; what is too long loses first the last figures, then the
// message's end.
std::string termination_message(const Termination& termination);

// Writes it to `path`; an empty path writes nothing. Best effort: the exit code and the last line on stderr say the
// same.
void write_termination_log(const std::string& path, const Termination& termination);

}  // namespace lockstep
