#include "operator/train/progress_reader.h"

#include <condition_variable>
#include <ctime>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::train {

struct ProgressReader::Impl {
  struct Job {
    Target target;
    std::optional<RunReport> newest;
    Clock::time_point due;
    bool is_read = false;    // by a thread, now
    bool is_warned = false;  // of an answer that cannot be read; until one can
  };
  using Due = std::pair<Clock::time_point, api::ObjectKey>;

  explicit Impl(Options given) : options(std::move(given)) {
    if (!options.wall) options.wall = [] { return static_cast<api::UnixSeconds>(std::time(nullptr)); };
  }

  Clock::duration period(const Job& job) {
    const Clock::duration period = job.target.trains ? Clock::duration(kReadEvery) : kReadEveryWhileStarting;
    return period + std::chrono::duration_cast<Clock::duration>(period * kReadJitter * draw(random));
  }

  // With the lock held.
  void schedule(const api::ObjectKey& key, Job& job, Clock::time_point due) {
    by_time.erase({job.due, key});
    if (job.target.ip.empty()) return;
    job.due = due;
    by_time.emplace(due, key);
    changed.notify_one();
  }

  void work() {
    std::unique_lock lock(mutex);
    while (!ending) {
      if (by_time.empty()) {
        changed.wait(lock);
        continue;
      }
      const Due first = *by_time.begin();
      if (first.first > Clock::now()) {
        changed.wait_until(lock, first.first);
        continue;
      }
      by_time.erase(by_time.begin());
      read(first.second, lock);
    }
  }

  void read(const api::ObjectKey& key, std::unique_lock<std::mutex>& lock) {
    Job& before = jobs.at(key);
    before.is_read = true;
    const Target target = before.target;
    lock.unlock();
    Result<RunReport> report = ask(target);
    lock.lock();
    const auto at = jobs.find(key);
    if (at == jobs.end()) return;  // forgotten meanwhile
    Job& job = at->second;
    job.is_read = false;
    const bool is_same = job.target.pod_uid == target.pod_uid && job.target.ip == target.ip;
    schedule(key, job, is_same ? Clock::now() + period(job) : Clock::now());
    if (!report.ok()) {
      // Who does not answer is starting, or has just ended. Who answers with too much or with nonsense does so again.
      const bool is_unreadable = report.error().code == ErrorCode::kCorrupt;
      const bool is_news = is_unreadable && !std::exchange(job.is_warned, true);
      const LogFields fields{{"job", api::to_string(key)}, {"error", report.error().message}};
      is_news ? options.logger.warning("the progress of this job cannot be read", fields)
              : options.logger.debug("no progress report", fields);
      return;
    }
    job.is_warned = false;
    job.newest = std::move(*report);
    lock.unlock();
    if (options.on_report) options.on_report(key);
    lock.lock();
  }

  Result<RunReport> ask(const Target& target) const {
    TRY_ASSIGN(const std::string body, options.read(target.ip));
    TRY_ASSIGN(RunReport report, parse_run_report(body));
    report.pod_uid = target.pod_uid;
    report.read_at = options.wall();
    return report;
  }

  Options options;
  mutable std::mutex mutex;
  std::condition_variable changed;
  // State below is protected by mutex.
  bool ending = false;
  std::map<api::ObjectKey, Job> jobs;
  std::set<Due> by_time;
  std::mt19937_64 random{std::random_device{}()};
  std::uniform_real_distribution<double> draw{0.0, 1.0};

  std::vector<std::thread> threads;
};

ProgressReader::ProgressReader(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {
  for (int i = 0; i < impl_->options.threads; ++i) impl_->threads.emplace_back([this] { impl_->work(); });
}

ProgressReader::~ProgressReader() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->changed.notify_all();
  for (std::thread& thread : impl_->threads) thread.join();
}

void ProgressReader::follow(const api::ObjectKey& job, const Target& target) {
  const std::lock_guard lock(impl_->mutex);
  const auto [at, is_new] = impl_->jobs.try_emplace(job);
  Impl::Job& followed = at->second;
  if (!is_new && followed.target == target) return;
  const bool is_other = is_new || followed.target.pod_uid != target.pod_uid || followed.target.ip != target.ip;
  followed.target = target;
  if (is_other && !followed.is_read) impl_->schedule(job, followed, Clock::now());
}

void ProgressReader::forget(const api::ObjectKey& job) {
  const std::lock_guard lock(impl_->mutex);
  const auto at = impl_->jobs.find(job);
  if (at == impl_->jobs.end()) return;
  impl_->by_time.erase({at->second.due, job});
  impl_->jobs.erase(at);
}

std::optional<RunReport> ProgressReader::newest(const api::ObjectKey& job) const {
  const std::lock_guard lock(impl_->mutex);
  const auto at = impl_->jobs.find(job);
  return at == impl_->jobs.end() ? std::nullopt : at->second.newest;
}

}  // namespace lockstep::train
