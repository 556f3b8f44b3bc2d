#include "runner/launch/announced_nodes.h"

#include <algorithm>
#include <array>

#include "runner/base/json.h"
#include "runner/contract/env_names.h"

namespace lockstep {
namespace {

struct Launcher {
  std::string_view name;
  std::string_view size;            // the variable with the number of nodes
  std::string_view position_flags;  // the flags that say which node this is, and where node 0 is
};

constexpr std::array<Launcher, 4> kLaunchers = {{
    {"Kubeflow Trainer", env::kPetNumNodes, "--node_rank $PET_NODE_RANK --coordinator $PET_MASTER_ADDR:29400"},
    {"LeaderWorkerSet", env::kLwsGroupSize, "--node_rank $LWS_WORKER_INDEX --coordinator $LWS_LEADER_ADDRESS:29400"},
    {"SkyPilot", env::kSkypilotNumNodes,
     "--node_rank $SKYPILOT_NODE_RANK --coordinator $(echo \"$SKYPILOT_NODE_IPS\" | head -n 1):29400"},
    {"of a launcher", env::kForeignNumNodes, "--node_rank $NODE_RANK --coordinator $MASTER_ADDR:29400"},
}};

// "1", and torchrun's "1:1", the least and the most.
bool is_one(const std::string& nodes) { return nodes == "1" || nodes == "1:1"; }

// Each task of a Volcano job has its own number of pods; together they are the nodes.
std::optional<AnnouncedNodes> find_volcano(const Environment& environment) {
  if (variable(environment, env::kVolcanoTaskIndex).empty()) return std::nullopt;
  std::string given_by;
  int64_t nodes = 0;
  for (const auto& [name, value] : environment) {
    if (!name.starts_with(env::kVolcanoPrefix) || !name.ends_with(env::kVolcanoNumSuffix)) continue;
    given_by += (given_by.empty() ? "" : ", ") + name + "=" + value;
    nodes += std::clamp<int64_t>(parse_number(value).value_or(1), 0, INT32_MAX);
  }
  if (nodes == 0) return std::nullopt;
  return AnnouncedNodes{.given_by = given_by + " (Volcano)",
                        .several = nodes > 1,
                        .flags = "--nnodes " + std::to_string(nodes) +
                                 " --node_rank N --coordinator HOST:29400 (N counts the pods of all tasks from 0, HOST "
                                 "is that of pod 0: VC_TASK_INDEX and VC_…_HOSTS have both)"};
}

}  // namespace

std::optional<AnnouncedNodes> find_announced_nodes(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    const std::string nodes = variable(environment, launcher.size);
    if (nodes.empty()) continue;
    return AnnouncedNodes{
        .given_by = std::string(launcher.size) + "=" + nodes + " (" + std::string(launcher.name) + ")",
        .several = !is_one(nodes),
        .flags = "--nnodes " + nodes + " " + std::string(launcher.position_flags)};
  }
  return find_volcano(environment);
}

}  // namespace lockstep
