#include "runner/worker/task_process.h"

#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "runner/base/atomic_file.h"
#include "runner/base/file_system.h"
#include "runner/checkpoint/reader.h"
#include "runner/config/task_config.h"
#include "runner/contract/exit_code.h"
#include "runner/dist/fault.h"
#include "runner/loop/device.h"

namespace lockstep {
namespace {

constexpr uint64_t kArgsBytesMax = 1 << 20;

void say(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

Status write_to_stdout(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(STDOUT_FILENO, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return error_of_errno(errno, "write", "standard output");
    at += written;
    bytes -= static_cast<size_t>(written);
  }
  return {};
}

class TaskProcess {
 public:
  TaskProcess(FileSystem& fs, std::vector<std::string> arguments, const Workloads& workloads)
      : fs_(fs),
        arguments_(std::move(arguments)),
        workloads_(workloads),
        workload_(*find_workload(workloads.flags(), arguments_[0])),
        task_(*find_task(&workload_, arguments_[1])) {}

  // nullopt: the task was done.
  std::optional<Failure> run() {
    const Result<RunConfig> given = parse_task_config(arguments_, workloads_.flags());
    if (!given.ok()) return usage_failure(given.error().message);
    const Status read = read_weights(given->task.checkpoint, *given);
    if (!read.ok()) return Failure{exit_code_of_file_error(read.error()), read.error().message};
    Result<RunConfig> config = parse_task_config(arguments_, workloads_.flags(), &trained_);
    if (!config.ok()) return usage_failure(config.error().message);
    if (auto failure = settle(*config)) return failure;
    if (auto failure = check_finite()) return failure;
    for (const std::string& remark : remarks_on_other_flags(*config, trained_)) say(remark);
    for (const std::string& note : config->notes) say(note);
    say("weights: " + weights_path_);

    const World world;
    const Result<at::Device> device = choose_device(config->launch, world, std::nullopt);
    if (!device.ok()) return usage_failure(device.error().message);
    use_device(*device);
    apply_device_settings(config->training, Precision::kFp32, choose_threads(config->launch, world));
    return write_result(*config, *device);
  }

 private:
  Status read_weights(const std::string& path, const RunConfig& given) {
    std::error_code is_missing;  // `path` may be a link; the step number is in the name of the folder that it leads to
    const std::filesystem::path real = std::filesystem::canonical(path, is_missing);
    if (is_missing) {
      return Error{ErrorCode::kNotFound, "--checkpoint " + path + ": " + is_missing.message() +
                                             "; expected a run's folder, a step folder in it, or a file of weights"};
    }
    TRY_ASSIGN(const FileInfo info, fs_.stat(real.string()));
    if (info.kind == FileKind::kDirectory) return read_checkpoint(real.string(), given);
    if (!workload_.flags_of_weight_file) {
      return Error{ErrorCode::kInvalid,
                   "--checkpoint " + path + " is a file; expected a run's folder or a step folder"};
    }
    TRY_ASSIGN(trained_.values, workload_.flags_of_weight_file(fs_, given));
    trained_.where = "the name of " + path;
    TRY_ASSIGN(weights_, load_weights(fs_, real.string()));
    weights_path_ = path;
    return {};
  }

  Status read_checkpoint(const std::string& path, const RunConfig& given) {
    TRY_ASSIGN(ResumeResult found, load_checkpoint(fs_, path));
    for (const PassedOver& passed : found.passed_over) say("passed over " + passed.path + ": " + passed.reason);
    LoadedCheckpoint& checkpoint = *found.checkpoint;
    if (checkpoint.state.workload != workload_.name) {
      return Error{ErrorCode::kInvalid, checkpoint.path + " is a checkpoint of the workload " +
                                            checkpoint.state.workload + ", not of " + workload_.name};
    }
    const Result<std::string> args = read_file(fs_, join_path(parent_path(checkpoint.path), "args.txt"), kArgsBytesMax);
    trained_ = flags_of_checkpoint(workload_, task_, checkpoint.state.config, args.ok() ? *args : "",
                                   "state.json of " + checkpoint.path);
    progress_ = checkpoint.state.progress;
    TRY_ASSIGN(weights_, chosen_weights(checkpoint, given));
    weights_path_ = checkpoint.path;
    return {};
  }

  // The weights to use: the EMA that the task's flags name, else the first EMA, which evaluations use, too; without any
  // EMA the trained weights.
  Result<NamedTensors> chosen_weights(const LoadedCheckpoint& checkpoint, const RunConfig& given) {
    const std::string asked = task_.average ? task_.average(given) : std::string();
    // When there are several EMAs, each is named by its decay, and --ema_decay lists the decays in order.
    const std::string decays = checkpoint.state.config.value("ema_decay", std::string());
    const std::string decay = asked.empty() ? decays.substr(0, decays.find(',')) : asked;
    NamedTensors weights = checkpoint.model;
    if (asked == "0" || (asked.empty() && checkpoint.ema.empty())) return weights;
    const auto average = std::find_if(checkpoint.ema.begin(), checkpoint.ema.end(), [&](const auto& entry) {
      return entry.first == decay || (entry.first.empty() && decays == decay);
    });
    if (average == checkpoint.ema.end()) {
      const std::string known = checkpoint.ema.empty() ? "no moving averages" : "averages of the decays " + decays;
      return Error{ErrorCode::kInvalid, "--ema " + decay + ": " + checkpoint.path + " has " + known +
                                            "; expected one of them, or 0 for the weights that were trained"};
    }
    for (NamedTensor& weight : weights) {
      for (const NamedTensor& averaged : average->second) {
        if (averaged.name == weight.name) weight.tensor = averaged.tensor;
      }
    }
    say("weights: their moving average" + std::string(asked.empty() ? ", as evaluations use it" : "") +
        " (--ema_decay " + decay + ")");
    return weights;
  }

  [[nodiscard]] std::optional<Failure> check_finite() const {
    for (const NamedTensor& weight : weights_) {
      if (weight.tensor.is_floating_point() && !at::isfinite(weight.tensor).all().item<bool>()) {
        return Failure{ExitCode::kCheckpoint, weights_path_ + ": \"" + weight.name +
                                                  "\" holds numbers that are not finite; give an earlier checkpoint"};
      }
    }
    return std::nullopt;
  }

  // As settled_run does for a run.
  std::optional<Failure> settle(RunConfig& config) {
    if (!workload_.settle) return std::nullopt;
    Result<std::optional<WorkloadFlags::Settled>> settled = workload_.settle(fs_, config);
    if (!settled.ok()) return Failure{ExitCode::kData, settled.error().message};
    if (!*settled) return std::nullopt;
    std::vector<std::string> arguments = arguments_;
    arguments.insert(arguments.end(), (*settled)->arguments.begin(), (*settled)->arguments.end());
    if (!(*settled)->remark.empty()) say((*settled)->remark);
    Result<RunConfig> again = parse_task_config(arguments, workloads_.flags(), &trained_);
    if (!again.ok()) return usage_failure(again.error().message);
    config = std::move(*again);
    return std::nullopt;
  }

  std::optional<Failure> write_result(const RunConfig& config, at::Device device) {
    std::optional<Failure> failure;
    const auto run_into = [&](const ByteSink& out) -> Status {
      failure = workloads_.run_task({.config = config,
                                     .weights = weights_,
                                     .weights_path = weights_path_,
                                     .fs = fs_,
                                     .progress = progress_,
                                     .device = device,
                                     .out = out,
                                     .log = say});
      if (failure) return Error{ErrorCode::kCancelled, failure->message};
      return {};
    };
    const Status written =
        config.task.out.empty() ? run_into(write_to_stdout) : write_file_atomically(fs_, config.task.out, run_into);
    if (failure || written.ok()) return failure;
    return Failure{exit_code_of_file_error(written.error()),
                   "--out " + config.task.out + ": " + written.error().message};
  }

  FileSystem& fs_;
  std::vector<std::string> arguments_;
  const Workloads& workloads_;
  const WorkloadFlags& workload_;
  const WorkloadTask& task_;
  TrainedFlags trained_;
  NamedTensors weights_;
  std::string weights_path_;
  Json progress_ = Json::object();
};

}  // namespace

int run_task_process(FileSystem& fs, const std::vector<std::string>& arguments, const Workloads& workloads) {
  std::optional<Failure> failure;
  try {
    if (wants_help(arguments)) {
      const WorkloadFlags* const workload = find_workload(workloads.flags(), arguments[0]);
      std::fputs(task_help(*workload, *find_task(workload, arguments[1])).c_str(), stdout);
      return 0;
    }
    failure = TaskProcess(fs, arguments, workloads).run();
  } catch (const std::exception& e) {
    failure = classify_fault(e);
  } catch (...) {
    failure = Failure{ExitCode::kUsage, "the task of --plugin threw something that is no std::exception"};
  }
  if (!failure) return 0;
  say("error: " + failure->message);
  return static_cast<int>(failure->code);
}

}  // namespace lockstep
