#include "runner/cli/bench_command.h"

#include <fcntl.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp is POSIX

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include "runner/agent/program_command.h"
#include "runner/base/fd.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"
#include "runner/cli/demo_data.h"
#include "runner/cli/own_run.h"
#include "runner/cli/parse_command.h"
#include "runner/cli/run_figures.h"
#include "runner/cli/scaling.h"
#include "runner/config/flag_table.h"
#include "runner/contract/exit_code.h"
#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

constexpr const char* kName = "lockstep bench scaling";
constexpr const char* kUsage =
    "lockstep bench scaling WORKLOAD [flags]  the speed-up by more ranks\n"
    "lockstep bench scaling --help            all about it\n";
constexpr const char* kTmpDir = "TMPDIR";
constexpr size_t kFlagColumns = 20;
constexpr int64_t kStepsMax = 1'000'000;
constexpr size_t kErrorLinesShown = 20;

struct BenchArguments {
  std::string ranks;
  ScalingOptions scaling;
  bool json = false;
};

void declare(CLI::App& app, BenchArguments& arguments) {
  const auto steps = [&app](const std::string& flag, int64_t& value, const std::string& help) {
    app.add_option(flag, value, help)
        ->type_name("N")
        ->check(CLI::Range(int64_t{1}, kStepsMax).description(""))
        ->capture_default_str();
  };
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--ranks", arguments.ranks, "such as 1,2,4; else powers of two up to GPUs or cores")
      ->type_name("LIST");
  steps("--steps", arguments.scaling.steps, "steps of each run that are measured");
  steps("--warmup", arguments.scaling.warmup_steps, "steps before them that are not");
  app.add_flag("--json", arguments.json, "print JSON");
  app.allow_extras();
  app.get_formatter()->column_width(kFlagColumns);
  app.footer(
      "Other flags are those of `lockstep run WORKLOAD`. If none of them names data,\n"
      "that of `lockstep demo WORKLOAD` is used. The global batch is the same for\n"
      "every number of ranks (strong scaling); with --batch_scope per_device each rank\n"
      "keeps its own (weak scaling). On CPUs every rank of every run gets the cores\n"
      "divided by the largest number of ranks, unless --threads is given. The runs\n"
      "write below TMPDIR, and nothing of them is kept.");
}

// A temporary folder below TMPDIR, removed at the end.
class ScratchFolder {
 public:
  // kUnavailable names the folder in which none can be made.
  static Result<std::unique_ptr<ScratchFolder>> make(const Environment& environment) {
    std::string below = variable(environment, kTmpDir);
    if (below.empty()) below = "/tmp";
    std::string pattern = below + "/lockstep-bench-XXXXXX";
    if (::mkdtemp(pattern.data()) != nullptr) return std::make_unique<ScratchFolder>(pattern);
    return Error{ErrorCode::kUnavailable,
                 "cannot make a folder in " + below + ": " + std::strerror(errno) + "; name another one in " + kTmpDir};
  }
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The file that receives a run's output.
Fd output_file(const std::string& path) {
  return Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
}

std::string last_lines(const std::string& path) {
  std::ifstream file(path);
  LastLines lines;
  for (std::string line; std::getline(file, line);) lines.add(line);
  std::string text;
  for (const std::string& line : lines.newest(kErrorLinesShown)) text += line + "\n";
  return text;
}

struct Bench {
  BenchArguments arguments;
  const WorkloadFlags* workload = nullptr;
  RunWithData run;
  Environment environment;
  OwnMachine machine;
  std::optional<int> threads;  // per rank
};

Result<Bench> plan_bench(BenchArguments arguments, const std::vector<std::string>& words,
                         const Environment& environment) {
  const WorkloadList& workloads = all_workload_flags();
  Bench bench{.arguments = std::move(arguments), .environment = environment_of_own_run(environment)};
  const bool names_workload = !words.empty() && !words.front().starts_with("-");
  TRY_ASSIGN(bench.workload, named_workload(names_workload ? words.front() : "", workloads));
  TRY_ASSIGN(bench.run,
             with_demo_data(*bench.workload, {words.begin() + 1, words.end()}, data_folders(environment), workloads));
  TRY(check_bench_flags(bench.run.config));
  const LaunchOptions& launch = bench.run.config.launch;
  bench.machine = inspect_own_machine(bench.environment, launch.device);
  std::vector<int>& ranks = bench.arguments.scaling.ranks;
  ranks = default_ranks(bench.machine.gpus, bench.machine.cores);
  if (!bench.arguments.ranks.empty()) {
    TRY_ASSIGN(ranks, parse_ranks(bench.arguments.ranks));
  }
  if (launch.threads > 0) {
    bench.threads = launch.threads;
  } else if (bench.machine.gpus == 0) {
    bench.threads = threads_per_rank(bench.machine.cores, ranks);
  }
  return bench;
}

// True when the runs train on the CPU. False for --device cuda without a GPU, which the run itself refuses.
bool trains_on_cpu(const Bench& bench) {
  return bench.machine.gpus == 0 && bench.run.config.launch.device != DeviceChoice::kCuda;
}

bool shares_cores(const Bench& bench, int ranks) { return bench.machine.gpus == 0 && ranks > bench.machine.cores; }

bool is_weak(const Bench& bench) { return bench.run.config.training.batch_scope == BatchScope::kPerDevice; }

std::string heading(const Bench& bench) {
  const ScalingOptions& scaling = bench.arguments.scaling;
  std::string text = "Scaling of " + bench.workload->name + " on this machine\n";
  const auto row = [&text](const std::string& label, const std::string& value) {
    text += "  " + label + std::string(8 - label.size(), ' ') + value + "\n";
  };
  const OwnMachine& machine = bench.machine;
  const std::string gpus =
      plural(machine.gpus, "GPU") + (machine.gpu_name.empty() ? "" : " (" + machine.gpu_name + ")");
  row("device", (machine.gpus == 0 ? "CPU" : gpus) + ", " + plural(machine.cores, "core"));
  if (bench.threads) row("", plural(*bench.threads, "thread") + " for each rank");
  row("data", bench.run.data_title);
  const std::string batch = std::to_string(bench.run.config.training.batch_size);
  row("batch", is_weak(bench) ? batch + " of each rank (weak scaling)" : batch + " in all (strong scaling)");
  row("steps", std::to_string(scaling.steps) + " in each run, after " + std::to_string(scaling.warmup_steps) +
                   " that do not count");
  if (shares_cores(bench, scaling.ranks.back())) {
    row("note", "rows with *: more ranks than cores. Ranks share cores there,");
    row("", "so these rows do not show how training scales");
  }
  return text;
}

OrderedJson report(const Bench& bench, const std::vector<ScalingRow>& rows) {
  OrderedJson list = OrderedJson::array();
  for (const ScalingRow& row : rows) {
    list.push_back({{"ranks", row.ranks},
                    {"samples_per_second", row.samples_per_second},
                    {"speedup", row.speedup},
                    {"efficiency", row.efficiency},
                    {"shares_cores", row.shares_cores}});
  }
  const bool on_cpu = bench.machine.gpus == 0;
  return {{"workload", bench.workload->name},
          {"arguments", bench.run.arguments},
          {"device", on_cpu ? "cpu" : "cuda"},
          {"device_name", on_cpu ? "CPU" : bench.machine.gpu_name},
          {"gpus", bench.machine.gpus},
          {"cores", bench.machine.cores},
          {"threads_per_rank", bench.threads ? OrderedJson(*bench.threads) : OrderedJson()},
          {"batch_size", bench.run.config.training.batch_size},
          {"batch_scope", is_weak(bench) ? "per_device" : "total"},
          {"warmup_steps", bench.arguments.scaling.warmup_steps},
          {"steps", bench.arguments.scaling.steps},
          {"rows", list}};
}

// Measures one run: returns its samples per second, or a Failure with its exit code and its last lines.
std::variant<double, Failure> measure(FileSystem& fs, const Bench& bench, int ranks, const std::string& scratch) {
  const ScalingOptions& scaling = bench.arguments.scaling;
  const std::string folder = scratch + "/run-" + std::to_string(ranks);
  const std::string stderr_path = scratch + "/stderr-" + std::to_string(ranks);
  const Fd output = output_file(scratch + "/stdout-" + std::to_string(ranks));
  const Fd errors = output_file(stderr_path);
  const Result<int> code =
      run_to_end({.arguments = arguments_of(
                      {.ranks = ranks, .folder = folder, .on_cpu = trains_on_cpu(bench), .threads = bench.threads},
                      scaling, bench.run, *bench.workload),
                  .environment = bench.environment,
                  .stdout_fd = output.get(),
                  .stderr_fd = errors.get()});
  const std::string which = "the run with " + plural(ranks, "rank");
  if (!code.ok()) return Failure{ExitCode::kCrash, which + ": " + code.error().message};
  if (is_stop(*code)) return Failure{static_cast<ExitCode>(*code), which + " was " + stop_words(*code)};
  if (*code != 0) {
    return Failure{static_cast<ExitCode>(*code),
                   which + " ended with code " + std::to_string(*code) + ":\n" + last_lines(stderr_path)};
  }
  const Result<RunFigures> figures = read_run_figures(fs, folder);
  const Result<double> rate =
      figures.ok() ? samples_per_second_after(*figures, scaling.warmup_steps) : Result<double>(figures.error());
  if (!rate.ok()) return Failure{ExitCode::kCrash, which + " left nothing to measure: " + rate.error().message};
  std::error_code ignored;  // what cannot be removed now is removed with the scratch folder
  std::filesystem::remove_all(folder, ignored);
  return *rate;
}

int fail(std::ostream& err, const std::string& message, ExitCode code) {
  err << kName << ": " << message << (message.ends_with('\n') ? "" : "\n");
  return static_cast<int>(code);
}

int run_bench(FileSystem& fs, const Bench& bench, const std::string& scratch, std::ostream& out, std::ostream& err) {
  const bool json = bench.arguments.json;
  if (!bench.run.remark.empty()) err << bench.run.remark << "\n\n";
  if (const std::string idle = flags_without_effect(bench.run.config); !idle.empty()) {
    err << "without effect here: " << idle << "\n";
  }
  if (!json) out << heading(bench) << std::flush;
  std::vector<ScalingRow> rows;
  for (const int ranks : bench.arguments.scaling.ranks) {
    err << "training with " << plural(ranks, "rank") << " …\n" << std::flush;  // it may take minutes
    const std::variant<double, Failure> measured = measure(fs, bench, ranks, scratch);
    if (const auto* const failure = std::get_if<Failure>(&measured)) return fail(err, failure->message, failure->code);
    ScalingRow row = scaling_row(ranks, std::get<double>(measured),
                                 rows.empty() ? std::nullopt : std::optional<ScalingRow>(rows.front()));
    row.shares_cores = shares_cores(bench, ranks);
    rows.push_back(row);
    if (!json) out << (rows.size() == 1 ? "\n" + scaling_heading() : "") << scaling_line(row) << std::flush;
  }
  if (json) out << dump_pretty(report(bench, rows)) << std::flush;
  return 0;
}

}  // namespace

CommandShape bench_shape() {
  BenchArguments arguments;
  CLI::App app;
  declare(app, arguments);
  CommandShape scaling = shape_of(app);
  scaling.name = "scaling";
  scaling.subcommands = run_shape(all_workload_flags()).subcommands;
  for (CommandShape& workload : scaling.subcommands) {
    for (const OptionShape& option : scaling.options) {
      if (option.names.front() != "--help") workload.options.push_back(option);
    }
  }
  return {.name = "bench", .subcommands = {std::move(scaling)}};
}

int bench_command(FileSystem& fs, const std::vector<std::string>& args, const Environment& environment,
                  std::ostream& out, std::ostream& err) {
  const std::string what = args.empty() ? "" : args.front();
  if (what == "--help" || what == "-h") {
    out << kUsage;
    return 0;
  }
  if (what != "scaling") {
    err << "lockstep bench: found " << (what.empty() ? "nothing" : "\"" + what + "\"") << ", expected scaling\n"
        << kUsage;
    return code_of(ExitCode::kUsage);
  }
  BenchArguments arguments;
  CLI::App app("lockstep bench scaling WORKLOAD [flags] - the speed-up by more ranks", kName);
  declare(app, arguments);
  const std::vector<std::string> rest(args.begin() + 1, args.end());
  const std::string hint = std::string("see ") + kName + " --help";
  if (const std::optional<int> code = parse_command(app, rest, hint, out, err)) return *code;
  const Result<Bench> bench = plan_bench(std::move(arguments), app.remaining(), environment);
  if (!bench.ok()) return fail(err, bench.error().message, ExitCode::kUsage);
  const Result<std::unique_ptr<ScratchFolder>> scratch = ScratchFolder::make(environment);
  if (!scratch.ok()) return fail(err, scratch.error().message, ExitCode::kCheckpoint);
  return run_bench(fs, *bench, (*scratch)->path(), out, err);
}

}  // namespace lockstep
