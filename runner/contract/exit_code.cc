#include "runner/contract/exit_code.h"

#include <sys/wait.h>

#include <cstring>

namespace lockstep {

bool is_stop(int code) { return code == code_of(ExitCode::kInterrupted) || code == code_of(ExitCode::kTerminated); }

const char* stop_words(int code) {
  return code == code_of(ExitCode::kTerminated) ? "stopped by SIGTERM" : "stopped by Ctrl-C";
}

std::string exit_reason(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::kDone:
      return "Done";
    case ExitCode::kCrash:
      return "Crash";
    case ExitCode::kUsage:
      return "InvalidUsage";
    case ExitCode::kData:
      return "DataUnreadable";
    case ExitCode::kCheckpoint:
      return "CheckpointFailed";
    case ExitCode::kNotFinite:
      return "NotFinite";
    case ExitCode::kPeerLost:
      return "PeerLost";
    case ExitCode::kTimeout:
      return "TimedOut";
    case ExitCode::kDeviceFault:
      return "DeviceFault";
    case ExitCode::kOutOfMemory:
      return "OutOfMemory";
    case ExitCode::kInterrupted:
      return "Interrupted";
    case ExitCode::kTerminated:
      return "Terminated";
  }
  const char* signal_name = code > kSignalCodes ? sigabbrev_np(code - kSignalCodes) : nullptr;
  return signal_name != nullptr ? "Signal" + std::string(signal_name) : "Crash";
}

std::string termination_reason(int code, std::string_view message) {
  const bool is_refusal = code == code_of(ExitCode::kUsage);
  if (is_refusal && message.find(kConfigurationChanged) != std::string_view::npos) {
    return std::string(kConfigurationChanged);
  }
  return exit_reason(code);
}

int exit_code_of_wait_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? kSignalCodes + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

int root_cause(const std::vector<int>& codes_in_order_of_time) {
  constexpr int kPeerLost = code_of(ExitCode::kPeerLost);
  int cause = 0;
  for (const int code : codes_in_order_of_time) {
    if (code != 0 && code != kPeerLost && !is_stop(code)) return code;
    if (code == kPeerLost || cause == 0) cause = code;
  }
  return cause;
}

Failure failure_of(const Error& error, ExitCode otherwise) {
  const bool is_usage = error.code == ErrorCode::kInvalid || error.code == ErrorCode::kNotFound;
  return {is_usage ? ExitCode::kUsage : otherwise, error.message};
}

ExitCode exit_code_of_file_error(const Error& error) {
  const bool is_usage =
      error.code == ErrorCode::kInvalid || error.code == ErrorCode::kNotFound || error.code == ErrorCode::kConflict;
  return is_usage ? ExitCode::kUsage : ExitCode::kCheckpoint;
}

}  // namespace lockstep
