// Reporter: everything that a run reports: lines on stdout, messages to the agent, metrics, files in the output folder.
//
// Role: rank 0 prints and writes files; every rank keeps metrics and updates its beat page. With an agent the agent
// draws the progress display; without one rank 0 prints a plain line every kPlainLineInterval.
// Threads: the training thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/contract/messages.h"
#include "runner/link/agent_link.h"
#include "runner/loop/batch_math.h"
#include "runner/loop/device.h"
#include "runner/loop/run_folder.h"
#include "runner/loop/train_step.h"
#include "runner/telemetry/metrics.h"
#include "runner/telemetry/phase_clock.h"
#include "runner/telemetry/step_timer.h"

namespace lockstep {

struct OutputReport;
struct WriteReport;

class Reporter {
 public:
  struct Options {
    const RunConfig* config = nullptr;  // outlives the reporter
    Assignment assignment;
    AgentLink* agent = nullptr;    // outlives the reporter; null without an agent
    PhaseClock* clock = nullptr;   // outlives the reporter
    BeatPage* page = nullptr;      // outlives the reporter
    double start_unix_time = 0.0;  // of the process
    at::Device device = at::Device(at::kCPU);
    Precision precision = Precision::kFp32;
    std::string folder;
  };
  explicit Reporter(const Options& options);

  // For a new generation, in which this process may have another rank.
  void set_assignment(const Assignment& assignment);

  [[nodiscard]] bool is_rank_zero() const { return options_.assignment.rank == 0; }
  RunMetrics& metrics() { return metrics_; }

  // Prints a line, on rank 0 only.
  void say(const std::string& line);
  // Prints "warning: " and the line, on rank 0 only.
  void warn(const std::string& line);

  // Prints the start table. `rows`: label, value.
  void start_table(const std::vector<std::pair<std::string, std::string>>& rows);

  // Rank 0: from now on lines and figures are written into `folder`. It gets the lines that were made while rank 0 had
  // no folder, if it lacks them.
  void use_folder(RunFolder folder);
  // This rank is not rank 0 any more.
  void leave_folder() {
    folder_.reset();
    kept_ = {};
  }
  // Rank 0: true when there is no line of this step (from 1), or of the evaluation of this step: neither in its folder
  // nor, while it has none, kept for it.
  [[nodiscard]] bool misses_step(int64_t step) const {
    return is_rank_zero() && !(folder_ ? folder_->has_step(step) : step <= kept_.step);
  }
  [[nodiscard]] bool misses_evaluation(int64_t step) const {
    return is_rank_zero() && !(folder_ ? folder_->has_evaluation(step) : step <= kept_.evaluation_step);
  }

  struct Plan {
    int64_t total_steps = 0;
    int64_t num_epochs = 1;
    double flops_per_sample = 0.0;
  };
  void set_plan(const Plan& plan);

  // Writes step and activity to the beat page, which the agent polls. Costs a few stores.
  void beat(int64_t step, Activity activity);
  // Every step, on every rank. Sets unix_time itself.
  void on_step_done(StepFigures done);
  // The figures of a step, when they are known. A step that was reported before only gets its line, if that is missing.
  void on_report(const StepReport& report);
  void on_evaluation(const Workload::EvaluationReport& report, Workload& workload);
  // A file of the workload (Workload::outputs) was written, or could not be.
  void on_output(const OutputReport& report);
  void on_checkpoint(const WriteReport& report, double stage_seconds);

  // The end summary, on rank 0.
  struct End {
    std::string how;  // "done", "stopped by SIGTERM", …
    int64_t step = 0;
    std::string best_metric;
    double best_value = 0.0;
    int64_t skipped_steps = 0;
    std::string resume_command;
    std::string needed_to_continue;  // "a higher --num_epochs", where all steps are done
  };
  void end_summary(const End& end);
  // The last figures to the agent, before the process leaves.
  void send_metrics();

 private:
  using Clock = std::chrono::steady_clock;

  // One line of metrics.jsonl, and what belongs to it in the other files.
  struct Line {
    std::variant<StepReport, EvaluationRecord> record;
    std::string log_line;  // of an evaluation
  };
  // The lines that rank 0 could not write because it had no folder, in their order.
  struct KeptLines {
    static constexpr size_t kLinesMax = 65'536;  // some 20 MB; then the oldest is dropped
    std::deque<Line> lines;
    int64_t step = -1;  // newest
    int64_t evaluation_step = -1;
  };

  void write(Line line);  // rank 0: into the folder; without one, keeps it
  void report_progress(const StepReport& report);
  void print_progress_line(const Progress& progress);
  void warn_if_any(const std::string& sentence);                         // nothing for an empty sentence
  void summary_row(const std::string& label, const std::string& value);  // wrapped at words, as the start table

  Options options_;
  Plan plan_;
  RunMetrics metrics_;
  StepTimer timer_;
  std::optional<RunFolder> folder_;
  KeptLines kept_;
  Clock::time_point began_ = Clock::now();
  Clock::time_point last_progress_{};
  Clock::time_point last_metrics_{};
  int64_t reported_step_ = -1;    // newest, 0-based
  int64_t unlogged_samples_ = 0;  // since the last line of metrics.jsonl
  bool has_stepped_ = false;
  PhaseSeconds phases_at_progress_;
  std::optional<StepReport> last_report_;
  std::string last_checkpoint_;
};

}  // namespace lockstep
