#include "runner/cli/demo_data.h"

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "runner/base/nearest.h"
#include "runner/config/flag_table.h"

namespace lockstep {
namespace {

constexpr const char* kCache = "LOCKSTEP_CACHE";  // as in the Makefile and scripts/
constexpr const char* kHome = "HOME";

std::string listed(const std::vector<std::string>& words) {
  std::string list;
  for (size_t i = 0; i < words.size(); ++i) {
    list += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  }
  return list;
}

// The value of the flag in `config`, as text; empty when the workload has no such flag.
std::string value_of(const WorkloadFlags& workload, const std::string& flag, const RunConfig& config) {
  const std::vector<Flag> table = flag_table(&workload);
  const Flag* const found = find_flag(table, flag);
  return found == nullptr ? "" : found->get(config);
}

}  // namespace

std::vector<std::string> data_folders(const Environment& environment) {
  std::vector<std::string> folders{"data", "/data"};
  if (const std::string cache = variable(environment, kCache); !cache.empty()) {
    folders.push_back(cache + "/data");
  } else if (const std::string home = variable(environment, kHome); !home.empty()) {
    folders.push_back(home + "/.cache/lockstep/data");
  }
  return folders;
}

DemoData find_demo_data(const WorkloadDemo& demo, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    std::string path = folder + "/" + demo.data_file;
    std::error_code ignored;  // a path that cannot be examined counts as missing
    if (!std::filesystem::exists(path, ignored)) continue;
    std::string title = demo.data_title + " (" + path + ")";
    return {.value = std::move(path), .title = std::move(title), .remark = ""};
  }
  return {.value = demo.generated,
          .title = "a generated data set",
          .remark = demo.data_title + " is not on this machine: no " + demo.data_file + " in " + listed(folders) +
                    ".\nThis trains on a generated data set instead.\n" + demo.how_to_get_data};
}

Result<RunWithData> with_demo_data(const WorkloadFlags& workload, const std::vector<std::string>& flags,
                                   const std::vector<std::string>& folders, const WorkloadList& workloads) {
  const std::string& flag = workload.demo.data_flag;
  RunWithData run{.arguments = {workload.name}, .config = {}, .data_title = "", .remark = ""};
  run.arguments.insert(run.arguments.end(), flags.begin(), flags.end());
  if (Result<RunConfig> own = parse_run_config(run.arguments, workloads); own.ok() && is_given(*own, flag)) {
    run.config = std::move(*own);
    run.data_title = value_of(workload, flag, run.config);
    return run;
  }
  DemoData data = find_demo_data(workload.demo, folders);
  run.arguments.insert(run.arguments.begin() + 1, {"--" + flag, data.value});
  TRY_ASSIGN(run.config, parse_run_config(run.arguments, workloads));
  // The first parse may have failed for another reason although the user has named data; the user's value wins here.
  if (value_of(workload, flag, run.config) != data.value) {
    run.data_title = value_of(workload, flag, run.config);
    return run;
  }
  run.data_title = std::move(data.title);
  run.remark = std::move(data.remark);
  return run;
}

Result<const WorkloadFlags*> named_workload(const std::string& name, const WorkloadList& workloads) {
  if (const WorkloadFlags* const found = find_workload(workloads, name)) return found;
  std::vector<std::string> names;
  for (const WorkloadFlags& workload : workloads) names.push_back(workload.name);
  const std::string nearest = nearest_name(name, names);
  return Error{ErrorCode::kInvalid, (name.empty() ? "no workload given" : "unknown workload \"" + name + "\"") +
                                        ", expected " + listed(names) +
                                        (nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?") +
                                        "; lockstep workloads describes what there is"};
}

}  // namespace lockstep
