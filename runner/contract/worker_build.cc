#include "runner/contract/worker_build.h"

#include <utility>

#include "runner/base/json.h"

namespace lockstep {
namespace {

// The members with their names in JSON.
constexpr std::pair<const char*, std::string WorkerBuild::*> kMembers[] = {
    {"version", &WorkerBuild::version}, {"torch", &WorkerBuild::torch},
    {"cuda", &WorkerBuild::cuda},       {"cudaArchitectures", &WorkerBuild::cuda_architectures},
    {"nccl", &WorkerBuild::nccl},
};

}  // namespace

std::string encode(const WorkerBuild& build) {
  Json json = Json::object();
  for (const auto& [name, member] : kMembers) json[name] = build.*member;
  return dump_line(json);
}

Result<WorkerBuild> decode_worker_build(std::string_view line) {
  TRY_ASSIGN(const Json json, parse_json(line, "build info"));
  WorkerBuild build;
  for (const auto& [name, member] : kMembers) {
    if (!json.is_object() || !json.contains(name) || !json[name].is_string()) {
      std::string message = "build info: found ";
      message.append(dump_line(json)).append(", expected an object with the text \"").append(name).append("\"");
      return Error{ErrorCode::kInvalid, std::move(message)};
    }
    build.*member = json[name].get<std::string>();
  }
  return build;
}

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace lockstep
