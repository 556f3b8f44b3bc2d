// RunMetrics: a worker's Prometheus metrics, set by the training loop and sent to the agent, which serves them.
//
// Role: what the names of contract/metric_names.h mean to a worker. A figure that is not known yet (loss before the
// first log line, MFU on an unknown device) is absent and not reported as 0.
// Threads: every function may be called from any thread. Every series has the label rank; families() sets it to the
// present rank. Units: seconds, bytes, Unix seconds for timestamps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/mutex.h"
#include "runner/contract/metric_families.h"
#include "runner/telemetry/phase_clock.h"
#include "runner/telemetry/step_report.h"

namespace lockstep {

// Every step.
struct StepFigures {
  int64_t step = 0;        // steps done by the run, this one included
  int64_t samples = 0;     // of the global batch
  double epoch = 0.0;      // with fraction
  double seconds = 0.0;    // wall clock of the step
  double unix_time = 0.0;  // when it was done
};

struct MemoryFigures {
  double resident_bytes = 0.0;
  struct Device {
    double allocated_bytes = 0.0;
    double reserved_bytes = 0.0;
    double peak_bytes = 0.0;
    double capacity_bytes = 0.0;
  };
  std::optional<Device> device = std::nullopt;
};

struct CheckpointFigures {
  int64_t step = 0;
  double stage_seconds = 0.0;
  double write_seconds = 0.0;
  double bytes = 0.0;
  double unix_time = 0.0;
};

enum class StartupPart { kProcess, kLoad, kRendezvous, kRestore, kFirstStep };
const char* to_string(StartupPart part);

class RunMetrics {
 public:
  RunMetrics(int rank, double start_unix_time);

  // Sets the value of the label rank from now on.
  void set_rank(int rank);
  void set_target_steps(int64_t steps);
  void on_step(const StepFigures& figures);
  void on_log(const StepReport& report);
  void on_skipped_step(const std::string& reason);  // "not_finite"
  void on_evaluation(const std::vector<std::pair<std::string, double>>& metrics);
  // Cumulative, from PhaseClock::seconds().
  void on_phase_seconds(const PhaseSeconds& seconds);
  void on_memory(const MemoryFigures& figures);
  void on_checkpoint(const CheckpointFigures& figures);
  void on_checkpoint_failure(const std::string& reason);  // an ErrorCode's name
  void on_restore(double seconds);
  void on_startup(StartupPart part, double seconds);
  void on_rendezvous(double seconds);

  // What the agent link's message `Metrics` carries; families without a series are left out.
  [[nodiscard]] std::vector<MetricFamily> families() const;

 private:
  mutable Mutex mutex_;
  MetricFamilies families_ GUARDED_BY(mutex_);
  int rank_ GUARDED_BY(mutex_);
  int64_t target_steps_ GUARDED_BY(mutex_) = 0;
};

// Resident memory of this process in bytes, 0 where /proc cannot be read.
double resident_memory_bytes();

}  // namespace lockstep
