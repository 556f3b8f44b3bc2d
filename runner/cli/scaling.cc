#include "runner/cli/scaling.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <string_view>

#include "runner/base/json.h"
#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

struct RefusedFlag {
  std::string_view name;
  std::string_view why;
};
constexpr std::string_view kRanksChoose = "--ranks says how many ranks each run has";
constexpr std::string_view kOneMachine = "the bench measures this machine alone";
constexpr std::string_view kNothingToMeasure = "it would leave no training steps to measure";
constexpr RefusedFlag kRefusedFlags[] = {{"nproc", kRanksChoose},      {"multi_gpu", kRanksChoose},
                                         {"local_nodes", kOneMachine}, {"nnodes", kOneMachine},
                                         {"node_rank", kOneMachine},   {"coordinator", kOneMachine},
                                         {"local_rank", kOneMachine},  {"inference_only", kNothingToMeasure},
                                         {"resume", kNothingToMeasure}};

constexpr std::string_view kTrainDir = "train_dir";
constexpr std::array kSetByBench = {"num_epochs",       "max_steps",   "train_dir",   "log_every",   "eval_every",
                                    "checkpoint_every", "tensorboard", "status_port", "max_restarts"};

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

}  // namespace

Result<std::vector<int>> parse_ranks(const std::string& text) {
  std::set<int> ranks;
  std::string_view rest = text;
  bool is_last = false;
  while (!is_last) {
    const size_t comma = rest.find(',');
    const std::string_view word = rest.substr(0, comma);
    is_last = comma == std::string_view::npos;
    if (!is_last) rest.remove_prefix(comma + 1);
    const std::optional<int64_t> number = parse_number(word);
    if (!number || *number < 1 || *number > kScalingRanksMax) {
      return invalid("--ranks: found \"" + std::string(word) + "\" in \"" + text + "\", expected numbers from 1 to " +
                     std::to_string(kScalingRanksMax) + " with commas between them, as 1,2,4");
    }
    ranks.insert(static_cast<int>(*number));
  }
  return std::vector<int>(ranks.begin(), ranks.end());
}

std::vector<int> default_ranks(int gpus, int cores) {
  const int most = std::min(gpus > 0 ? gpus : std::max(1, cores), kScalingRanksMax);
  std::vector<int> ranks;
  for (int r = 1; r <= most; r *= 2) ranks.push_back(r);
  return ranks;
}

Status check_bench_flags(const RunConfig& config) {
  for (const RefusedFlag& flag : kRefusedFlags) {
    if (!is_given(config, flag.name)) continue;
    return invalid("--" + std::string(flag.name) + " cannot be used with bench scaling: " + std::string(flag.why) +
                   "; leave it out");
  }
  return {};
}

std::string flags_without_effect(const RunConfig& config) {
  std::string names;
  for (const char* name : kSetByBench) {
    const std::string given = name == kTrainDir ? config.train_dir_flag : name;
    if (is_given(config, given)) names += (names.empty() ? "--" : ", --") + given;
  }
  return names;
}

std::vector<std::string> arguments_of(const ScalingRun& run, const ScalingOptions& options, const RunWithData& user,
                                      const WorkloadFlags& workload) {
  std::vector<std::string> all = user.arguments;
  all.insert(all.end(), workload.bench_arguments.begin(), workload.bench_arguments.end());
  const auto add = [&all](const std::string& flag, const std::string& value) {
    all.push_back("--" + flag + "=" + value);
  };
  // Leaves out a flag that contradicts the user's, such as --num_epochs where other flags give the epochs.
  const auto add_if_accepted = [&](const std::string& flag, const std::string& value) {
    add(flag, value);
    if (!parse_run_config(all, all_workload_flags()).ok()) all.pop_back();
  };
  const std::string steps = std::to_string(options.warmup_steps + options.steps);
  add("nproc", std::to_string(run.ranks));
  const std::string& train_dir_flag = user.config.train_dir_flag;
  add(train_dir_flag.empty() ? std::string(kTrainDir) : train_dir_flag, run.folder);
  add("max_steps", steps);
  add_if_accepted("num_epochs", steps);  // an epoch has at least one step
  // A line of metrics.jsonl at the end of the warm-up, and one at the last step.
  add("log_every", std::to_string(options.warmup_steps));
  add_if_accepted("eval_every", "0");
  add("checkpoint_every", "0");
  add("tensorboard", "false");
  add("status_port", "0");
  add("max_restarts", "0");  // a run that fails ends the measurement
  if (run.on_cpu) add("device", "cpu");
  if (run.threads) add("threads", std::to_string(*run.threads));
  return all;
}

int threads_per_rank(int cores, const std::vector<int>& ranks) {
  return std::max(1, cores / *std::max_element(ranks.begin(), ranks.end()));
}

ScalingRow scaling_row(int ranks, double samples_per_second, const std::optional<ScalingRow>& first) {
  ScalingRow row{.ranks = ranks, .samples_per_second = samples_per_second};
  if (!first) return row;
  row.speedup = samples_per_second / first->samples_per_second;
  row.efficiency = row.speedup * first->ranks / ranks;
  return row;
}

std::string scaling_heading() {
  return format("%6s  %12s  %9s  %11s\n", "ranks", "samples/s", "speed-up", "efficiency");
}

std::string scaling_line(const ScalingRow& row) {
  const char* const rate_format = row.samples_per_second < 100.0 ? "%.2f" : "%.0f";
  return format("%6d%s %12s  %8.2fx  %9.0f %%\n", row.ranks, row.shares_cores ? "*" : " ",
                format(rate_format, row.samples_per_second).c_str(), row.speedup, 100.0 * row.efficiency);
}

}  // namespace lockstep
