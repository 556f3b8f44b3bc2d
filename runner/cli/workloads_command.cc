#include "runner/cli/workloads_command.h"

#include <CLI/CLI.hpp>

#include "runner/cli/parse_command.h"
#include "runner/config/flag_table.h"
#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

constexpr const char* kVariantFlag = "variant";  // of those workloads that have several models

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

void declare(CLI::App& app) { app.footer("All flags of a workload: lockstep run NAME --help"); }

}  // namespace

std::string workloads_text(const WorkloadList& workloads) {
  std::string text;
  for (const WorkloadFlags& workload : workloads) {
    const auto row = [&text](const std::string& label, const std::string& value) {
      if (!value.empty()) text += "  " + label + std::string(11 - label.size(), ' ') + value + "\n";
    };
    text += (text.empty() ? "" : "\n") + workload.name + " - " + workload.summary + "\n";
    row("models", variants_of(workload));
    row("data", workload.data);
    row("demo", "lockstep demo " + workload.name + " (" + workload.demo.data_title + ")");
    row("train", workload.example);
    row("measure", "lockstep bench scaling " + workload.name);
    row("all flags", "lockstep run " + workload.name + " --help");
  }
  return text;
}

CommandShape workloads_shape() {
  CLI::App app;
  declare(app);
  return shape_of(app);
}

int workloads_command(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  CLI::App app("what can be trained", "lockstep workloads");
  declare(app);
  if (const std::optional<int> code = parse_command(app, args, "it takes no arguments", out, err)) return *code;
  out << workloads_text(all_workload_flags());
  return 0;
}

}  // namespace lockstep
