// faulty-lockstep-worker: lockstep-worker with places at which a test makes it fail (tests/python/jobs.py, inject).
//
// Nothing of this is in the product. The linker (--wrap, tests/tools/CMakeLists.txt) sends the product's calls of a few
// functions through those below, which call the real ones. A test asks for a fault with a file:
// LOCKSTEP_FAULTS/PID.FAULT holds for how many seconds. It is removed when the process comes to the place. The faults:
//   stall_data, stall_compute, stall_device, stall_collective, stall_forming, stall_restoring, stall_transfer,
//   stall_evaluation   the training thread stops there and reacts to nothing
//   stall_write        the writer's thread stops before its next write
//   slow_evaluation    the next evaluation takes that much longer. It shows progress and can be stopped.
//   not_finite         the next step's loss is NaN on this rank
//   disk_full          every write to a file answers ENOSPC as long as the fault's file is there
// Threads: those of the worker.
#include <ATen/core/Tensor.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "runner/base/clock.h"
#include "runner/dist/grad_reducer.h"
#include "runner/dist/process_group.h"
#include "runner/dist/store_handle.h"
#include "runner/link/map_beat_page.h"
#include "runner/loop/evaluator.h"
#include "runner/loop/joint_work.h"
#include "runner/telemetry/phase_clock.h"

// The function that takes the place of the product's function with this symbol, and the product's own.
#define WRAP(symbol) asm("__wrap_" symbol)
#define REAL(symbol) asm("__real_" symbol)

namespace lockstep {

BeatPage* page = nullptr;

std::string file_of(const std::string& fault) {
  const char* const folder = std::getenv("LOCKSTEP_FAULTS");
  return (folder == nullptr ? "" : folder) + ("/" + std::to_string(::getpid())) + "." + fault;
}

bool is_there(const std::string& fault) { return ::access(file_of(fault).c_str(), F_OK) == 0; }

// The seconds of a fault that was asked for and has not happened yet.
std::optional<double> take(const std::string& fault) {
  const std::string path = file_of(fault);
  double seconds = 0.0;
  if (!(std::ifstream(path) >> seconds)) return std::nullopt;
  ::unlink(path.c_str());
  return seconds;
}

// Until `seconds` have passed or `goes_on` is false. A signal does not end it.
template <typename GoesOn>
void pass(double seconds, const GoesOn& goes_on) {
  constexpr int kPieceMilliseconds = 10;
  const int64_t until = monotonic_ns() + static_cast<int64_t>(seconds * 1e9);
  while (monotonic_ns() < until && goes_on()) ::poll(nullptr, 0, kPieceMilliseconds);
}

void stall_here(const std::string& fault) {
  if (const std::optional<double> seconds = take(fault)) pass(*seconds, [] { return true; });
}

bool is_doing(Activity activity) { return page != nullptr && page->activity == activity; }

Result<BeatPage*> real_map(int fd) REAL("_ZN8lockstep13map_beat_pageEi");
Result<BeatPage*> wrap_map(int fd) WRAP("_ZN8lockstep13map_beat_pageEi");
Result<BeatPage*> wrap_map(int fd) {
  Result<BeatPage*> mapped = real_map(fd);
  if (mapped.ok()) page = *mapped;
  return mapped;
}

Phase real_enter(PhaseClock* clock, Phase phase) REAL("_ZN8lockstep10PhaseClock5enterENS_5PhaseE");
Phase wrap_enter(PhaseClock* clock, Phase phase) WRAP("_ZN8lockstep10PhaseClock5enterENS_5PhaseE");
Phase wrap_enter(PhaseClock* clock, Phase phase) {
  const Phase ended = real_enter(clock, phase);
  if (phase == Phase::kDataWait) stall_here("stall_data");
  if (phase == Phase::kForward) stall_here("stall_compute");
  if (phase == Phase::kDevice) stall_here("stall_device");
  if (phase == Phase::kWaiting && is_doing(Activity::kRestoring)) stall_here("stall_restoring");
  return ended;
}

void real_progress(PhaseClock* clock) REAL("_ZN8lockstep10PhaseClock8progressEv");
void wrap_progress(PhaseClock* clock) WRAP("_ZN8lockstep10PhaseClock8progressEv");
void wrap_progress(PhaseClock* clock) {
  real_progress(clock);
  // After a message of a transfer.
  if (clock->phase() == Phase::kWaiting && is_doing(Activity::kRestoring)) stall_here("stall_transfer");
}

using FormedGroup = Result<std::unique_ptr<ProcessGroup>>;
FormedGroup real_form(const StoreHandle& store, const GroupOptions& options)
    REAL("_ZN8lockstep12ProcessGroup4formERKNS_11StoreHandleERKNS_12GroupOptionsE");
FormedGroup wrap_form(const StoreHandle& store, const GroupOptions& options)
    WRAP("_ZN8lockstep12ProcessGroup4formERKNS_11StoreHandleERKNS_12GroupOptionsE");
FormedGroup wrap_form(const StoreHandle& store, const GroupOptions& options) {
  stall_here("stall_forming");
  return real_form(store, options);
}

void real_prepare(GradReducer* reducer, const at::Tensor& loss)
    REAL("_ZN8lockstep11GradReducer7prepareERKN2at6TensorE");
void wrap_prepare(GradReducer* reducer, const at::Tensor& loss)
    WRAP("_ZN8lockstep11GradReducer7prepareERKN2at6TensorE");
void wrap_prepare(GradReducer* reducer, const at::Tensor& loss) {
  real_prepare(reducer, loss);
  if (take("not_finite")) {
    loss.register_hook([](const at::Tensor& grad) { return grad.mul(std::numeric_limits<double>::quiet_NaN()); });
  }
  if (page == nullptr || !is_there("stall_collective")) return;
  // As if it had begun the reduction that its peers wait in.
  const Phase before = page->phase.exchange(Phase::kWaiting);
  stall_here("stall_collective");
  page->phase = before;
}

bool real_goes_on(JointWork* work) REAL("_ZN8lockstep9JointWork7goes_onEv");
bool wrap_goes_on(JointWork* work) WRAP("_ZN8lockstep9JointWork7goes_onEv");
bool wrap_goes_on(JointWork* work) {
  if (is_doing(Activity::kRestoring)) stall_here("stall_restoring");  // a phase is entered
  if (is_doing(Activity::kEvaluating)) {
    if (const std::optional<double> seconds = take("slow_evaluation")) {
      pass(*seconds, [work] { return real_goes_on(work); });
    }
  }
  return real_goes_on(work);
}

EvaluationOutcome real_evaluate(ProcessGroup& group, const EvaluationContext& context)
    REAL("_ZN8lockstep21evaluate_on_all_ranksERNS_12ProcessGroupERKNS_17EvaluationContextE");
EvaluationOutcome wrap_evaluate(ProcessGroup& group, const EvaluationContext& context)
    WRAP("_ZN8lockstep21evaluate_on_all_ranksERNS_12ProcessGroupERKNS_17EvaluationContextE");
EvaluationOutcome wrap_evaluate(ProcessGroup& group, const EvaluationContext& context) {
  stall_here("stall_evaluation");
  return real_evaluate(group, context);
}

ssize_t real_write(int fd, const void* data, size_t bytes) REAL("write");
ssize_t wrap_write(int fd, const void* data, size_t bytes) WRAP("write");
ssize_t wrap_write(int fd, const void* data, size_t bytes) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return real_write(fd, data, bytes);
  if (is_there("disk_full")) {
    errno = ENOSPC;
    return -1;
  }
  // The training thread appends lines; the writer's thread makes files.
  if ((::fcntl(fd, F_GETFL) & O_APPEND) == 0) stall_here("stall_write");
  return real_write(fd, data, bytes);
}

}  // namespace lockstep
