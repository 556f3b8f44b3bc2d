#include "runner/plugin/load_plugin.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/file_system.h"
#include "runner/base/sha256.h"
#include "runner/config/flag_table.h"
#include "runner/config/plugin_line.h"
#include "runner/dist/fault.h"
#include "runner/models/workload_flags.h"
#include "runner/plugin/checked_workload.h"

namespace lockstep {
namespace {

constexpr const char* kFunction = "lockstep_plugin";
constexpr const char* kCompileAgain =
    "; compile it again with find_package(Lockstep) of this Lockstep (docs/your-own-model.md)";

Error refused(const std::string& path, const std::string& what, ErrorCode code = ErrorCode::kInvalid) {
  return Error{code, "--plugin " + path + ": " + what};
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 && text ? text.get() : name;
}

// Turns dlopen's message into one that says what to do.
Error not_loaded(const std::string& path, const std::string& reason) {
  // "…/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by …)"
  for (const char* version : {"version `GLIBC_", "version `GLIBCXX_", "version `CXXABI_", "version `GCC_"}) {
    if (reason.find(version) == std::string::npos) continue;
    return refused(path, "was compiled on a newer system than this one: " + reason +
                             "; compile it in the image lockstep/sdk of this Lockstep (docs/your-own-model.md)");
  }
  constexpr std::string_view kUndefined = "undefined symbol: ";
  const size_t at = reason.find(kUndefined);
  if (at == std::string::npos) {
    return refused(path, "cannot be loaded: " + reason + "; expected a shared object (docs/your-own-model.md)");
  }
  std::string symbol = reason.substr(at + kUndefined.size());
  symbol = symbol.substr(0, symbol.find_first_of(" ,\n"));
  return refused(path,
                 "uses " + demangled(symbol) +
                     ", which is neither in it nor in lockstep-worker: define it, link the library that has it, or "
                     "compile it again with find_package(Lockstep) of this Lockstep");
}

Status check_record(const std::string& path, const PluginRecord& record) {
  const auto compiled_for = [&](const std::string& other, const std::string& own) {
    return refused(path, "was compiled for " + other + ", and this is " + own + kCompileAgain);
  };
  if (std::string_view(record.lockstep) != LOCKSTEP_PLUGIN_VERSION) {
    return compiled_for(std::string("Lockstep ") + record.lockstep, LOCKSTEP_PLUGIN_VERSION);
  }
  if (record.size != sizeof(PluginRecord)) {
    return compiled_for("a record of the size " + std::to_string(record.size), std::to_string(sizeof(PluginRecord)));
  }
  // The other fields of the record are read only when `size` and `lockstep` are right.
  if (std::string_view(record.headers) != LOCKSTEP_PLUGIN_HEADERS) {
    return refused(path, std::string("was compiled with other headers of Lockstep (") + record.headers +
                             ") than this lockstep-worker (" + LOCKSTEP_PLUGIN_HEADERS + ")" + kCompileAgain);
  }
  if (std::string_view(record.torch) != TORCH_VERSION) {
    return compiled_for(std::string("torch ") + record.torch, TORCH_VERSION);
  }
  if (std::string_view(record.abi) != kPluginAbi) {
    return compiled_for(record.abi, kPluginAbi);
  }
  return {};
}

// Functions that the plugin left empty become functions that do nothing.
void fill_gaps(WorkloadFlags& flags) {
  if (!flags.set_defaults) flags.set_defaults = [](RunConfig&) {};
  if (!flags.add_flags) flags.add_flags = [](FlagTableBuilder&) {};
  if (!flags.check) flags.check = [](const RunConfig&) { return Status(); };
  if (!flags.data_name) flags.data_name = [name = flags.name](const RunConfig&) { return name; };
  for (WorkloadTask& task : flags.tasks) {
    if (!task.set_defaults) task.set_defaults = [](RunConfig&) {};
    if (!task.add_flags) task.add_flags = [](FlagTableBuilder&) {};
    if (!task.check) task.check = [](const RunConfig&) { return Status(); };
  }
}

Status check_workload(const std::string& path, const PluginWorkload& workload) {
  const WorkloadFlags& flags = workload.flags;
  const bool is_word = flags.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
  if (flags.name.empty() || !is_word) {
    return refused(path, "flags.name is \"" + flags.name + "\", expected a word of a-z, 0-9 and _");
  }
  if (find_workload(all_workload_flags(), flags.name) != nullptr) {
    return refused(path, "flags.name is " + flags.name + ", which is a workload of Lockstep's own: choose another");
  }
  if (!workload.make) return refused(path, "workload.make is empty: set it to the function that makes the workload");
  if (!flags.tasks.empty() && !workload.run_task) {
    return refused(path, "workload.run_task is empty, but flags.tasks is not: set it to the function that runs them");
  }
  return {};
}

// The table of flags throws for a name that is taken.
Status check_flags(const std::string& path, const WorkloadFlags& flags) {
  try {
    const Status names = check_flag_names(flags);
    return names.ok() ? names : refused(path, names.error().message);
  } catch (const std::invalid_argument& e) {
    return refused(path, e.what());
  }
}

}  // namespace

Result<LoadedPlugin> load_plugin(FileSystem& fs, const std::string& path) {
  std::error_code missing;
  const std::filesystem::path real = std::filesystem::canonical(path, missing);
  if (missing) return refused(path, missing.message() + "; expected a shared object", ErrorCode::kNotFound);
  if (!std::filesystem::is_regular_file(real, missing)) return refused(path, "is no file; expected a shared object");
  LoadedPlugin plugin{.path = path, .sha256 = {}, .workload = {}};
  Sha256 digest;
  const Status read = read_file(fs, real.string(), [&](const void* data, size_t bytes) {
    digest.update(data, bytes);
    return Status();
  });
  if (!read.ok()) return refused(path, read.error().message, read.error().code);
  plugin.sha256 = digest.hex_digest();
  try {
    void* const library = ::dlopen(real.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return not_loaded(path, ::dlerror());
    const auto record_of = reinterpret_cast<const PluginRecord* (*)()>(::dlsym(library, kFunction));
    if (record_of == nullptr) {
      return refused(path, std::string("has no function ") + kFunction +
                               "(): expected LOCKSTEP_PLUGIN(…) in its code (docs/your-own-model.md)");
    }
    const PluginRecord* const record = record_of();
    if (record == nullptr) return refused(path, std::string(kFunction) + "() returned null");
    TRY(check_record(path, *record));
    record->fill(plugin.workload);
    TRY(check_workload(path, plugin.workload));
    fill_gaps(plugin.workload.flags);
    TRY(check_flags(path, plugin.workload.flags));
  } catch (const std::exception& e) {
    return refused(path, std::string("threw while it was loaded: ") + e.what());
  } catch (...) {
    return refused(path, "threw something that is no std::exception while it was loaded");
  }
  return plugin;
}

Result<Workloads> Workloads::load(FileSystem& fs, const std::vector<std::string>& arguments) {
  Workloads workloads;
  workloads.own_ = own_workloads(fs);
  for (const PluginWorkload& own : workloads.own_) workloads.flags_.push_back(own.flags);
  TRY_ASSIGN(const std::string path, plugin_of(arguments));
  if (path.empty()) return workloads;
  TRY_ASSIGN(workloads.plugin_, load_plugin(fs, path));
  workloads.flags_.push_back(workloads.plugin_->workload.flags);
  return workloads;
}

const PluginWorkload& Workloads::own_workload(const RunConfig& config) const {
  const auto found = std::find_if(own_.begin(), own_.end(),
                                  [&](const PluginWorkload& own) { return own.flags.name == config.workload; });
  LOCKSTEP_CHECK(found != own_.end(), "a workload of Lockstep's own, or that of the plugin");
  return *found;
}

bool Workloads::is_of_plugin(const RunConfig& config) const {
  return plugin_ && config.workload == plugin_->workload.flags.name;
}

WorkloadOrFailure Workloads::make(const RunConfig& config, at::Device device, const OnDataProgress& on_progress) const {
  if (!is_of_plugin(config)) return own_workload(config).make(config, device, on_progress);
  const std::string context = "--plugin " + plugin_->path + ": make() ";
  std::unique_ptr<Workload> workload;
  try {
    WorkloadOrFailure made = plugin_->workload.make(config, device, on_progress);
    if (auto* failure = std::get_if<Failure>(&made)) return std::move(*failure);
    workload = std::move(std::get<std::unique_ptr<Workload>>(made));
  } catch (const std::exception& e) {
    const Failure failure = classify_fault(e);
    if (failure.code != ExitCode::kCrash) throw;
    return Failure{ExitCode::kCrash, context + "threw an exception: " + failure.message};
  } catch (...) {
    return Failure{ExitCode::kCrash, context + "threw something that is no std::exception"};
  }
  if (!workload) return usage_failure(context + "gave neither a workload nor a Failure");
  return make_checked_workload(std::move(workload), config.workload, plugin_->path, plugin_->sha256);
}

std::optional<Failure> Workloads::run_task(const TaskInput& input) const {
  if (!is_of_plugin(input.config)) return own_workload(input.config).run_task(input);
  const std::string threw = "--plugin " + plugin_->path + ": run_task() threw ";
  try {
    return plugin_->workload.run_task(input);
  } catch (const std::exception& e) {
    const Failure failure = classify_fault(e);
    if (failure.code != ExitCode::kCrash) throw;
    return Failure{ExitCode::kCrash, threw + "an exception: " + failure.message};
  } catch (...) {
    return Failure{ExitCode::kCrash, threw + "something that is no std::exception"};
  }
}

}  // namespace lockstep
