#include "runner/cli/find_worker.h"

#include <filesystem>

#include "runner/contract/env_names.h"

namespace lockstep {
namespace {

constexpr const char* kWorkerName = "lockstep-worker";

}  // namespace

Result<std::string> find_worker(const Environment& environment) {
  if (std::string named = variable(environment, env::kWorker); !named.empty()) return named;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Error{ErrorCode::kInvalid, "cannot read /proc/self/exe: " + error.message()};
  const std::filesystem::path worker = self.parent_path() / kWorkerName;
  if (std::filesystem::exists(worker, error)) return worker.string();
  return Error{ErrorCode::kInvalid, "no " + worker.string() + ": " + kWorkerName +
                                        " belongs beside lockstep (build it with " +
                                        "LOCKSTEP_TORCH=ON), or name it in " + std::string(env::kWorker)};
}

}  // namespace lockstep
