#include "runner/worker/describe_plugin.h"

#include <any>
#include <cstdio>
#include <exception>

#include "runner/config/plugin_line.h"
#include "runner/config/run_config.h"
#include "runner/contract/exit_code.h"
#include "runner/plugin/load_plugin.h"

namespace lockstep {
namespace {

Result<std::string> description_of(FileSystem& fs, const std::vector<std::string>& arguments) {
  TRY_ASSIGN(const Workloads workloads, Workloads::load(fs, {"--plugin=" + arguments.front()}));
  const WorkloadFlags& workload = workloads.plugin()->workload.flags;
  std::string data_name;
  if (arguments.size() > 1 && arguments[1] == "run") {
    TRY_ASSIGN(const RunConfig config, parse_run_config({arguments.begin() + 2, arguments.end()}, workloads.flags()));
    if (config.workload == workload.name) data_name = config.data_name;
  }
  return dump_line(describe_workload(workload, data_name));
}

}  // namespace

int describe_plugin(FileSystem& fs, const std::vector<std::string>& arguments) {
  const auto refuse = [](const std::string& message) {
    std::fprintf(stderr, "%s\n", message.c_str());
    return code_of(ExitCode::kUsage);
  };
  if (arguments.empty() || arguments.front().empty()) return refuse("--describe needs a value: the file of a plugin");
  try {
    const Result<std::string> description = description_of(fs, arguments);
    if (!description.ok()) return refuse(description.error().message);
    return std::puts(description->c_str()) < 0 ? 1 : 0;
  } catch (const std::bad_any_cast&) {
    return refuse("--plugin " + arguments.front() +
                  ": its flags read options of another type than set_defaults puts into config.options");
  } catch (const std::exception& e) {
    return refuse("--plugin " + arguments.front() + ": its flags threw an exception: " + e.what());
  } catch (...) {
    return refuse("--plugin " + arguments.front() + ": its flags threw something that is no std::exception");
  }
}

}  // namespace lockstep
