#include "runner/loop/reporter.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <ctime>

#include "runner/base/clock.h"
#include "runner/checkpoint/writer.h"
#include "runner/loop/device_memory.h"
#include "runner/loop/start_table.h"
#include "runner/telemetry/mfu.h"
#include "runner/telemetry/time_split.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{200};  // the agent draws at most 5 times a second
constexpr std::chrono::seconds kPlainLineInterval{10};

double unix_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char buffer[1024];
  va_list arguments;
  va_start(arguments, pattern);
  const int length = std::vsnprintf(buffer, sizeof buffer, pattern, arguments);
  va_end(arguments);
  return {buffer, std::min(static_cast<size_t>(std::max(length, 0)), sizeof buffer - 1)};
}

// Names at most kNamedMax files: a run may write a file of weights for every evaluation.
std::string list_of_files(const std::vector<std::string>& files) {
  constexpr size_t kNamedMax = 6;
  std::string list;
  for (size_t i = 0; i < std::min(files.size(), kNamedMax); ++i) list += (i == 0 ? "" : ", ") + files[i];
  if (files.size() > kNamedMax) list += ", and " + std::to_string(files.size() - kNamedMax) + " more";
  return list;
}

void print_line(const std::string& line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

}  // namespace

Reporter::Reporter(const Options& options)
    : options_(options), metrics_(options.assignment.rank, options.start_unix_time) {}

void Reporter::say(const std::string& line) {
  if (is_rank_zero()) print_line(line);
}

void Reporter::warn(const std::string& line) { say("warning: " + line); }

void Reporter::use_folder(RunFolder folder) {
  warn_if_any(folder.remark());
  folder_.emplace(std::move(folder));
  for (Line& line : std::exchange(kept_, {}).lines) write(std::move(line));
}

void Reporter::write(Line line) {
  const auto* const step = std::get_if<StepReport>(&line.record);
  const auto* const evaluation = std::get_if<EvaluationRecord>(&line.record);
  if (folder_) {
    if (step != nullptr) return warn_if_any(folder_->record(*step));
    for (const std::string& sentence : folder_->record(*evaluation, line.log_line)) warn_if_any(sentence);
    return;
  }
  if (step != nullptr) kept_.step = step->steps_done();
  if (evaluation != nullptr) kept_.evaluation_step = evaluation->step;
  kept_.lines.push_back(std::move(line));
  if (kept_.lines.size() > KeptLines::kLinesMax) kept_.lines.pop_front();
}

void Reporter::warn_if_any(const std::string& sentence) {
  if (!sentence.empty()) warn(sentence);
}

void Reporter::start_table(const std::vector<std::pair<std::string, std::string>>& rows) {
  size_t width = 0;
  for (const auto& [label, value] : rows) width = std::max(width, label.size());
  for (const auto& [label, value] : rows) {
    say("  " + label + std::string(width - label.size() + 2, ' ') + value);
  }
}

void Reporter::set_plan(const Plan& plan) {
  plan_ = plan;
  metrics_.set_target_steps(plan.total_steps);
  phases_at_progress_ = options_.clock->seconds();
}

void Reporter::set_assignment(const Assignment& assignment) {
  options_.assignment = assignment;
  metrics_.set_rank(assignment.rank);
}

void Reporter::beat(int64_t step, Activity activity) {
  BeatPage& page = *options_.page;
  const int64_t now = monotonic_ns();
  // After an abandoned step the counter goes back; that is not a commit.
  if (step > page.step.load(std::memory_order_relaxed)) page.committed_ns.store(now, std::memory_order_relaxed);
  page.step.store(step, std::memory_order_relaxed);
  page.activity.store(activity, std::memory_order_relaxed);
  page.changed_ns.store(now, std::memory_order_relaxed);
}

void Reporter::send_metrics() {
  last_metrics_ = Clock::now();
  if (options_.agent == nullptr) return;
  metrics_.on_phase_seconds(options_.clock->seconds());
  metrics_.on_memory(memory_figures(options_.device));
  options_.agent->send(Metrics{metrics_.families()});
}

void Reporter::on_step_done(StepFigures done) {
  const auto now = Clock::now();
  timer_.on_step(std::chrono::duration<double>(now - began_).count(), done.seconds, done.samples);
  unlogged_samples_ += done.samples;
  done.unix_time = unix_now();
  metrics_.on_step(done);
  beat(done.step, Activity::kTraining);
  if (now - last_metrics_ >= kMetricsInterval) send_metrics();
  if (std::exchange(has_stepped_, true)) return;
  const double since_start = options_.clock->seconds().total();
  metrics_.on_startup(StartupPart::kFirstStep, since_start);
  say(format("first step done after %.2f s", since_start));
}

void Reporter::on_report(const StepReport& report) {
  const int64_t steps_done = report.steps_done();
  const bool is_new = report.step > reported_step_;  // otherwise the journal holds it again
  if (!is_new && !misses_step(steps_done)) return;
  if (is_new) {
    reported_step_ = report.step;
    last_report_ = report;
  }
  if (is_new && report.skipped) {
    metrics_.on_skipped_step("not_finite");
    warn(format("step %" PRId64 " skipped on all ranks: the gradient is not finite", steps_done));
  }
  const int64_t log_every = std::max<int64_t>(1, options_.config->training.log_every);
  const bool last = steps_done == plan_.total_steps;
  if (steps_done % log_every == 0 || steps_done == 1 || last) {
    StepReport logged = report;
    logged.samples_per_second = timer_.samples_per_second().value_or(0.0);
    logged.remaining_seconds = timer_.remaining_seconds(plan_.total_steps - steps_done);
    logged.flops =
        flops_figures(plan_.flops_per_sample, logged.samples_per_second,
                      device_peak_flops(options_.device, options_.precision), options_.assignment.world_size);
    logged.time = unix_now();
    metrics_.on_log(logged);
    if (misses_step(steps_done)) {
      logged.samples_since = std::exchange(unlogged_samples_, 0);
      write({.record = std::move(logged), .log_line = {}});
    }
  }
  if (is_new) report_progress(report);
}

void Reporter::report_progress(const StepReport& report) {
  if (!is_rank_zero()) return;
  const auto now = Clock::now();
  const int64_t steps_done = report.steps_done();
  const bool last = steps_done == plan_.total_steps;
  const auto interval =
      options_.agent != nullptr ? Clock::duration(kProgressInterval) : Clock::duration(kPlainLineInterval);
  if (!last && last_progress_ != Clock::time_point{} && now - last_progress_ < interval) return;
  last_progress_ = now;

  const PhaseSeconds phases = options_.clock->seconds();
  const double passed = phases.total() - phases_at_progress_.total();
  const double waited = phases[Phase::kDataWait] - phases_at_progress_[Phase::kDataWait];
  phases_at_progress_ = phases;
  const MemoryFigures memory = memory_figures(options_.device);
  const Progress progress{
      .step = steps_done,
      .total_steps = plan_.total_steps,
      .epoch = report.epoch,
      .num_epochs = plan_.num_epochs,
      .loss = report.loss,
      .lr = report.lr,
      .grad_norm = report.grad_norm,
      .samples_per_second = timer_.samples_per_second().value_or(0.0),
      .eta_seconds = timer_.remaining_seconds(plan_.total_steps - steps_done).value_or(-1.0),
      .data_wait_ratio = passed > 0.0 ? waited / passed : 0.0,
      .device_memory_bytes = memory.device ? static_cast<int64_t>(memory.device->reserved_bytes) : -1};
  if (options_.agent != nullptr) {
    options_.agent->send(progress);
  } else {
    print_progress_line(progress);
  }
}

void Reporter::print_progress_line(const Progress& p) {
  say(format("step %" PRId64 "/%" PRId64 "  epoch %" PRId64 "/%" PRId64 "  loss %.4f  lr %.3g  %.0f samples/s  "
             "ETA %.0f s  data wait %.0f %%",
             p.step, p.total_steps, p.epoch + 1, p.num_epochs, p.loss, p.lr, p.samples_per_second,
             std::max(p.eta_seconds, 0.0), 100.0 * p.data_wait_ratio));
}

void Reporter::on_evaluation(const Workload::EvaluationReport& report, Workload& workload) {
  metrics_.on_evaluation(report.metrics);
  if (!is_rank_zero()) return;
  for (const std::string& line : workload.evaluation_lines(report)) say(line);
  if (options_.agent != nullptr) {
    options_.agent->send(Evaluation{.epoch = report.epoch, .metrics = {report.metrics.begin(), report.metrics.end()}});
  }
  write(
      {.record =
           EvaluationRecord{.step = report.step, .epoch = report.epoch, .metrics = report.metrics, .time = unix_now()},
       .log_line = workload.log_line(report)});
}

void Reporter::on_output(const OutputReport& report) {
  if (!report.error) {
    if (folder_) folder_->add_file(report.name);
    return;
  }
  const bool is_taken = report.error->code == ErrorCode::kConflict;
  warn(report.name + " was not written: " + report.error->message +
       (is_taken ? "; stop one of the two runs, or give this one another --train_dir"
                 : "; free space there, or repair the volume"));
}

void Reporter::on_checkpoint(const WriteReport& report, double stage_seconds) {
  if (report.error) {
    metrics_.on_checkpoint_failure(to_string(report.error->code));
    warn("the checkpoint of step " + std::to_string(report.step) + " could not be written: " + report.error->message);
    return;
  }
  metrics_.on_checkpoint({.step = report.step,
                          .stage_seconds = stage_seconds,
                          .write_seconds = report.seconds,
                          .bytes = static_cast<double>(report.written.bytes),
                          .unix_time = unix_now()});
  last_checkpoint_ = report.written.path;
  if (!report.written.moved_aside.empty()) {
    warn("an older checkpoint of step " + std::to_string(report.step) + " was moved to " + report.written.moved_aside);
  }
  warn_if_any(report.written.housekeeping_error);
  if (options_.agent != nullptr) {
    options_.agent->send(CheckpointWritten{.step = report.step, .path = report.written.path});
  }
}

void Reporter::summary_row(const std::string& label, const std::string& value) {
  for (const auto& [first, text] : wrapped_rows({{format("%-8s", label.c_str()), value}}, kTerminalColumns)) {
    say(format("  %-10s", first.c_str()) + text);
  }
}

void Reporter::end_summary(const End& end) {
  if (!is_rank_zero()) return;
  const PhaseSeconds phases = options_.clock->seconds();
  say("");
  say(format("%s at step %" PRId64 " of %" PRId64 " after %.1f s", end.how.c_str(), end.step, plan_.total_steps,
             phases.total()));
  const char* label = "time";
  for (const TimeSplitRow& row : time_split(phases)) {
    if (row.percent < 0.1) continue;
    std::string phase = to_string(row.phase);
    std::replace(phase.begin(), phase.end(), '_', ' ');
    say(format("  %-10s%-17s%8.1f s  %5.1f %%", std::exchange(label, ""), phase.c_str(), row.seconds, row.percent));
  }
  const RunShape shape{.world_size = options_.assignment.world_size,
                       .on_gpu = options_.device.is_cuda(),
                       .precision = options_.precision};
  summary_row("bound by", what_bounded(phases, shape));
  if (last_report_) say(format("  loss      %.4f", last_report_->loss));
  if (std::isfinite(end.best_value)) say(format("  best      %s %.4f", end.best_metric.c_str(), end.best_value));
  if (end.skipped_steps > 0) say(format("  skipped   %" PRId64 " steps, not finite", end.skipped_steps));
  if (folder_) summary_row("files", folder_->path() + ": " + list_of_files(folder_->files()));
  if (!last_checkpoint_.empty()) say("  saved     " + last_checkpoint_);
  if (!end.resume_command.empty()) {
    const bool finished = end.step == plan_.total_steps;
    say("  resume    " + end.resume_command + (finished ? "   (with " + end.needed_to_continue + ")" : ""));
  }
}

}  // namespace lockstep
