#include "runner/agent/run_folder_view.h"

#include <deque>
#include <thread>
#include <utility>

#include "runner/agent/run_folder_reader.h"
#include "runner/base/mutex.h"

namespace lockstep {
namespace {

constexpr const char* kNoAnswer = "the run's folder does not answer: is its volume slow, or gone?";

// The detached thread may outlive the agent, and so owns the file system as well.
struct ReaderOfThread {
  PosixFileSystem fs{PosixFileSystem::Links::kRefused};
  RunFolderReader reader;
  explicit ReaderOfThread(const std::string& folder) : reader(fs, folder) {}
};

RunFolderView::Calls calls_of(const std::string& folder) {
  const auto owned = std::make_shared<ReaderOfThread>(folder);
  return {.answer = [owned](const std::string& path) { return owned->reader.answer(path); },
          .append_recovery = [owned](const std::string& line) { return owned->reader.append_recovery(line); },
          .add_figures = [owned](const StepFigures& figures) { owned->reader.add_figures(figures); }};
}

HttpAnswer not_now(const std::string& sentence) { return {503, kTextType, sentence + "\n"}; }

}  // namespace

struct RunFolderView::Shared {
  explicit Shared(Calls given) : calls(std::move(given)) {}

  const Calls calls;
  Mutex mutex;
  ConditionVariable changed;
  bool is_stopped GUARDED_BY(mutex) = false;
  std::optional<std::string> asked GUARDED_BY(mutex);  // the requested path, until its answer was fetched
  std::optional<HttpAnswer> answer GUARDED_BY(mutex);
  std::deque<std::function<Status()>> unwritten GUARDED_BY(mutex);
  bool is_failing GUARDED_BY(mutex) = false;  // an error was reported and no line has been written since
  std::string problem GUARDED_BY(mutex);

  // The thread's function.
  void work() {
    MutexLock lock(mutex);
    for (;;) {
      changed.wait(lock, [&]() REQUIRES(mutex) { return is_stopped || !unwritten.empty() || (asked && !answer); });
      if (is_stopped) return;
      if (unwritten.empty()) {
        const std::string path = *asked;
        lock.unlock();
        HttpAnswer found = calls.answer(path);
        lock.lock();
        answer = std::move(found);
        changed.notify_all();
      } else {
        const std::function<Status()> write = std::move(unwritten.front());
        unwritten.pop_front();
        lock.unlock();
        const Status written = write();
        lock.lock();
        if (!written.ok() && !is_failing) problem = written.error().message;
        is_failing = !written.ok();
      }
    }
  }
};

RunFolderView::RunFolderView(Calls calls, std::chrono::milliseconds patience)
    : shared_(std::make_shared<Shared>(std::move(calls))), patience_(patience) {
  std::thread([shared = shared_] { shared->work(); }).detach();
}

RunFolderView::RunFolderView(const std::string& folder) : RunFolderView(calls_of(folder)) {}

RunFolderView::~RunFolderView() {
  const MutexLock lock(shared_->mutex);
  shared_->is_stopped = true;
  shared_->changed.notify_all();
}

HttpAnswer RunFolderView::answer(const std::string& path, std::chrono::steady_clock::time_point now) {
  if (now - window_began_ > kHttpRequestTime) {
    window_began_ = now;
    window_bytes_ = 0;
  }
  if (window_bytes_ > kFolderAnswersMax) {
    return not_now("too much was requested in a short time: try again in " + std::to_string(kHttpRequestTime.count()) +
                   " s");
  }
  MutexLock lock(shared_->mutex);
  // The volume is still busy with an earlier request, whose caller did not wait any longer. Fail at once.
  if (shared_->asked && !shared_->answer) return not_now(kNoAnswer);
  shared_->answer.reset();
  shared_->asked = path;
  shared_->changed.notify_all();
  if (!shared_->changed.wait_for(lock, patience_,
                                 [&]() REQUIRES(shared_->mutex) { return shared_->answer.has_value(); })) {
    return not_now(kNoAnswer);
  }
  HttpAnswer found = std::move(*shared_->answer);
  shared_->asked.reset();
  shared_->answer.reset();
  window_bytes_ += found.body.size();
  return found;
}

void RunFolderView::append_recovery(std::string line) {
  queue([&calls = shared_->calls, line = std::move(line)] { return calls.append_recovery(line); });
}

void RunFolderView::add_figures(StepFigures figures) {
  queue([&calls = shared_->calls, figures = std::move(figures)]() -> Status {
    calls.add_figures(figures);
    return {};
  });
}

// `write` is called on the thread, which keeps the calls alive.
void RunFolderView::queue(std::function<Status()> write) {
  const MutexLock lock(shared_->mutex);
  if (shared_->unwritten.size() == kUnwrittenMax) shared_->unwritten.pop_front();
  shared_->unwritten.push_back(std::move(write));
  shared_->changed.notify_all();
}

std::string RunFolderView::new_problem() {
  const MutexLock lock(shared_->mutex);
  return std::exchange(shared_->problem, "");
}

}  // namespace lockstep
