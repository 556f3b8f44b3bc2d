#include "runner/loop/start_table.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "runner/optim/lr_schedule.h"

namespace lockstep {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

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

void add_ranks(Rows& rows, const StartFacts& f) {
  const World& world = f.group.world;
  rows.emplace_back("ranks", std::to_string(world.world_size) + " (" + std::to_string(world.nnodes) + " node" +
                                 (world.nnodes == 1 ? "" : "s") + ", from " + to_string(world.source) + ")");
  rows.emplace_back("device", f.group.device.str() + ", " + std::to_string(f.threads) + " thread" +
                                  (f.threads == 1 ? "" : "s") + " per rank");
  rows.emplace_back("backend", f.solo ? "none (one rank)" : to_string(f.group.backend));
}

void add_batch(Rows& rows, const StartFacts& f) {
  const int world_size = f.group.world.world_size;
  const int64_t accumulation = accumulation_steps(f.batch, world_size);
  rows.emplace_back("batch", std::to_string(f.batch.global_batch) + " in all = " + std::to_string(world_size) +
                                 (world_size == 1 ? " rank x " : " ranks x ") + std::to_string(accumulation) +
                                 " micro-batch" + (accumulation == 1 ? "" : "es") + " of at most " +
                                 std::to_string(std::min(f.batch.micro_batch_max,
                                                         (f.batch.global_batch + world_size - 1) / world_size)) +
                                 " (--batch_scope " + flag(f.config, "batch_scope") + ")");
  rows.emplace_back("steps", std::to_string(f.total_steps) + " = " + std::to_string(f.config.training.num_epochs) +
                                 (f.config.training.num_epochs == 1 ? " epoch x " : " epochs x ") +
                                 std::to_string(f.steps_per_epoch) +
                                 (f.config.training.max_steps > 0 ? ", at most --max_steps" : ""));
}

void add_optimizer(Rows& rows, const StartFacts& f) {
  const TrainingOptions& t = f.config.training;
  const double lr = scaled_lr(t.lr, t.lr_scaling, f.batch.declared_world_size);
  std::string text = number(lr) + ", " + flag(f.config, "lr_schedule");
  if (t.lr_scaling != LrScaling::kNone) {
    text += " (--lr " + number(t.lr) + " scaled " + flag(f.config, "lr_scaling") + " for " +
            std::to_string(f.batch.declared_world_size) + " ranks)";
  }
  if (t.warmup_steps > 0) text += ", warm-up " + std::to_string(t.warmup_steps) + " steps";
  rows.emplace_back("learning rate", text);
  rows.emplace_back("optimizer",
                    std::string(t.optimizer == OptimizerKind::kAdamw ? "AdamW" : "Adam") + ", betas " +
                        number(t.adam_beta1) + " " + number(t.adam_beta2) + ", eps " + number(t.adam_eps) +
                        ", weight decay " + number(t.weight_decay) +
                        (t.clip_grad_norm > 0 ? ", gradients clipped at " + number(t.clip_grad_norm) : ""));
  if (!t.ema_decays.empty()) rows.emplace_back("EMA", flag(f.config, "ema_decay"));
  rows.emplace_back("precision", std::string(to_string(f.precision.precision)) +
                                     (f.group.device.is_cpu() ? " (--use_amp does nothing on the CPU)" : ""));
}

// Every flag's value, those that were given first; wrapped for a terminal.
void add_flags(Rows& rows, const RunConfig& config) {
  constexpr size_t kWidth = 96;
  for (const bool given : {true, false}) {
    std::string label = given ? "flags given" : "flags by default";
    std::string line;
    for (const FlagValue& f : config.flags) {
      if (f.given != given || f.value.empty()) continue;
      const std::string word = f.name + "=" + f.value;
      if (!line.empty() && line.size() + word.size() > kWidth)
        rows.emplace_back(std::exchange(label, ""), std::exchange(line, ""));
      line += (line.empty() ? "" : " ") + word;
    }
    if (!line.empty()) rows.emplace_back(label, line);
  }
}

}  // namespace

Rows start_table_rows(const StartFacts& f) {
  Rows rows;
  rows.emplace_back("workload", f.config.workload);
  for (const auto& row : f.workload.describe()) rows.push_back(row);
  add_ranks(rows, f);
  add_batch(rows, f);
  add_optimizer(rows, f);
  const int64_t threads = f.config.training.num_workers;
  rows.emplace_back("batches", threads == 0 ? "made in each step (--num_workers 0)"
                                            : "made ahead by " + std::to_string(threads) + " thread" +
                                                  (threads == 1 ? "" : "s") + " per rank");
  rows.emplace_back("NCCL variables", f.nccl_variables.empty() ? "none set" : f.nccl_variables);
  rows.emplace_back("seed", std::to_string(f.config.training.seed));
  rows.emplace_back("state", f.origin);
  rows.emplace_back("output", f.folder);
  for (const std::string& note : f.precision.notes) rows.emplace_back("note", note);
  for (const std::string& note : f.config.notes) rows.emplace_back("note", note);
  add_flags(rows, f.config);
  return rows;
}

}  // namespace lockstep
