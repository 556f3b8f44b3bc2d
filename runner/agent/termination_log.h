// The termination message: why a pod ended, in one JSON object that Kubernetes shows (architecture §4).
// Threads: pure, but for write_termination_log.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

inline constexpr size_t kTerminationMessageBytesMax = 4096;  // Kubernetes cuts what is longer

struct Termination {
  int exit_code = 0;
  std::string message;
  int rank = -1;
  int64_t step = -1;
  uint64_t generation = 0;
  bool job_ended = false;  // for all nodes: no replacement of this one can do better; shown when true
};

// At most kTerminationMessageBytesMax bytes of valid UTF-8; a message that is too long loses its end.
std::string termination_message(const Termination& termination);

// Writes it to `path`; an empty path writes nothing. Best effort: the exit code and the last line on stderr say the
// same.
void write_termination_log(const std::string& path, const Termination& termination);

}  // namespace lockstep
