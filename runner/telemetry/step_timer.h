// StepTimer: throughput over the last steps and an estimate of the remaining time.
// Threads: one thread. Time is an argument. Units: seconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace lockstep {

class StepTimer {
 public:
  static constexpr size_t kWindowSteps = 100;  // enough steps to smooth, few enough to show a change within minutes

  // `now`: any monotonic clock. `seconds`: of the step alone, without evaluations and checkpoints.
  void on_step(double now, double seconds, int64_t samples) {
    if (steps_ == 0) first_began_ = now - seconds;
    ++steps_;
    now_ = now;
    all_seconds_ += seconds;
    add(Entry{seconds, samples});
    if (window_.size() > kWindowSteps) drop_oldest();
  }

  // Over the last kWindowSteps steps; nullopt before the first step.
  [[nodiscard]] std::optional<double> samples_per_second() const {
    if (window_seconds_ <= 0.0) return std::nullopt;
    return static_cast<double>(window_samples_) / window_seconds_;
  }
  [[nodiscard]] std::optional<double> seconds_per_step() const {
    if (window_.empty()) return std::nullopt;
    return window_seconds_ / static_cast<double>(window_.size());
  }

  // The remaining steps at the present rate, multiplied by the ratio of all time so far to the time in steps, to
  // account for evaluations and checkpoints.
  [[nodiscard]] std::optional<double> remaining_seconds(int64_t steps_left) const {
    if (window_.empty() || all_seconds_ <= 0.0) return std::nullopt;
    const double stretch = (now_ - first_began_) / all_seconds_;
    return static_cast<double>(steps_left) * *seconds_per_step() * stretch;
  }

 private:
  struct Entry {
    double seconds;
    int64_t samples;
  };
  void add(Entry entry) {
    window_.push_back(entry);
    window_seconds_ += entry.seconds;
    window_samples_ += entry.samples;
  }
  void drop_oldest() {
    window_seconds_ -= window_.front().seconds;
    window_samples_ -= window_.front().samples;
    window_.pop_front();
  }

  std::deque<Entry> window_;
  double window_seconds_ = 0.0;
  int64_t window_samples_ = 0;
  int64_t steps_ = 0;
  double first_began_ = 0.0;
  double now_ = 0.0;
  double all_seconds_ = 0.0;
};

}  // namespace lockstep
