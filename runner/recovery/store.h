// KeyValueStore: the store of one generation's process group, kept by the agent. Pure.
//
// Role: answers the workers' store requests with the semantics of c10d's stores. get and wait are answered when the
// keys are there or their time is up; everything else at once. A new generation starts empty; requests of another
// generation are refused.
// Threads: none; one owner. Time is an argument; the caller calls expire() when next_deadline() is reached.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/clock.h"
#include "runner/contract/messages.h"

namespace lockstep {

// A worker as the coordinator sees it.
struct StoreClient {
  uint64_t connection = 0;  // of its agent
  int local_rank = 0;
  auto operator<=>(const StoreClient&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy's own 0
};

struct StoreAnswer {
  StoreClient client;  // whose request it was
  StoreReply reply;
};

class KeyValueStore {
 public:
  // Forgets all keys; requests that wait are answered as stale.
  std::vector<StoreAnswer> begin_generation(uint64_t generation);

  // A request that makes a key may also answer requests that wait for it.
  std::vector<StoreAnswer> apply(StoreClient client, const StoreRequest& request, TimePoint now);

  // Answers the waiting requests whose time is up.
  std::vector<StoreAnswer> expire(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  // The connection is gone: the waiting requests of its clients are dropped.
  void forget_connection(uint64_t connection);

 private:
  using WaitingId = std::pair<StoreClient, uint64_t>;  // the client, and a number that rises with every request

  struct Waiting {
    StoreRequest request;
    TimePoint deadline;
    size_t missing = 0;  // the index of the key that it waits for next
  };

  [[nodiscard]] size_t first_missing(const std::vector<std::string>& keys, size_t from) const;
  [[nodiscard]] StoreReply reply_to_present(const StoreRequest& request) const;
  StoreReply compare_set(const StoreRequest& request);
  StoreReply add(const StoreRequest& request);
  StoreReply execute(const StoreRequest& request);
  void wait(StoreClient client, const StoreRequest& request, size_t missing, TimePoint now);
  void answer_waiting_for(const std::string& key, std::vector<StoreAnswer>& answers);
  Waiting take(std::map<WaitingId, Waiting>::iterator at);

  uint64_t generation_ = 0;
  uint64_t last_number_ = 0;
  std::map<std::string, std::string> values_;
  // A waiting request is examined only when the key that it misses arrives, when its time is up, and when its
  // connection is gone. (When a group of W ranks forms, W requests wait for W keys. To examine all requests at each key
  // would take W * W steps.)
  std::map<WaitingId, Waiting> waiting_;
  std::map<std::string, std::set<WaitingId>> by_missing_key_;
  std::set<std::pair<TimePoint, WaitingId>> by_deadline_;
};

}  // namespace lockstep
