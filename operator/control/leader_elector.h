// LeaderElector: the threads that carry leader.h's decisions out.
//
// One thread decides and keeps the time, another one waits for the API server, so that a leadership that cannot be
// renewed ends on time even while a request hangs. `is_leader` asks the clock itself: it is false from the renew
// deadline on, whether the threads ran or not (SIGSTOP, a paused machine, no CPU). Code that writes as the leader calls
// it before every write; a write that is under way by then is refused by the API server or harmless.
// Callbacks run on the deciding thread and must return within a second or two: nothing is renewed meanwhile.
// `on_stopped` may take its time, for the leadership is over; the lease is released after it. Threads: safe from all
// threads; two of its own, from `start` to `stop_and_join` or the destructor.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "operator/control/leader.h"
#include "operator/kube/client.h"
#include "runner/base/log.h"

namespace lockstep::control {

// CLOCK_BOOTTIME, which also counts the time in which the machine was suspended.
Clock::time_point boot_time_now();
std::chrono::microseconds wall_time_now();

class LeaderElector {
 public:
  struct Options {
    LeaderOptions election;
    std::function<void()> on_started;
    std::function<void(const std::string& why)> on_stopped;
    std::function<void(const std::string& identity)> on_new_leader;  // empty: nobody
    Logger logger = Logger::silent();
    Now now = boot_time_now;
    std::function<std::chrono::microseconds()> wall = wall_time_now;
    Random random = system_random();
  };
  // `client` outlives the elector. Best a client for the elector alone, with a retry_for below the retry period and a
  // request_timeout of half the renew deadline: a longer attempt only delays the next one. Options that `check` refuses
  // are a programmer's error.
  LeaderElector(kube::Client& client, Options options);
  ~LeaderElector();
  LeaderElector(const LeaderElector&) = delete;
  LeaderElector& operator=(const LeaderElector&) = delete;

  void start();
  // Steps down, calls on_stopped when this process led, releases the lease. Waits for the request under way, as long as
  // the client's time-outs allow. Stop what writes first.
  void stop_and_join();

  [[nodiscard]] bool is_leader() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::control
