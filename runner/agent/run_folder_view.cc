#include "runner/agent/run_folder_view.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "runner/agent/run_folder_reader.h"

namespace lockstep {
namespace {

constexpr const char* kNoAnswer = "the run's folder does not answer: is its volume slow, or gone?";

RunFolderView::Calls calls_of(const std::string& folder) {
  const auto reader = std::make_shared<RunFolderReader>(folder);
  return {.answer = [reader](const std::string& path) { return reader->answer(path); },
          .append_recovery = [reader](const std::string& line) { return reader->append_recovery(line); }};
}

HttpAnswer not_now(const std::string& sentence) { return {503, kTextType, sentence + "\n"}; }

}  // namespace

struct RunFolderView::Shared {
  explicit Shared(Calls given) : calls(std::move(given)) {}

  const Calls calls;
  std::mutex mutex;
  std::condition_variable changed;
  // State below is protected by mutex.
  bool is_stopped = false;
  std::optional<std::string> asked;  // the requested path, until its answer was fetched
  std::optional<HttpAnswer> answer;
  std::deque<std::string> lines;  // to be written
  bool is_failing = false;        // an error was reported and no line has been written since
  std::string problem;

  // The thread's function.
  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return is_stopped || !lines.empty() || (asked && !answer); });
      if (is_stopped) return;
      lines.empty() ? answer_next(lock) : write_next(lock);
    }
  }

  void answer_next(std::unique_lock<std::mutex>& lock) {
    const std::string path = *asked;
    lock.unlock();
    HttpAnswer found = calls.answer(path);
    lock.lock();
    answer = std::move(found);
    changed.notify_all();
  }

  void write_next(std::unique_lock<std::mutex>& lock) {
    const std::string line = std::move(lines.front());
    lines.pop_front();
    lock.unlock();
    const Status written = calls.append_recovery(line);
    lock.lock();
    if (!written.ok() && !is_failing) problem = written.error().message;
    is_failing = !written.ok();
  }
};

RunFolderView::RunFolderView(Calls calls, std::chrono::milliseconds patience)
    : shared_(std::make_shared<Shared>(std::move(calls))), patience_(patience) {
  std::thread([shared = shared_] { shared->work(); }).detach();
}

RunFolderView::RunFolderView(const std::string& folder) : RunFolderView(calls_of(folder)) {}

RunFolderView::~RunFolderView() {
  const std::lock_guard lock(shared_->mutex);
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
  std::unique_lock lock(shared_->mutex);
  // The volume is still busy with an earlier request, whose caller did not wait any longer. Fail at once.
  if (shared_->asked && !shared_->answer) return not_now(kNoAnswer);
  shared_->answer.reset();
  shared_->asked = path;
  shared_->changed.notify_all();
  if (!shared_->changed.wait_for(lock, patience_, [&] { return shared_->answer.has_value(); })) {
    return not_now(kNoAnswer);
  }
  HttpAnswer found = std::move(*shared_->answer);
  shared_->asked.reset();
  shared_->answer.reset();
  window_bytes_ += found.body.size();
  return found;
}

void RunFolderView::append_recovery(std::string line) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->lines.size() == kUnwrittenLinesMax) shared_->lines.pop_front();
  shared_->lines.push_back(std::move(line));
  shared_->changed.notify_all();
}

std::string RunFolderView::take_problem() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->problem, "");
}

}  // namespace lockstep
