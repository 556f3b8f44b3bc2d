#include "runner/contract/exit_code.h"

#include <sys/wait.h>

#include <cstring>
#include <utility>

namespace lockstep {
namespace {

constexpr std::pair<ExitCode, const char*> kReasons[] = {
    {ExitCode::kDone, "Done"},
    {ExitCode::kCrash, "Crash"},
    {ExitCode::kUsage, "InvalidUsage"},
    {ExitCode::kData, "DataUnreadable"},
    {ExitCode::kCheckpoint, "CheckpointFailed"},
    {ExitCode::kNotFinite, "NotFinite"},
    {ExitCode::kPeerLost, "PeerLost"},
    {ExitCode::kTimeout, "TimedOut"},
    {ExitCode::kDeviceFault, "DeviceFault"},
    {ExitCode::kOutOfMemory, "OutOfMemory"},
    {ExitCode::kInterrupted, "Interrupted"},
    {ExitCode::kTerminated, "Terminated"},
};

}  // namespace

bool is_stop(int code) { return code == code_of(ExitCode::kInterrupted) || code == code_of(ExitCode::kTerminated); }

const char* stop_words(int code) {
  return code == code_of(ExitCode::kTerminated) ? "stopped by SIGTERM" : "stopped by Ctrl-C";
}

std::string exit_reason(int code) {
  for (const auto& [known, reason] : kReasons) {
    if (code == code_of(known)) return reason;
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
