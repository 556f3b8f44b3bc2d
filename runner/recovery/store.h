// KeyValueStore: the store of one generation's process group, kept by the agent. Pure.
//
// Role: answers the workers' store requests with the semantics of c10d's stores. get and wait are answered when the
// keys are there or their time is up; everything else at once. A new generation starts empty; requests of another
// generation are refused.
// Threads: none; one owner. Time is an argument; the caller calls expire() when next_deadline() is reached.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runner/contract/messages.h"

namespace lockstep {

struct StoreAnswer {
  int client = 0;  // whose request it was
  StoreReply reply;
};

class KeyValueStore {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Forgets all keys; requests that wait are answered as stale.
  std::vector<StoreAnswer> begin_generation(uint64_t generation);

  // `client` is the caller's name for who asked. A set or add may answer requests of others that waited.
  std::vector<StoreAnswer> apply(int client, const StoreRequest& request, TimePoint now);

  // Answers the waiting requests whose time is up.
  std::vector<StoreAnswer> expire(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  // The client is gone: its waiting requests are dropped.
  void forget_client(int client);

 private:
  struct Waiting {
    int client = 0;
    StoreRequest request;
    TimePoint deadline;
  };

  [[nodiscard]] bool has_all(const std::vector<std::string>& keys) const;
  [[nodiscard]] StoreReply reply_to_present(const StoreRequest& request) const;
  StoreReply compare_set(const StoreRequest& request);
  StoreReply add(const StoreRequest& request);
  StoreReply execute(const StoreRequest& request);
  void answer_waiting(std::vector<StoreAnswer>& answers);

  uint64_t generation_ = 0;
  std::map<std::string, std::string> values_;
  std::vector<Waiting> waiting_;
};

}  // namespace lockstep
