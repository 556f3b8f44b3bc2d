// Journal: what happened, in order, for tests that wait for it.
// Threads: safe from all threads.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace lockstep::control {

// Far longer than anything here takes: a wait that reaches this has failed.
inline constexpr std::chrono::seconds kPatience{60};

class Journal {
 public:
  using Lines = std::vector<std::string>;

  void write(std::string line) {
    {
      const std::lock_guard lock(mutex_);
      lines_.push_back(std::move(line));
    }
    changed_.notify_all();
  }

  [[nodiscard]] Lines lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

  // False if that did not happen in time.
  bool wait_until(const std::function<bool(const Lines&)>& is_true) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return is_true(lines_); });
  }
  bool wait_for(const std::string& line) const {
    return wait_until([&](const Lines& lines) { return std::find(lines.begin(), lines.end(), line) != lines.end(); });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Lines lines_;
};

}  // namespace lockstep::control
