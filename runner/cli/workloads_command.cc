#include "runner/cli/workloads_command.h"

#include <CLI/CLI.hpp>

#include "runner/cli/known_workloads.h"
#include "runner/cli/parse_command.h"
#include "runner/config/flag_table.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

constexpr const char* kVariantFlag = "variant";  // the flag of workloads that have several models

// "--variant a (default), b"; empty for a workload with one model.
std::string variants_of(const WorkloadFlags& workload) {
  const std::vector<Flag> table = flag_table(&workload);
  const Flag* const variant = find_flag(table, kVariantFlag);
  if (variant == nullptr) return "";
  RunConfig defaults;
  workload.set_defaults(defaults);
  std::string list;
  for (const std::string& word : variant->words) {
    list += (list.empty() ? "" : ", ") + word + (word == variant->get(defaults) ? " (default)" : "");
  }
  return std::string("--") + kVariantFlag + " " + list;
}

void declare(CLI::App& app, std::string& plugin) {
  app.add_option("--plugin", plugin, "also list the model in this shared object")->type_name("FILE");
  app.footer("All flags of a workload: lockstep run NAME --help");
}

}  // namespace

std::string workloads_text(const WorkloadList& workloads) {
  std::string text;
  for (const WorkloadFlags& workload : workloads) {
    const auto row = [&text](const std::string& label, const std::string& value) {
      if (!value.empty()) text += "  " + label + std::string(11 - label.size(), ' ') + value + "\n";
    };
    text +=
        (text.empty() ? "" : "\n") + workload.name + (workload.summary.empty() ? "" : " - " + workload.summary) + "\n";
    row("models", variants_of(workload));
    row("data", workload.data);
    const bool is_of_plugin = workload.demo.data_title.empty();
    if (!is_of_plugin) row("demo", "lockstep demo " + workload.name + " (" + workload.demo.data_title + ")");
    row("train", workload.example);
    if (!is_of_plugin) row("measure", "lockstep bench scaling " + workload.name);
    row("all flags", "lockstep run " + workload.name + (is_of_plugin ? " --plugin FILE --help" : " --help"));
  }
  return text;
}

CommandShape workloads_shape() {
  CLI::App app;
  std::string plugin;
  declare(app, plugin);
  return shape_of(app);
}

int workloads_command(const std::vector<std::string>& args, const Environment& environment, std::ostream& out,
                      std::ostream& err) {
  CLI::App app("what can be trained", "lockstep workloads");
  std::string plugin;
  declare(app, plugin);
  if (const std::optional<int> code = parse_command(app, args, "see lockstep workloads --help", out, err)) return *code;
  const Result<WorkloadList> workloads = known_workloads(args, /*is_run=*/false, environment);
  if (!workloads.ok()) {
    err << "lockstep workloads: " << workloads.error().message << "\n";
    return code_of(ExitCode::kUsage);
  }
  out << workloads_text(*workloads);
  return 0;
}

}  // namespace lockstep
