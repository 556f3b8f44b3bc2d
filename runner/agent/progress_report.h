// ProgressReport: what a program of the user's says of its own progress, in the words of Kubeflow Trainer's progress
// protocol, which Hugging Face's Trainer speaks (transformers' KubeflowCallback) and lockstep.report() (lockstep.py).
// Pure.
//
//   {"trainerStatus": {"progressPercentage": 42, "estimatedRemainingSeconds": 190, "lastUpdatedTime": "…",
//                      "metrics": [{"name": "loss", "value": "0.4321"}, {"name": "current_step", "value": "84"}, …]}}
//
// Threads: values and pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "runner/base/result.h"
#include "runner/contract/messages.h"

namespace lockstep {

// Longest report, most metrics in it and longest name of one; a longer report is refused, further metrics are dropped.
inline constexpr size_t kProgressReportBytesMax = size_t{64} << 10;
inline constexpr size_t kReportedFiguresMax = 64;
inline constexpr size_t kReportedNameBytesMax = 128;

struct ProgressReport {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  std::optional<int64_t> step;         // "current_step" or "step"
  std::optional<int64_t> total_steps;  // "total_steps" or "total"
  int64_t epoch = 0;                   // "current_epoch" or "epoch": epochs that are complete
  double loss = kUnknown;              // "loss" or "train_loss"
  double lr = kUnknown;                // "learning_rate" or "lr"
  double grad_norm = kUnknown;
  double samples_per_second = kUnknown;  // likewise with "train_" in front
  double eta_seconds = -1.0;
  std::map<std::string, double> others;  // all other metrics that are finite numbers
};

// kInvalid says what was found and what was expected. Metrics whose value is no number are left out: the protocol
// allows any text.
Result<ProgressReport> parse_progress_report(std::string_view body);

// The newer report over what earlier ones said: a figure that it does not name stays, but not the time left.
void update(ProgressReport& known, const ProgressReport& newer);

}  // namespace lockstep
