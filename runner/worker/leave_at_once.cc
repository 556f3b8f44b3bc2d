#include "runner/worker/leave_at_once.h"

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "runner/dist/fault.h"

namespace lockstep {
namespace {

struct Handler {
  std::function<void(const Failure&)> report;
  std::terminate_handler before = nullptr;
};

// Never destroyed, because std::terminate may be called until the very end of the process.
Handler& handler() {
  static auto* const only = new Handler;
  return *only;
}

void on_terminate() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    const Failure failure = classify_fault(e);
    if (failure.code == ExitCode::kDeviceFault) {
      handler().report(failure);
      leave_at_once(failure.code);
    }
    handler().before();
  } catch (...) {
    handler().before();
  }
  handler().before();
}

}  // namespace

void leave_at_once(ExitCode code) {
  std::fflush(nullptr);
  _exit(static_cast<int>(code));
}

UncaughtDeviceFaults::UncaughtDeviceFaults(std::function<void(const Failure&)> report) {
  handler().report = std::move(report);
  handler().before = std::set_terminate(on_terminate);
}

UncaughtDeviceFaults::~UncaughtDeviceFaults() { std::set_terminate(handler().before); }

}  // namespace lockstep
