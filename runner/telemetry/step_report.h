// StepReport: the figures of one step, the same on every rank, from the device to every log. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/telemetry/mfu.h"

namespace lockstep {

struct StepReport {
  int64_t step = 0;  // 0-based
  int64_t epoch = 0;
  int64_t samples = 0;                                // of the global batch
  double loss = 0.0;                                  // over all ranks, with the regularization
  std::vector<std::pair<std::string, double>> terms;  // of the loss, by name, where there are several
  double grad_norm = 0.0;                             // before clipping
  double lr = 0.0;
  bool skipped = false;              // not finite: no parameter was changed
  std::optional<double> loss_scale;  // fp16: the loss scale of this step; not part of the journal that is sent

  // Of a step that is logged, set then: how fast the run is.
  double samples_per_second = 0.0;  // all ranks together
  int64_t samples_since = 0;        // trained on since the previous line, or since this process began
  std::optional<double> remaining_seconds;
  std::optional<FlopsFigures> flops;
  double time = 0.0;  // Unix seconds

  [[nodiscard]] int64_t steps_done() const { return step + 1; }
};

}  // namespace lockstep
