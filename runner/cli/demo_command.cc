#include "runner/cli/demo_command.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "runner/cli/demo_data.h"
#include "runner/cli/own_run.h"
#include "runner/config/run_config.h"
#include "runner/contract/exit_code.h"
#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

constexpr const char* kDemoFolder = "demo";  // below the current folder
constexpr int kFoldersMax = 10'000;
constexpr const char* kRanks = "2";
constexpr size_t kNameColumns = 24;
constexpr size_t kFigureColumns = 12;

// The flags in lines of at most 80 columns; a flag and its value stay on one line.
std::string in_lines_of_80(const std::vector<std::string>& flags, const std::string& indent) {
  constexpr size_t kColumns = 80;
  std::string text;
  std::string line = indent;
  for (size_t i = 0; i < flags.size(); i += 2) {
    const std::string pair = " " + flags[i] + (i + 1 < flags.size() ? " " + flags[i + 1] : "");
    if (line.size() + pair.size() > kColumns) text += std::exchange(line, indent) + "\n";
    line += pair;
  }
  return text + line + "\n";
}

std::string help() {
  std::string text =
      "lockstep demo [WORKLOAD] [flags] - trains with two ranks for some minutes, shows\n"
      "the result and what to try next\n\n"
      "Without flags it is the workload's own short run:\n";
  for (const WorkloadFlags& workload : all_workload_flags()) {
    text += "  " + command_line_of("lockstep", {"demo", workload.name}) + "  " + workload.demo.data_title + "\n" +
            in_lines_of_80(workload.demo.arguments, "     ");
  }
  return text +
         "\nThe data set is used if it is on this machine; nothing is downloaded. Without it\n"
         "the run trains on a generated one and prints how to get the real one.\n"
         "Flags are those of `lockstep run WORKLOAD` and win over the demo's own. The\n"
         "output goes to demo/WORKLOAD, or where that is taken to demo/WORKLOAD-2, ...\n";
}

// A folder that does not exist yet, so that each demo starts anew and earlier ones are kept.
std::string fresh_folder(const std::string& workload) {
  const std::string first = std::string(kDemoFolder) + "/" + workload;
  std::error_code ignored;  // the run reports a folder that cannot be examined
  std::string folder = first;
  for (int i = 2; std::filesystem::exists(folder, ignored) && i < kFoldersMax; ++i) {
    folder = first + "-" + std::to_string(i);
  }
  return folder;
}

struct DemoPlan {
  RunWithData run;
  std::string folder;
};

// The demo's flags, except those that the user has given and those that contradict what the user has given.
std::vector<std::string> fitting_flags(const WorkloadFlags& workload, const RunWithData& user) {
  const std::vector<std::string>& of_demo = workload.demo.arguments;
  std::vector<std::string> words{workload.name};
  for (size_t i = 0; i + 1 < of_demo.size(); i += 2) {
    if (is_given(user.config, of_demo[i].substr(2))) continue;
    words.insert(words.end(), {of_demo[i], of_demo[i + 1]});
    std::vector<std::string> all = words;
    all.insert(all.end(), user.arguments.begin() + 1, user.arguments.end());
    if (!parse_run_config(all, all_workload_flags()).ok()) words.resize(words.size() - 2);
  }
  return {words.begin() + 1, words.end()};
}

// Adds what the user has not given: the demo's flags, data, backend and folder.
Result<DemoPlan> plan_demo(const WorkloadFlags& workload, const std::vector<std::string>& flags,
                           const Environment& environment) {
  const WorkloadList& workloads = all_workload_flags();
  const std::vector<std::string> folders = data_folders(environment);
  TRY_ASSIGN(const RunWithData user, with_demo_data(workload, flags, folders, workloads));
  std::vector<std::string> all = fitting_flags(workload, user);
  const LaunchOptions& launch = user.config.launch;
  if (!launch.nproc && !launch.multi_gpu) all.insert(all.end(), {"--nproc", kRanks});
  // With a single GPU both ranks share it, which needs Gloo.
  const bool may_share = launch.backend == BackendChoice::kAuto && !launch.nproc;
  if (may_share && inspect_own_machine(environment, launch.device).gpus == 1) {
    all.insert(all.end(), {"--backend", "gloo"});
  }
  if (user.config.train_dir_flag.empty()) all.insert(all.end(), {"--train_dir", fresh_folder(workload.name)});
  all.insert(all.end(), flags.begin(), flags.end());
  DemoPlan plan;
  TRY_ASSIGN(plan.run, with_demo_data(workload, all, folders, workloads));
  plan.folder = output_folder(plan.run.config, "", "");
  return plan;
}

std::string cell(const std::string& text) {
  return std::string(text.size() < kFigureColumns ? kFigureColumns - text.size() : 1, ' ') + text;
}

std::string cell(double value) {
  if (!std::isfinite(value)) return cell("-");
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4f", value);
  return cell(text.data());
}

std::string name_cell(const std::string& name) {
  return "  " + name + std::string(name.size() < kNameColumns ? kNameColumns - name.size() : 1, ' ');
}

// The loss of the last line up to this step.
double loss_at(const RunFigures& figures, int64_t step) {
  double loss = std::nan("");
  for (const LoggedStep& line : figures.steps) {
    if (line.step <= step) loss = line.loss;
  }
  return loss;
}

// The figure of this name in the evaluation; NaN if it has none.
double figure_in(const LoggedEvaluation& evaluation, const std::string& name) {
  const auto it = std::find_if(evaluation.figures.begin(), evaluation.figures.end(),
                               [&name](const auto& figure) { return figure.first == name; });
  return it == evaluation.figures.end() ? std::nan("") : it->second;
}

// The same run with twice as many steps or epochs; nothing where other flags than these give its length.
std::optional<std::vector<std::string>> longer(const RunWithData& run) {
  const TrainingOptions& training = run.config.training;
  std::vector<std::string> words =
      training.max_steps > 0 ? with_flag(run.arguments, "max_steps", std::to_string(2 * training.max_steps))
                             : with_flag(run.arguments, "num_epochs", std::to_string(2 * training.num_epochs));
  if (!parse_run_config(words, all_workload_flags()).ok()) return std::nullopt;
  return words;
}

// The value of the demo's data flag in the run; empty when it was not given.
std::string data_of(const WorkloadFlags& workload, const DemoPlan& plan) {
  for (const FlagValue& flag : plan.run.config.flags) {
    if (flag.name == workload.demo.data_flag) return flag.value;
  }
  return {};
}

// The words of the command for the demo's task, without the program's name.
std::vector<std::string> task_words(const WorkloadFlags& workload, const DemoPlan& plan) {
  const std::vector<std::string>& task = workload.demo.task;
  std::vector<std::string> words = {workload.name, task.front(), "--checkpoint", plan.folder};
  if (const std::string data = data_of(workload, plan); !data.empty()) {
    words.insert(words.end(), {"--" + workload.demo.data_flag, data});
  }
  constexpr std::string_view kFolderWord = "FOLDER";
  for (auto word = task.begin() + 1; word != task.end(); ++word) {
    words.push_back(word->starts_with(kFolderWord) ? plan.folder + word->substr(kFolderWord.size()) : *word);
  }
  return words;
}

// `has_tasks`: false when the demo's task does not suit the model that was trained, so that the others may not either.
std::string next_text(const WorkloadFlags& workload, const DemoPlan& plan, bool has_tasks, const std::string& program) {
  const std::string& folder = plan.folder;
  std::string text = "Next\n";
  const auto step = [&text](const std::string& what, const std::string& command) {
    text += "  " + what + ":\n    " + command + "\n";
  };
  if (const std::optional<std::vector<std::string>> words = longer(plan.run)) {
    std::vector<std::string> run{"run"};
    run.insert(run.end(), words->begin(), words->end());
    step("go on from there, for twice as long", command_line_of(program, run));
  }
  step("its checkpoints", command_line_of(program, {"ckpt", "ls", folder}));
  for (const WorkloadTask& task : workload.tasks) {
    if (!has_tasks) break;
    if (!workload.demo.task.empty() && workload.demo.task.front() == task.name) {
      step(task.summary, command_line_of(program, task_words(workload, plan)));
      continue;
    }
    std::vector<std::string> words{workload.name, task.name, "--checkpoint", folder};
    const std::string& data = workload.demo.data_flag;
    // With the run's data, if the task has that flag.
    const bool takes_data =
        std::find(task.workload_flags.begin(), task.workload_flags.end(), data) != task.workload_flags.end();
    if (takes_data) words.insert(words.end(), {"--" + data, data_of(workload, plan)});
    step(task.summary, command_line_of(program, words));
  }
  step("the weights for Python (torch.load)",
       command_line_of(program, {"ckpt", "export", folder, "--format", "pt", "--output", folder + ".pt"}));
  step("the curves", command_line_of("tensorboard", {"--logdir", folder}));
  for (const auto& [what, flags] : workload.demo.more) {
    step(what, command_line_of(program, {"demo", workload.name}) + " " + flags);
  }
  step("the speed-up by more ranks", command_line_of(program, {"bench", "scaling", workload.name}));
  step("all flags", command_line_of(program, {"run", workload.name, "--help"}));
  return text;
}

int fail(std::ostream& err, const Error& error, ExitCode code) {
  err << "lockstep demo: " << error.message << "\n";
  return static_cast<int>(code);
}

}  // namespace

std::string result_table(const RunFigures& figures) {
  if (figures.evaluations.empty()) {
    return name_cell("loss") + cell(figures.steps.empty() ? std::nan("") : figures.steps.back().loss) + "\n";
  }
  std::vector<const LoggedEvaluation*> shown{&figures.evaluations.front()};
  if (figures.evaluations.size() > 1) shown.push_back(&figures.evaluations.back());
  std::string text = name_cell("");
  for (const LoggedEvaluation* evaluation : shown) text += cell("epoch " + std::to_string(evaluation->epoch));
  text += "\n" + name_cell("loss");
  for (const LoggedEvaluation* evaluation : shown) text += cell(loss_at(figures, evaluation->step));
  text += "\n";
  for (const auto& [name, last] : shown.back()->figures) {
    text += name_cell(name);
    for (const LoggedEvaluation* evaluation : shown) text += cell(figure_in(*evaluation, name));
    text += "\n";
  }
  return text;
}

std::vector<std::string> with_flag(const std::vector<std::string>& arguments, const std::string& flag,
                                   const std::string& value) {
  const std::string name = "--" + flag;
  std::vector<std::string> changed;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string word = arguments[i].substr(0, arguments[i].find('='));
    std::replace(word.begin(), word.end(), '-', '_');  // dashes may stand for underscores
    if (!arguments[i].starts_with("--") || "--" + word.substr(2) != name) {
      changed.push_back(arguments[i]);
    } else if (arguments[i].find('=') == std::string::npos) {
      ++i;
    }
  }
  changed.insert(changed.end(), {name, value});
  return changed;
}

CommandShape demo_shape() {
  CommandShape shape = run_shape(all_workload_flags());
  shape.options = {{.names = {"--help", "-h"}, .takes_value = false}};
  return shape;
}

int demo_command(FileSystem& fs, const std::vector<std::string>& args, const std::string& program,
                 const Environment& environment, std::ostream& out, std::ostream& err) {
  if (wants_help(args)) {
    out << help();
    return 0;
  }
  const bool names_workload = !args.empty() && !args.front().starts_with("-");
  const WorkloadList& workloads = all_workload_flags();
  const Result<const WorkloadFlags*> named =
      named_workload(names_workload ? args.front() : workloads.front().name, workloads);
  if (!named.ok()) return fail(err, named.error(), ExitCode::kUsage);
  const WorkloadFlags& workload = **named;
  const Environment own = environment_of_own_run(environment);
  const Result<DemoPlan> plan = plan_demo(workload, {args.begin() + (names_workload ? 1 : 0), args.end()}, own);
  if (!plan.ok()) return fail(err, plan.error(), ExitCode::kUsage);

  if (!plan->run.remark.empty()) out << plan->run.remark << "\n\n";
  std::vector<std::string> run{"run"};
  run.insert(run.end(), plan->run.arguments.begin(), plan->run.arguments.end());
  out << "Training on " << plan->run.data_title << "\n$ " << command_line_of(program, run) << "\n\n" << std::flush;
  const Result<int> code = run_to_end({.arguments = plan->run.arguments, .environment = own});
  if (!code.ok()) return fail(err, code.error(), ExitCode::kCrash);
  if (*code != 0) return *code;  // the run has said why

  const Result<RunFigures> figures = read_run_figures(fs, plan->folder);
  if (!figures.ok()) {
    return fail(err, {ErrorCode::kNotFound, "the run left no result: " + figures.error().message}, ExitCode::kCrash);
  }
  out << "\nResult on " << plan->run.data_title << "\n(from " << plan->folder << "/metrics.jsonl)\n"
      << result_table(*figures) << "\n"
      << std::flush;
  bool has_tasks = true;
  if (!workload.demo.task.empty()) {
    const std::vector<std::string> words = task_words(workload, *plan);
    out << "$ " << command_line_of(program, words) << "\n" << std::flush;
    const Result<int> task_code = run_to_end({.arguments = words, .environment = own, .is_run = false});
    if (!task_code.ok()) return fail(err, task_code.error(), ExitCode::kCrash);
    has_tasks = *task_code != code_of(ExitCode::kUsage);  // the task has said why it refuses
    if (*task_code != 0 && has_tasks) return *task_code;
    out << "\n";
  }
  out << next_text(workload, *plan, has_tasks, program) << std::flush;
  return 0;
}

}  // namespace lockstep
