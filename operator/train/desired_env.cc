#include "operator/train/desired_env.h"

#include <algorithm>
#include <utility>

#include "operator/api/trainjob_rules.h"
#include "operator/train/object_names.h"
#include "operator/train/pod_template.h"
#include "operator/train/user_program.h"
#include "runner/base/sha256.h"
#include "runner/contract/env_names.h"

namespace lockstep::train {
namespace {

constexpr int64_t kAgentEndSeconds = 30;  // of a grace period: for the agent to leave after its ranks
constexpr std::string_view kReservedPrefix = "LOCKSTEP_";

class List {
 public:
  void add(std::string_view name, std::string value) {
    entries_.push_back({{"name", std::string(name)}, {"value", std::move(value)}});
  }
  void add(std::string_view name, int value) { add(name, std::to_string(value)); }
  std::vector<Json> entries() && { return std::move(entries_); }

 private:
  std::vector<Json> entries_;
};

void add_foreign(const api::TrainJob& job, int num_proc_per_node, List& list) {
  const std::string address = pod0_address(job.meta);
  const int num_nodes = job.spec.trainer.num_nodes;
  list.add(env::kMasterAddr, address);
  list.add(env::kMasterPort, kMasterPort);
  list.add(env::kForeignNodeRank, 0);
  list.add(env::kForeignNumNodes, num_nodes);
  if (num_proc_per_node == 1) {
    list.add(env::kWorldSize, num_nodes);
    list.add(env::kRank, 0);
  }
  list.add(env::kPetNumNodes, num_nodes);
  list.add(env::kPetNprocPerNode, num_proc_per_node);
  list.add(env::kPetNodeRank, 0);
  list.add(env::kPetMasterAddr, address);
  list.add(env::kPetMasterPort, kMasterPort);
}

}  // namespace

uint64_t run_number(const api::ObjectMeta& job) {
  constexpr int kUidBits = 20;
  const uint64_t uid_bits = std::stoull(sha256_hex(job.uid).substr(0, kUidBits / 4), nullptr, 16);
  return (static_cast<uint64_t>(std::max<api::UnixSeconds>(job.created, 0)) << kUidBits) | uid_bits;
}

std::vector<Json> desired_env(const api::TrainJob& job, int num_proc_per_node, const std::string& token) {
  const api::TrainJobSpec& spec = job.spec;
  const int num_nodes = spec.trainer.num_nodes;
  List list;
  list.add(env::kJob, job.meta.name);
  list.add(env::kNamespace, job.meta.ns);
  list.add(env::kJobUid, job.meta.uid);
  list.add(env::kRun, std::to_string(run_number(job.meta)));
  list.add(env::kNodeRank, 0);
  list.add(env::kNumNodes, num_nodes);
  list.add(env::kMinNodes, spec.elastic ? spec.elastic->min_nodes : num_nodes);
  list.add(env::kMaxNodes, spec.elastic ? spec.elastic->max_nodes : num_nodes);
  list.add(env::kNprocPerNode, num_proc_per_node);
  list.add(env::kCoordinator, pod0_address(job.meta) + ":" + std::to_string(spec.trainer.coordinator_port));
  list.add(env::kPodAttempt, 0);
  if (spec.checkpoint) list.add(env::kCheckpointDir, spec.checkpoint->mount_path);
  if (spec.checkpoint) list.add(env::kResume, api::to_string(spec.checkpoint->resume));
  list.add(env::kToken, token);
  if (spec.elastic) list.add(env::kRejoinTimeout, spec.elastic->rejoin_timeout_seconds);
  list.add(env::kStallTimeout, spec.health.stall_timeout_seconds);
  if (spec.trainer.status_port != api::Trainer().status_port) list.add(env::kStatusPort, spec.trainer.status_port);
  if (runs_user_program(spec)) {
    // All that the grace period leaves it: it may be given by the template alone, for a volume of the program's own.
    const int64_t grace = grace_period(spec);
    list.add(env::kStopTimeout, std::to_string(std::max<int64_t>({1, grace - kAgentEndSeconds, grace / 2})));
  } else if (spec.checkpoint) {
    list.add(env::kStopTimeout, spec.checkpoint->on_suspend_timeout_seconds);
  }
  if (spec.trainer.launcher != api::Launcher::kLockstep) add_foreign(job, num_proc_per_node, list);
  return std::move(list).entries();
}

void set_rank(api::Launcher launcher, int node_rank, int attempt, Json& env) {
  const bool is_foreign = launcher != api::Launcher::kLockstep;  // else these names are the user's
  for (Json& variable : env) {
    const std::string& name = variable.at("name").get_ref<const std::string&>();
    if (name == env::kPodAttempt) variable["value"] = std::to_string(attempt);
    if (name == env::kNodeRank ||
        (is_foreign && (name == env::kForeignNodeRank || name == env::kRank || name == env::kPetNodeRank))) {
      variable["value"] = std::to_string(node_rank);
    }
  }
}

bool is_reserved(std::string_view name, api::Launcher launcher) {
  if (name.substr(0, kReservedPrefix.size()) == kReservedPrefix) return true;
  return launcher != api::Launcher::kLockstep &&
         std::find(api::kForeignNames.begin(), api::kForeignNames.end(), name) != api::kForeignNames.end();
}

}  // namespace lockstep::train
