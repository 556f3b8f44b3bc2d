// CoordinatorAnnouncer: sends the agents of a job the address of its pod 0, to each of them once per address.
//
// Reconcilers call announce() in each pass with all running pods of a job. It only records them and does not wait for
// an agent. An agent that does not have this address yet gets it at once, and again with backoff if that fails. A pod
// or a job that announce() no longer names is forgotten. Of the agents that are due, those with the fewest failures
// come first, so that a thousand pods that do not answer do not delay other jobs.
//
// Threads: safe from all threads; `threads` of its own, from the constructor to the destructor, each in one exchange at
// most.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "operator/api/object_meta.h"
#include "operator/train/coordinator_news.h"
#include "runner/base/log.h"
#include "runner/base/result.h"

namespace lockstep::train {

// The time after which the address is sent again to an agent that did not answer; it doubles.
inline constexpr std::chrono::milliseconds kResendInitial{200};
inline constexpr std::chrono::milliseconds kResendMax{30'000};
inline constexpr int kFailuresBeforeWarning = 5;  // after so many in a row one warning is logged for the pod

class CoordinatorAnnouncer {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    // POST /coordinator at `ip`. Blocks for a bounded time.
    std::function<Status(const std::string& ip, int port, const std::string& token, const std::string& address)> send;
    int threads = 8;
    Logger logger = Logger::silent();
  };
  explicit CoordinatorAnnouncer(Options options);
  ~CoordinatorAnnouncer();
  CoordinatorAnnouncer(const CoordinatorAnnouncer&) = delete;
  CoordinatorAnnouncer& operator=(const CoordinatorAnnouncer&) = delete;

  void announce(const api::ObjectKey& job, CoordinatorNews news);
  void forget(const api::ObjectKey& job);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train
