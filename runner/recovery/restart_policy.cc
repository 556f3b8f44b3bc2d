#include "runner/recovery/restart_policy.h"

#include "runner/contract/exit_code.h"

namespace lockstep {

EndVerdict judge_end(const BadEnd& end) {
  if (end.is_configuration_changed) {
    return {Consequence::kSuspendJob, true, false, "the job is suspended, and goes on when its spec has changed"};
  }
  switch (static_cast<ExitCode>(end.code)) {
    case ExitCode::kNotFinite:
      return {Consequence::kEndJob, true, false, "the same steps would lead to the same numbers again"};
    case ExitCode::kUsage:
    case ExitCode::kData:
      if (end.after_first_commit) return {Consequence::kRestart, true, false, "the same input has worked before"};
      return {Consequence::kEndJob, true, false,
              "before the first step an end with this code is never retried: a new start would end the same way"};
    case ExitCode::kPeerLost:
      return {Consequence::kRestart, false, false, "it lost its peers, which is not its fault"};
    case ExitCode::kInterrupted:
    case ExitCode::kTerminated:
      return {Consequence::kRestart, false, false, "it was told to stop by somebody else"};
    case ExitCode::kDeviceFault:
      return {Consequence::kRestart, true, true, "its device is at fault"};
    default:
      return {};
  }
}

}  // namespace lockstep
