// CoordinatorAnnouncer: tells the agents of a job where its node 0 is, each of them once per address.
//
// Level, not edge: reconcilers say what holds each time they look; what of it was not told yet, or was told of another
// address, is told at once, and again after a while when it fails. News that hold no longer are dropped: a pod or a job
// that is not named any more is forgotten with what it was told. Nobody waits for an agent: whoever calls only takes a
// note, and among those whose turn it is the ones that failed least often go first, so that a thousand pods that answer
// nothing hold up no other job. Threads: safe from all threads; `threads` of its own, from the constructor to the
// destructor, each in one exchange at most.
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

// An agent that was not there is told again after this long, doubling.
inline constexpr std::chrono::milliseconds kTellAgainInitial{200};
inline constexpr std::chrono::milliseconds kTellAgainMax{30'000};
inline constexpr int kTellFailuresQuiet = 5;  // so many in a row are a warning; one per pod

class CoordinatorAnnouncer {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    // POST /coordinator at `ip`. Blocks for a bounded time.
    std::function<Status(const std::string& ip, const std::string& token, const std::string& address)> tell;
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
