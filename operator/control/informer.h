// Informer: keeps a Cache equal to what the API server has of one resource, and says which objects changed.
//
// The decisions (list, watch from here, start again, wait) are reflector.h's; this is the thread that carries them out.
// Threads: one of its own, from `start` to `stop_and_join` or the destructor; handlers run on it and must be quick. The
// cache may be read from all threads, also after the end. Stopping ends a watch at once; a list that is under way is
// waited for, as long as the client's `retry_for` and time-outs allow.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "operator/control/cache.h"
#include "operator/control/reflector.h"
#include "operator/kube/client.h"
#include "runner/base/log.h"

namespace lockstep::control {

class Informer {
 public:
  struct Options {
    std::string ns;  // empty: all namespaces
    std::string label_selector;
    Cache::Trim trim;
    Cache::Index index;
    Logger logger = Logger::silent();
    // Called on the informer's thread, for example to say in /readyz why there is no list yet.
    std::function<void(const ReflectorProblem& problem)> on_problem;
    Now now = Clock::now;
    Random random = system_random();
  };
  // `client` outlives the informer.
  Informer(kube::Client& client, kube::Resource resource, Options options);
  ~Informer();
  Informer(const Informer&) = delete;
  Informer& operator=(const Informer&) = delete;

  // Before `start`. Called once for every object of the first list, too.
  void on_change(std::function<void(const Cache::Change&)> handler);
  void start();
  void stop_and_join();

  [[nodiscard]] Cache& cache();
  // Waits until a whole list has arrived, or `timeout`.
  [[nodiscard]] bool wait_until_synced(std::chrono::milliseconds timeout);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::control
