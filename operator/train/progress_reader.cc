#include "operator/train/progress_reader.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "operator/train/due_queue.h"
#include "runner/base/mutex.h"

namespace lockstep::train {

ProgressReader::Clock::duration read_period(const ReadHistory& history) {
  const auto doubled = [](std::chrono::seconds period, int times) {
    constexpr int kDoublingsMax = 16;
    return period * (1 << std::min(times, kDoublingsMax));
  };
  const std::chrono::seconds period =
      history.trains ? kReadEvery : std::min(doubled(kReadEveryWhileStarting, history.repetitions), kReadEvery);
  return std::min(doubled(period, history.failures), kReadEveryMax);
}

namespace {

// Takes its time of reading from `before` where nothing else differs: then the two are equal.
bool says_anything_new(const RunReport& report, std::optional<RunReport>& before) {
  if (!before) return true;
  before->read_at = report.read_at;
  return report != *before;
}

}  // namespace

struct ProgressReader::Impl {
  struct Job {
    Target target;
    std::optional<RunReport> newest;
    bool is_read = false;    // by a thread, now
    bool is_warned = false;  // of an answer that cannot be read; until one can
    int failures = 0;
    int repetitions = 0;
  };

  explicit Impl(Options given) : options(std::move(given)) {
    if (!options.wall) options.wall = [] { return static_cast<api::UnixSeconds>(std::time(nullptr)); };
    if (!options.period) options.period = read_period;
  }

  Clock::duration period(const Job& job) REQUIRES(mutex) {
    const Clock::duration period =
        options.period({.trains = job.target.trains, .failures = job.failures, .repetitions = job.repetitions});
    return period + std::chrono::duration_cast<Clock::duration>(period * kReadJitter * draw(random));
  }

  void schedule(const api::ObjectKey& key, const Job& job, Clock::time_point due) REQUIRES(mutex) {
    if (job.target.ip.empty()) return waiting.erase(key);
    waiting.set(key, job.failures == 0 ? 0 : 1, due);
  }

  void work() {
    MutexLock lock(mutex);
    while (const std::optional<api::ObjectKey> key = waiting.wait_for_turn(lock)) {
      Job& job = jobs.at(*key);
      job.is_read = true;
      const Target target = job.target;
      lock.unlock();
      Result<RunReport> report = ask(*key, target);
      lock.lock();
      if (!keep(*key, target, std::move(report)) || !options.on_report) continue;
      lock.unlock();
      options.on_report(*key);
      lock.lock();
    }
  }

  // Returns whether the report says anything new.
  bool keep(const api::ObjectKey& key, const Target& target, Result<RunReport> report) REQUIRES(mutex) {
    const auto at = jobs.find(key);
    if (at == jobs.end()) return false;  // forgotten meanwhile
    Job& job = at->second;
    job.is_read = false;
    // Where the target has changed meanwhile (another pod 0, or pod 0 became ready), it is asked at once.
    const bool is_same = job.target == target;
    job.failures = report.ok() || !is_same ? 0 : job.failures + 1;
    const bool is_news = report.ok() && says_anything_new(*report, job.newest);
    job.repetitions = report.ok() && is_same && !is_news ? job.repetitions + 1 : 0;
    schedule(key, job, is_same ? Clock::now() + period(job) : Clock::now());
    if (!report.ok()) {
      // An agent that does not answer is starting, or has just ended: no warning. One whose answer is too long or is no
      // report will answer so again.
      const bool is_unreadable = report.error().code == ErrorCode::kCorrupt;
      const bool is_first = is_unreadable && !std::exchange(job.is_warned, true);
      const LogFields fields{{"job", api::to_string(key)}, {"error", report.error().message}};
      is_first ? options.logger.warning("the progress of this job cannot be read", fields)
               : options.logger.debug("no progress report", fields);
      return false;
    }
    job.is_warned = false;
    job.newest = std::move(*report);
    return is_news;
  }

  Result<RunReport> ask(const api::ObjectKey& key, const Target& target) const {
    TRY_ASSIGN(const std::string body, options.read(target.ip, target.port));
    TRY_ASSIGN(RunReport report, parse_run_report(body, target.num_nodes));
    TRY(check_job(report, key, target));
    report.pod_uid = target.pod_uid;
    report.read_at = options.wall();
    return report;
  }

  // Pod 0 may have ended a moment ago, and a pod of another job may have its address now. An image of an earlier
  // release says only its job's name: of two jobs of that name with one address it is not known which one answers.
  Status check_job(const RunReport& report, const api::ObjectKey& key, const Target& target) const {
    const auto belongs_to = [&](const std::string& whose, const std::string& expected) {
      return Error{ErrorCode::kConflict,
                   "the agent at " + target.ip + " belongs to " + whose + "; expected " + expected};
    };
    const std::string ours = "job " + api::to_string(key);
    if (!report.job.empty() && report.job != key.name) return belongs_to("job " + report.job, ours);
    if (!report.job_namespace.empty() && report.job_namespace != key.ns) {
      return belongs_to("namespace " + report.job_namespace, ours);
    }
    if (!report.job_uid.empty() && report.job_uid != target.job_uid) {
      return belongs_to("the TrainJob with UID " + report.job_uid, ours + " with UID " + target.job_uid);
    }
    if (!report.job_uid.empty()) return {};
    const MutexLock lock(mutex);
    const bool is_ambiguous = std::any_of(jobs.begin(), jobs.end(), [&](const auto& other) {
      return other.first != key && other.first.name == key.name && other.second.target.ip == target.ip;
    });
    return is_ambiguous ? Status(belongs_to("one of two jobs " + key.name, ours)) : Status();
  }

  Options options;
  mutable Mutex mutex;
  std::map<api::ObjectKey, Job> jobs GUARDED_BY(mutex);
  // Level 1: jobs whose agent did not answer last time. They may block a thread until their time-out.
  DueQueue<api::ObjectKey, 2> waiting GUARDED_BY(mutex);
  std::mt19937_64 random GUARDED_BY(mutex){std::random_device{}()};
  std::uniform_real_distribution<double> draw GUARDED_BY(mutex){0.0, 1.0};

  std::vector<std::thread> threads;
};

ProgressReader::ProgressReader(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {
  for (int i = 0; i < impl_->options.threads; ++i) impl_->threads.emplace_back([this] { impl_->work(); });
}

ProgressReader::~ProgressReader() {
  {
    const MutexLock lock(impl_->mutex);
    impl_->waiting.shut_down();
  }
  for (std::thread& thread : impl_->threads) thread.join();
}

void ProgressReader::follow(const api::ObjectKey& job, const Target& target) {
  const MutexLock lock(impl_->mutex);
  const auto [at, is_new] = impl_->jobs.try_emplace(job);
  Impl::Job& followed = at->second;
  if (!is_new && followed.target == target) return;
  const bool is_other = is_new || followed.target.pod_uid != target.pod_uid || followed.target.ip != target.ip;
  const bool became_ready = target.is_ready && !followed.target.is_ready;
  followed.target = target;
  if (!is_other && !became_ready) return;
  followed.failures = 0;
  followed.repetitions = 0;
  if (!followed.is_read) impl_->schedule(job, followed, Clock::now());
}

void ProgressReader::forget(const api::ObjectKey& job) {
  const MutexLock lock(impl_->mutex);
  const auto at = impl_->jobs.find(job);
  if (at == impl_->jobs.end()) return;
  impl_->waiting.erase(job);
  impl_->jobs.erase(at);
}

std::optional<RunReport> ProgressReader::newest(const api::ObjectKey& job) const {
  const MutexLock lock(impl_->mutex);
  const auto at = impl_->jobs.find(job);
  return at == impl_->jobs.end() ? std::nullopt : at->second.newest;
}

}  // namespace lockstep::train
