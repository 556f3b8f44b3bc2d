// DueQueue: keys that get a turn each, at their due times, and the wait of the threads that serve them. Of the keys
// that are due, those of the lowest level come first. Callers put keys whose last turn failed on a higher level, so
// that they do not delay the others.
//
// Threads: none of its own. Its owner's mutex is held in every call.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "runner/base/mutex.h"

namespace lockstep::train {

template <typename Key, size_t kLevels>
class DueQueue {
 public:
  using Clock = std::chrono::steady_clock;

  // Replaces the key's earlier turn.
  void set(const Key& key, size_t level, Clock::time_point due) {
    erase(key);
    levels_[level].emplace(due, key);
    turns_[key] = {level, due};
    (somebody_waits_for_due_ ? due_changed_ : changed_).notify_one();
  }

  void erase(const Key& key) {
    const auto turn = turns_.find(key);
    if (turn == turns_.end()) return;
    const auto& [level, due] = turn->second;
    levels_[level].erase({due, key});
    turns_.erase(turn);
  }

  // Waits for the next turn and takes its key out. nullopt: shut_down() was called.
  std::optional<Key> wait_for_turn(MutexLock& lock) {
    while (!is_shut_down_) {
      if (std::optional<Key> key = pop()) {
        changed_.notify_one();  // another thread waits until the next key is due
        return key;
      }
      if (const std::optional<Clock::time_point> due = next_due(); due && !somebody_waits_for_due_) {
        somebody_waits_for_due_ = true;
        due_changed_.wait_until(lock, *due);
        somebody_waits_for_due_ = false;
      } else {
        changed_.wait(lock);
      }
    }
    return std::nullopt;
  }

  // Ends all waits, those to come included.
  void shut_down() {
    is_shut_down_ = true;
    due_changed_.notify_all();
    changed_.notify_all();
  }

 private:
  std::optional<Key> pop() {
    const Clock::time_point now = Clock::now();
    for (auto& level : levels_) {
      if (level.empty() || level.begin()->first > now) continue;
      Key key = level.extract(level.begin()).value().second;
      turns_.erase(key);
      return key;
    }
    return std::nullopt;
  }

  std::optional<Clock::time_point> next_due() const {
    std::optional<Clock::time_point> next;
    for (const auto& level : levels_) {
      if (!level.empty() && (!next || level.begin()->first < *next)) next = level.begin()->first;
    }
    return next;
  }

  std::array<std::set<std::pair<Clock::time_point, Key>>, kLevels> levels_;
  std::map<Key, std::pair<size_t, Clock::time_point>> turns_;  // of the keys in levels_: level and due time
  // One thread waits until the next key is due, the others until they are needed.
  ConditionVariable due_changed_, changed_;
  bool somebody_waits_for_due_ = false;
  bool is_shut_down_ = false;
};

}  // namespace lockstep::train
