// lockstep-operator: turns TrainJobs into pods. `lockstep-operator try`: creates one and follows it.
#include <csignal>
#include <cstdio>
#include <cstring>

#include "operator/options.h"
#include "operator/program.h"
#include "operator/try_job.h"
#include "runner/base/open_files.h"
#include "runner/contract/exit_code.h"

namespace {

int code_of(const lockstep::Error& error) {
  const bool is_usage = error.code == lockstep::ErrorCode::kInvalid || error.code == lockstep::ErrorCode::kNotFound;
  return static_cast<int>(is_usage ? lockstep::ExitCode::kUsage : lockstep::ExitCode::kCrash);
}

int fail(const lockstep::Error& error) {
  std::fprintf(stderr, "lockstep-operator: %s\n", error.message.c_str());
  return code_of(error);
}

int run_try(const std::vector<std::string>& arguments) {
  using namespace lockstep;
  const Result<std::optional<TryOptions>> options = parse_try_options(arguments);
  if (!options.ok()) return fail(options.error());
  if (!options->has_value()) return 0;
  std::signal(SIGPIPE, SIG_IGN);
  const Status done = try_job(**options, read_environment());
  return done.ok() ? 0 : fail(done.error());
}

}  // namespace

int main(int argc, char** argv) {
  using namespace lockstep;
  raise_open_files_limit();
  if (argc > 1 && std::strcmp(argv[1], "try") == 0) return run_try({argv + 2, argv + argc});
  const Result<std::optional<OperatorOptions>> options = parse_operator_options({argv + 1, argv + argc});
  if (!options.ok()) return fail(options.error());
  if (!options->has_value()) return 0;
  // Before any thread: all of them inherit it, and run() takes the signals one by one.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  const Result<std::unique_ptr<OperatorProgram>> program =
      OperatorProgram::make(**options, read_environment(), Logger::to_stderr((*options)->log_level));
  if (!program.ok()) return fail(program.error());
  return (*program)->run();
}
