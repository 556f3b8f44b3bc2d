#include "operator/diagnose/ending.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <map>
#include <string_view>
#include <utility>

#include "operator/train/user_program.h"
#include "runner/base/json.h"
#include "runner/contract/exit_code.h"

namespace lockstep::diagnose {
namespace {

constexpr int kFirstSignal = 128;

// Something to do. NS, JOB, POD, IMAGE and CLAIM stand for those of the job.
struct Step {
  enum class Kind {
    kDo,              // as it is: text and command
    kInNewJob,        // "…, in the TrainJob's file": the job is deleted and applied anew
    kWhileSuspended,  // the spec may change only then; of a job that has failed: kInNewJob
  };
  std::string text;
  std::string command;
  Kind kind = Kind::kDo;
};
Step in_new_job(std::string text) { return {std::move(text), "", Step::Kind::kInNewJob}; }
Step while_suspended(std::string text) { return {std::move(text), "", Step::Kind::kWhileSuspended}; }

// A reason for which a pod or a job ended, or for which pods do not run.
struct Row {
  std::string words;  // after the pod's or the job's name; "": of the job, whose condition has the words
  std::vector<Step> steps = {};
};

// Parts of reasons: what their messages tell apart.
constexpr const char* kOfRoot = "CreateContainerConfigError: root";
constexpr const char* kOfMissingName = "CreateContainerConfigError: a Secret or ConfigMap";
constexpr const char* kOfAgentImage = "ErrImagePull: of the agent";
constexpr const char* kMayBeEdited = "InvalidSpec: of a job without pods";

const std::map<std::string, Row, std::less<>>& rows() {
  static const Step nodes_left = {"see what the nodes have left:",
                                  "kubectl get nodes; kubectl describe nodes | grep -A 8 'Allocated resources'"};
  static const Step kubelets_words = {"message of the kubelet:", "kubectl describe -n NS pod POD"};
  static const Row no_image = {"cannot pull its image",
                               {{"is IMAGE spelt right, pushed, and may this namespace pull it (imagePullSecrets)?",
                                 "kubectl describe -n NS pod POD"},
                                while_suspended("correct spec.trainer.image")}};
  static const Row lost_with_node = {"was lost with its node", {{"look at the nodes:", "kubectl get nodes"}}};
  static const Step find_out = {
      "find out why it fails (above) before it is started again: the budgets are restartPolicy's", ""};
  static const std::map<std::string, Row, std::less<>> made = {
      // --- how a pod ended
      {"Done", {"has ended with 0"}},
      {"OutOfMemory",
       {"ran out of memory",
        {while_suspended("give each pod more memory (spec.trainer.resourcesPerNode.limits.memory)"),
         in_new_job("or set a smaller --batch_size, a higher --grad_accum_steps or --precision bf16")}}},
      {"InvalidUsage", {"refused its arguments", {in_new_job("correct spec.trainer.args")}}},
      {"ConfigurationChanged",
       {"refused to go on with other flags, or another version of its model, than its checkpoint was made with",
        {{"set the flags that are named, or the image, back, or add --resume with the checkpoint's path to "
          "spec.trainer.args; the job goes on when its spec has changed:",
          "kubectl edit -n NS tj JOB"}}}},
      {"DataUnreadable",
       {"could not read its data",
        {{"look at the volume with the data: is it mounted where --dataset says, and filled?", "kubectl get -n NS pvc"},
         in_new_job("then correct spec.trainer.args or podTemplate")}}},
      {"CheckpointFailed",
       {"could not read or write a checkpoint",
        {{"look at the checkpoint volume: is it full, or owned by another user than the pods' (fsGroup)?",
          "kubectl describe -n NS pvc CLAIM"}}}},
      {"NotFinite",
       {"stopped because loss or gradient were not finite",
        {in_new_job("set a lower --lr, --clip_grad_norm 1 or --precision fp32")}}},
      {"PeerLost", {"lost its peers and could not form the group again"}},
      {"TimedOut",
       {"hung: a collective or a step timed out",
        {{"the stacks of the hung worker are in the log of its pod:",
          "kubectl logs -n NS -l lockstep.dev/job=JOB -c trainer --tail=200 --prefix"}}}},
      {"DeviceFault",
       {"met a fault of its device",
        {{"the node is avoided for a while; look at it, and keep others off it while it is repaired:",
          "kubectl cordon NODE"}}}},
      {"Interrupted", {"was told to stop"}},
      {"Terminated", {"was told to stop"}},
      {"InitContainerFailed", {"never began: an init container failed"}},
      {"NodeLost", lost_with_node},
      {"DeletionByPodGC", lost_with_node},
      {"PodDeleted", {"was deleted by somebody"}},
      {"Evicted", {"was evicted from its node"}},
      {"NodeShutdown", {"was ended by its node's shutdown"}},
      {"Preempted", {"was preempted by a pod of higher priority"}},
      {"PreemptionByScheduler", {"was preempted by a pod of higher priority"}},
      {"DeletionByTaintManager", {"was evicted by a taint of its node"}},
      {"EvictionByEvictionAPI", {"was evicted (a drain, or another client of the eviction API)"}},
      {"TerminationByKubelet", {"was ended by its kubelet"}},
      {"NotStarted", {"was not started by its node, and moved to another"}},
      {"NodeAffinity", {"was refused by its node's kubelet"}},
      {"TopologyAffinityError", {"was refused by its node's kubelet"}},
      {"UnexpectedAdmissionError", {"was refused by its node's kubelet"}},
      // --- how a job ended
      {"DeadlineExceeded", {"", {in_new_job("raise or remove activeDeadlineSeconds")}}},
      {"TooManyRestarts", {"", {find_out}}},
      {"NoProgress", {"", {find_out}}},
      // --- what keeps pods from running
      {"InvalidSpec",
       {"has a spec of which no pod can be made; pods that run are kept",
        {while_suspended("correct the field that is named")}}},
      {kMayBeEdited,
       {"has a spec of which no pod can be made; pods that run are kept",
        {{"correct the field that is named, or what the cluster allows; the job goes on by itself:",
          "kubectl edit -n NS tj JOB"}}}},
      {"Unschedulable",
       {"cannot be scheduled",
        {nodes_left, while_suspended("or ask for less (resourcesPerNode), or for fewer pods (numNodes)")}}},
      {"NotScheduled",
       {"waits for a scheduler, and none has looked at it",
        {{"does a scheduler of the name that the pod asks for run (podTemplate.spec.schedulerName)?",
          "kubectl get -n NS pod POD -o jsonpath='{.spec.schedulerName}'"}}}},
      {"SchedulingGated",
       {"is held back by its scheduling gates",
        {{"see which gates, and whether the queue that set them lets the job in:",
          "kubectl get -n NS pod POD -o jsonpath='{.spec.schedulingGates}'"}}}},
      {"PodsGivenBack", {"has deleted its pods, because too few were scheduled, and tries again later", {nodes_left}}},
      {"ErrImagePull", no_image},
      {"ImagePullBackOff", no_image},
      {"InvalidImageName", {"has an invalid image name", no_image.steps}},
      {"ErrImageNeverPull", {"needs an image that its node does not have and may not pull", no_image.steps}},
      {kOfAgentImage,
       {"cannot pull its image",
        {{"it is the operator's own image (its flag --agent_image), which brings the agent; may this namespace pull "
          "it (podTemplate.spec.imagePullSecrets)?",
          "kubectl describe -n NS pod POD"}}}},
      {kOfRoot,
       {"needs a user by number, who is not root, for its container",
        {while_suspended(
            "give the image a user by number (USER 65532 in its Dockerfile), or set podTemplate.spec.securityContext: "
            "runAsUser: 65532 for another user, runAsNonRoot: false for root")}}},
      {kOfMissingName, {"names a Secret or ConfigMap, or a key of one, that is not there", {kubelets_words}}},
      {"CreateContainerConfigError", {"has a container that its node cannot set up", {kubelets_words}}},
      {"CreateContainerError", {"cannot be started by its node", {kubelets_words}}},
      {"RunContainerError", {"cannot be started by its node", {kubelets_words}}},
      {"ContainerCreating", {"waits for its node, which sets up volumes, network and devices", {kubelets_words}}},
      {"ClaimMissing",
       {"needs a volume claim that does not exist",
        {{"create the claim \"CLAIM\"; the job then begins by itself. Those that there are:",
          "kubectl get -n NS pvc"}}}},
      {"VolumeStillAttached",
       {"waits for its volume, which is still attached to another node",
        {{"if that node will not return, mark it out of service, so that its volumes are detached:",
          "kubectl taint nodes NODE node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"}}}},
      {"QuotaExceeded",
       {"is held back by a quota",
        {{"raise the quota, or end something else:", "kubectl describe -n NS resourcequota"}}}},
      {"PriorityClassMissing",
       {"names a priority class that does not exist",
        {{"create the class; the job then begins by itself. Those that there are:", "kubectl get priorityclasses"},
         while_suspended("or name another one (spec.scheduling.priorityClassName)")}}},
      {"CreateRefused", {"is refused by the API server"}},
      {"NameTaken",
       {"needs a name that somebody else's object has",
        {{"delete or rename what is not the job's, or name the TrainJob otherwise", ""}}}},
      {"PreviousRunTerminating", {"waits for the pods of an earlier TrainJob of this name to go"}},
      {"ObjectTerminating", {"waits for an object of its own that is being deleted"}},
      {"NamespaceTerminating",
       {"cannot have pods: its namespace is being deleted", {{"create the TrainJob in another namespace", ""}}}},
      {"PodGroupUnavailable",
       {"is a gang, and the cluster has no PodGroups that can be used for it",
        {{"does the cluster have the kind, and may the operator read it (docs/gangs.md)?",
          "kubectl api-resources | grep -i podgroups"}}}},
      {"BackingOff", {"waits before its next pod: the last ones failed soon after their start"}},
  };
  return made;
}

const Row* row_of(std::string_view reason) {
  const auto it = rows().find(reason);
  return it == rows().end() ? nullptr : &it->second;
}

bool has_any(const std::string& text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != std::string::npos; });
}

const Row* row_of(const train::Obstacle& wait) {
  if (wait.reason == "CreateContainerConfigError") {
    // "container has runAsNonRoot and image will run as root", "… image has non-numeric user (app), cannot verify user
    // is non-root", "container's runAsUser breaks non-root policy": the kubelet's words.
    if (has_any(wait.message, {"runAsNonRoot", "non-root"})) return row_of(kOfRoot);
    if (has_any(wait.message, {"secret", "Secret", "configmap", "ConfigMap"})) return row_of(kOfMissingName);
  }
  return row_of(wait.reason);
}

std::string suspend_patch(const api::ObjectKey& job, const char* suspend) {
  return kubectl("patch", job, "tj " + job.name + R"( --type=merge -p '{"spec": {"suspend": )" + suspend + "}}'");
}

std::vector<Advice> advice_of(const Row* row, const api::TrainJob& job, const std::string& pod) {
  if (row == nullptr) return {};
  const api::ObjectKey name{job.meta.ns, job.meta.name};
  const std::string claim = job.spec.checkpoint ? job.spec.checkpoint->claim_name() : "";
  const std::vector<std::pair<std::string_view, std::string>> values = {
      {"NS", name.ns}, {"JOB", name.name}, {"POD", pod}, {"IMAGE", job.spec.trainer.image}, {"CLAIM", claim}};
  const auto filled = [&](std::string text) {
    for (const auto& [word, value] : values) {
      if (const size_t at = text.find(word); at != std::string::npos) text.replace(at, word.size(), value);
    }
    return text;
  };
  const bool has_failed = job.status.conditions.is_true(api::condition::kFailed);
  std::vector<Advice> advice;
  for (const Step& step : row->steps) {
    if (step.kind == Step::Kind::kDo) {
      advice.push_back({filled(step.text), filled(step.command)});
    } else if (step.kind == Step::Kind::kInNewJob || has_failed) {
      advice.push_back({step.text + " in the TrainJob's file, check it, delete the TrainJob, and apply the file again:",
                        "lockstep validate -f trainjob.yaml"});
    } else {
      advice.push_back({step.text + "; that changes while the job is suspended:", suspend_patch(name, "true")});
      advice.push_back({"then", kubectl("edit", name, "tj " + name.name)});
      advice.push_back({"and", suspend_patch(name, "false")});
    }
  }
  return advice;
}

}  // namespace

std::string kubectl(const std::string& verb, const api::ObjectKey& job, const std::string& words) {
  return "kubectl " + verb + " -n " + job.ns + " " + words;
}

std::string ending_words(const std::string& reason, std::optional<int> exit_code) {
  const bool by_signal = exit_code && *exit_code > kFirstSignal;
  if (reason == "OutOfMemory" && by_signal) return "was killed by the kernel (out of memory)";
  if (const Row* const row = row_of(reason); row != nullptr && !row->words.empty()) return row->words;
  if (by_signal) return "was killed by signal " + std::to_string(*exit_code - kFirstSignal) + " (" + reason + ")";
  if (exit_code) return "crashed with exit code " + std::to_string(*exit_code);
  return "was lost (" + reason + ")";
}

std::string exit_code_words(const std::string& reason, int code) {
  const std::string number = std::to_string(code);
  const bool is_ours = reason != exit_reason(code_of(ExitCode::kCrash)) && reason != "InitContainerFailed";
  if (!is_ours && code <= kFirstSignal) return number + ": a crash";
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::kDone:
      return number + ": done";
    case ExitCode::kCrash:
      return number + ": a crash";
    case ExitCode::kUsage:
      return number + ": usage, configuration, or a checkpoint of another run";
    case ExitCode::kData:
      return number + ": data missing or unreadable";
    case ExitCode::kCheckpoint:
      return number + ": checkpoint unreadable, or volume not writable";
    case ExitCode::kNotFinite:
      return number + ": loss or gradient not finite";
    case ExitCode::kPeerLost:
      return number + ": peers lost";
    case ExitCode::kTimeout:
      return number + ": a collective or a step timed out";
    case ExitCode::kDeviceFault:
      return number + ": device fault";
    case ExitCode::kOutOfMemory:
      return number + ": out of memory";
    case ExitCode::kInterrupted:
    case ExitCode::kTerminated:
      return number + ": told to stop";
  }
  const char* const name = code > kFirstSignal ? sigabbrev_np(code - kFirstSignal) : nullptr;
  return number + (name == nullptr ? ": a crash" : std::string(": killed by SIG") + name);
}

std::vector<Advice> advice_for_ending(const std::string& reason, const api::TrainJob& job) {
  return advice_of(row_of(reason), job, "");
}

std::string wait_words(const train::Obstacle& wait) {
  const Row* const row = row_of(wait);
  return row == nullptr ? "waits (" + wait.reason + ")" : row->words;
}

std::vector<Advice> advice_for_wait(const train::Obstacle& wait, const api::TrainJob& job, const std::string& pod) {
  const Row* row = row_of(wait);
  const bool is_image = wait.reason.find("Image") != std::string::npos;
  if (is_image && has_any(wait.message, {"container " + std::string(train::kAgentContainer)}))
    row = row_of(kOfAgentImage);
  // Its pods are refused, and it has none (manifests/base/crd.yaml): then the spec may change as while it is suspended.
  const bool may_be_edited = job.status.phase == api::JobPhase::kPending && job.status.reason == train::kInvalidSpec;
  if (wait.reason == train::kInvalidSpec && may_be_edited) row = row_of(kMayBeEdited);
  return advice_of(row, job, pod);
}

}  // namespace lockstep::diagnose
