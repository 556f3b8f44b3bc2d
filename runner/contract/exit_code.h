// Exit codes of agent and worker: a contract with the operator's failure policy. Which of them end a job says
// recovery/restart_policy.h. Pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

// A new code also needs its reason (exit_code.cc), its rule (recovery/restart_policy.cc), its advice
// (operator/diagnose/ending.cc), and its rows in README.md and docs/failure-handling.md.
enum class ExitCode : int {
  kDone = 0,
  kCrash = 1,          // a fault of the program itself
  kUsage = 2,          // usage, configuration, a checkpoint of another run or model
  kData = 3,           // data missing or unreadable
  kCheckpoint = 4,     // checkpoint unreadable or volume not writable
  kNotFinite = 5,      // loss or gradient not finite beyond --max_skipped_steps
  kPeerLost = 10,      // peer lost, group could not be re-formed
  kTimeout = 11,       // collective or step timed out
  kDeviceFault = 12,   // CUDA error, ECC
  kOutOfMemory = 13,   // device, host, or killed by the kernel for memory
  kInterrupted = 130,  // Ctrl-C
  kTerminated = 143,   // SIGTERM
};

constexpr int code_of(ExitCode code) { return static_cast<int>(code); }

inline constexpr int kSignalCodes = 128;  // a signal's exit code is this and its number

// True for 130 and 143: the process was asked to stop.
bool is_stop(int code);
// Such a code in words: "stopped by SIGTERM", "stopped by Ctrl-C".
const char* stop_words(int code);

// CamelCase reason of a code ("PeerLost"); "Crash" for what the table does not name, "Signal<NAME>" for 128+n
// ("SignalKILL").
std::string exit_reason(int code);

// 128 + n for a signal, else the code, from a waitpid status.
int exit_code_of_wait_status(int wait_status);

// The reason of a run that was refused (kUsage) because the flags of its TrainJob are not those of its checkpoint; such
// a message begins with it.
inline constexpr std::string_view kConfigurationChanged = "ConfigurationChanged";
// What the termination message gives as the reason: the word above where `message` has it, else exit_reason(code).
std::string termination_reason(int code, std::string_view message);

// The end of a whole run, from its workers' ends in the order of time: the first code other than 0, 10, 130, 143;
// else 10; else 130 or 143 (the first of them); else 0.
int root_cause(const std::vector<int>& codes_in_order_of_time);

// How a worker or the agent ends and why: becomes the exit code, the last log line and the termination message.
struct Failure {
  ExitCode code = ExitCode::kUsage;
  std::string message;  // what, what was found, what was expected, what to do
};

inline Failure usage_failure(std::string message) { return {ExitCode::kUsage, std::move(message)}; }
inline Failure data_failure(std::string message) { return {ExitCode::kData, std::move(message)}; }
// kUsage for an error that the user can correct by changing a flag or a file, `otherwise` for others.
Failure failure_of(const Error& error, ExitCode otherwise);
// For an error about a checkpoint or another file: kUsage when the user has to change the command, else kCheckpoint.
ExitCode exit_code_of_file_error(const Error& error);

}  // namespace lockstep
