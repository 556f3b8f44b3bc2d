#include "runner/loop/start_table.h"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "runner/base/plural.h"
#include "runner/loop/phases.h"
#include "runner/optim/lr_schedule.h"

namespace lockstep {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kStateLabel = "state";

// As Reporter::start_table prints them.
constexpr size_t kRowIndent = 2;
constexpr size_t kColumnGap = 2;

std::string number(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", value);
  return buffer;
}

std::string flag(const RunConfig& config, const std::string& name) {
  for (const FlagValue& f : config.flags) {
    if (f.name == name) return f.value;
  }
  return {};
}

// "cpu, 1 thread per rank, gloo"; no backend where there is one rank
void add_device(Rows& rows, const StartFacts& f) {
  const Assignment& mine = f.group.assignment;
  rows.emplace_back("device", f.group.device.str() + ", " + plural(f.threads, "thread") + " per rank" +
                                  (f.solo ? "" : std::string(", ") + to_string(f.group.backend)));
  rows.emplace_back(
      "ranks", std::to_string(mine.world_size) + " (" + plural(mine.nnodes, "node") + ", from " + f.launched_by + ")");
  if (!f.nccl_variables.empty()) rows.emplace_back("NCCL variables", f.nccl_variables);
}

void add_batch(Rows& rows, const StartFacts& f) {
  const int world_size = f.group.assignment.world_size;
  const int64_t accumulation = accumulation_steps(f.batch, world_size);
  rows.emplace_back("batch", std::to_string(f.batch.global_batch) + " in all = " + std::to_string(world_size) +
                                 (world_size == 1 ? " rank x " : " ranks x ") + std::to_string(accumulation) +
                                 " micro-batch" + (accumulation == 1 ? "" : "es") + " of at most " +
                                 std::to_string(std::min(f.batch.micro_batch_max,
                                                         (f.batch.global_batch + world_size - 1) / world_size)) +
                                 " (--batch_scope " + flag(f.rank.config, "batch_scope") + ")");
  int64_t num_epochs = 0;
  for (const TrainingPhase& phase : f.phases) num_epochs += phase.num_epochs;
  const int64_t steps_of_all_epochs = num_epochs * f.steps_per_epoch;
  const bool is_cut_short = f.total_steps < steps_of_all_epochs;
  rows.emplace_back("steps", (is_cut_short ? std::to_string(f.total_steps) + ", as --max_steps says, of " : "") +
                                 std::to_string(steps_of_all_epochs) + " = " + std::to_string(num_epochs) +
                                 (num_epochs == 1 ? " epoch x " : " epochs x ") + std::to_string(f.steps_per_epoch));
  if (f.phases.size() > 1) rows.emplace_back("phases", describe_phases(f.phases));
}

void add_optimizer(Rows& rows, const StartFacts& f) {
  const TrainingOptions& t = f.rank.config.training;
  std::string text;
  for (const TrainingPhase& phase : f.phases) {
    const double lr =
        scaled_lr(options_in(phase, t).lr, t.lr_scaling, f.batch.declared_world_size, f.batch.global_batch);
    text += (text.empty() ? "" : ", then ") + number(lr);
  }
  text += ", " + flag(f.rank.config, "lr_schedule");
  if (t.lr_scaling != LrScaling::kNone) {
    const bool by_batch = t.lr_scaling == LrScaling::kBatch;
    text += " (" + (f.phases.size() == 1 ? "--lr " + number(t.lr) : "those of the phases") +
            (by_batch ? " times the batch / 256"
                      : " scaled " + flag(f.rank.config, "lr_scaling") + " for " +
                            std::to_string(f.batch.declared_world_size) + " ranks") +
            ")";
  }
  if (t.warmup_epochs > 0) {
    text += ", warm-up " + plural(t.warmup_epochs, "epoch");
  } else if (t.warmup_steps > 0) {
    text += ", warm-up " + std::to_string(t.warmup_steps) + " steps";
  }
  rows.emplace_back("learning rate", text);
  rows.emplace_back("precision",
                    std::string(to_string(f.rank.precision.precision)) +
                        (t.use_amp && f.group.device.is_cpu() ? " (--use_amp does nothing on the CPU)" : ""));
}

// As they may be typed: "--maxlen=50 --nproc=2".
std::string flags_text(const RunConfig& config, FlagSource source) {
  std::string text;
  for (const FlagValue& f : config.flags) {
    if (f.source != source || f.value.empty()) continue;
    text += (text.empty() ? "--" : " --") + f.name + "=" + f.value;
  }
  return text;
}

void add_flags(Rows& rows, const RunConfig& config) {
  const std::string given = flags_text(config, FlagSource::kUser);
  rows.emplace_back("flags given", given.empty() ? "none" : given);
  const std::string of_preset = flags_text(config, FlagSource::kPreset);
  if (!of_preset.empty()) rows.emplace_back("flags of preset", of_preset);
  if (config.training.verbose) {
    rows.emplace_back("other flags", flags_text(config, FlagSource::kDefault));
    return;
  }
  const auto others = std::count_if(config.flags.begin(), config.flags.end(),
                                    [](const FlagValue& f) { return f.source == FlagSource::kDefault; });
  rows.emplace_back("other flags", std::to_string(others) + " by default: in args.txt, or here with --verbose");
}

}  // namespace

Rows wrapped_rows(const Rows& rows, size_t columns) {
  size_t label_width = 0;
  for (const auto& [label, value] : rows) label_width = std::max(label_width, label.size());
  const size_t value_width = columns - std::min(columns / 2, label_width + kRowIndent + kColumnGap);
  Rows narrow;
  for (const auto& [label, value] : rows) {
    std::string_view rest = value;
    std::string first_label = label;
    // People search logs for these and copy them, so they stay on one line: "resumed from /data/run/step-00000160".
    const bool has_path = value.starts_with('/') || value.find(" /") != std::string::npos;
    while (rest.size() > value_width && label != kStateLabel && !has_path) {
      size_t end = rest.rfind(' ', value_width);
      if (end == std::string_view::npos || end == 0) end = rest.find(' ', value_width);
      if (end == std::string_view::npos) break;
      narrow.emplace_back(std::exchange(first_label, ""), rest.substr(0, end));
      rest.remove_prefix(end + 1);
    }
    narrow.emplace_back(first_label, rest);
  }
  return narrow;
}

Rows start_table_rows(const StartFacts& f) {
  Rows rows;
  rows.emplace_back("workload", f.rank.config.workload);
  add_flags(rows, f.rank.config);
  for (const auto& row : f.rank.workload.describe()) rows.push_back(row);
  add_device(rows, f);
  add_batch(rows, f);
  add_optimizer(rows, f);
  rows.emplace_back(kStateLabel, f.origin);
  rows.emplace_back("output", f.folder);
  for (const std::string& note : f.rank.precision.notes) rows.emplace_back("note", note);
  for (const std::string& note : f.rank.config.notes) rows.emplace_back("note", note);
  return wrapped_rows(rows, kTerminalColumns);
}

}  // namespace lockstep
