// ProgressReader: reads /status of pod 0's agent of every running job, now and then, and keeps the newest answer.
//
// Reconcilers call follow() each time they look at a job, and newest() for what is known. A job that is new, or whose
// pod 0 was replaced or became ready, is asked at once, and then periodically: with jitter, so that a thousand jobs are
// not asked together, and more often while the job is not known to train, so that its first step shows soon, unless its
// answers repeat themselves. An agent that does not answer costs its thread kAgentTimeout at most; its period doubles
// each time, and agents that answer come first, so that a namespace whose network is closed to the operator does not
// hold up the others.
//
// Threads: safe from all threads; `threads` of its own, from the constructor to the destructor. `on_report` runs on
// them, for an answer that says anything new; others only count as read.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "operator/api/object_meta.h"
#include "operator/train/run_report.h"
#include "runner/base/log.h"
#include "runner/base/result.h"

namespace lockstep::train {

inline constexpr std::chrono::seconds kReadEvery{10};
inline constexpr std::chrono::seconds kReadEveryWhileStarting{2};
inline constexpr std::chrono::seconds kReadEveryMax{300};  // of a job that does not answer
inline constexpr double kReadJitter = 0.2;                 // a period is up to this fraction longer

struct ReadHistory {
  bool trains = false;
  int failures = 0;     // readings in a row without an answer
  int repetitions = 0;  // answers in a row that said nothing new
};
// The time from one reading to the next.
std::chrono::steady_clock::duration read_period(const ReadHistory& history);

class ProgressReader {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    // The body of /status at this address.
    std::function<Result<std::string>(const std::string& ip, int port)> read;
    std::function<void(const api::ObjectKey& job)> on_report;
    std::function<api::UnixSeconds()> wall;                     // the system's clock when it is absent
    std::function<Clock::duration(const ReadHistory&)> period;  // read_period when it is absent
    int threads = 8;
    Logger logger = Logger::silent();
  };
  explicit ProgressReader(Options options);
  ~ProgressReader();
  ProgressReader(const ProgressReader&) = delete;
  ProgressReader& operator=(const ProgressReader&) = delete;

  struct Target {
    std::string job_uid;
    int num_nodes = 0;  // how many agents the job can have
    std::string pod_uid;
    int port = 0;           // spec.trainer.statusPort
    std::string ip;         // empty: pod 0 is not asked, and its last report stays known
    bool is_ready = false;  // pod 0, which it is once its workers train
    bool trains = false;    // it is known to train, and need not be asked so often
    bool operator==(const Target&) const = default;
  };
  void follow(const api::ObjectKey& job, const Target& target);
  void forget(const api::ObjectKey& job);

  // Pod 0's newest report, even if that pod is gone by now.
  [[nodiscard]] std::optional<RunReport> newest(const api::ObjectKey& job) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train
