#include "operator/diagnose/ending.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <map>
#include <string_view>

#include "operator/train/user_program.h"
#include "runner/base/json.h"
#include "runner/contract/exit_code.h"

namespace lockstep::diagnose {
namespace {

constexpr int kFirstSignal = 128;

std::string suspend_patch(const JobName& job, bool suspend) {
  return kubectl(
      "patch", job,
      "tj " + job.name + R"( --type=merge -p '{"spec": {"suspend": )" + (suspend ? "true" : "false") + "}}'");
}

Advice run_anew(const std::string& what) {
  return {what + " in the TrainJob's file, check it, delete the TrainJob, and apply the file again:",
          "lockstep validate -f trainjob.yaml"};
}

// Advice to change a field of the spec that may change only while the job is suspended.
std::vector<Advice> change_while_suspended(const std::string& what, const api::TrainJob& job) {
  if (job.status.conditions.is_true(api::condition::kFailed)) return {run_anew(what)};
  const JobName name{job.meta.ns, job.meta.name};
  return {{what + "; that changes while the job is suspended:", suspend_patch(name, true)},
          {"then", kubectl("edit", name, "tj " + name.name)},
          {"and", suspend_patch(name, false)}};
}

// Its pods are refused, and it has none (manifests/base/crd.yaml): then the spec may change as while it is suspended.
bool may_be_edited(const api::TrainJob& job) {
  return job.status.phase == api::JobPhase::kPending && job.status.reason == train::kInvalidSpec;
}

std::string claim_of(const api::TrainJob& job) {
  return job.spec.checkpoint ? text_field(job.spec.checkpoint->volume, {"persistentVolumeClaim", "claimName"})
                             : std::string();
}

bool has_any(const std::string& text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != std::string::npos; });
}

// "container has runAsNonRoot and image will run as root", "… image has non-numeric user (app), cannot verify user is
// non-root", "container's runAsUser breaks non-root policy": the kubelet's words.
bool is_about_root(const train::Obstacle& wait) { return has_any(wait.message, {"runAsNonRoot", "non-root"}); }

}  // namespace

std::string kubectl(const std::string& verb, const JobName& job, const std::string& words) {
  return "kubectl " + verb + " -n " + job.ns + " " + words;
}

std::string ending_words(const std::string& reason, std::optional<int> exit_code) {
  const bool by_kernel = exit_code && *exit_code > kFirstSignal;
  if (reason == "OutOfMemory") return by_kernel ? "was killed by the kernel (out of memory)" : "ran out of memory";
  static const std::map<std::string, std::string> words = {
      {"Done", "has ended with 0"},
      {"InvalidUsage", "refused its arguments"},
      {"ConfigurationChanged",
       "refused to go on with other flags, or another version of its model, than its checkpoint was made with"},
      {"DataUnreadable", "could not read its data"},
      {"CheckpointFailed", "could not read or write a checkpoint"},
      {"NotFinite", "stopped because loss or gradient were not finite"},
      {"PeerLost", "lost its peers and could not form the group again"},
      {"TimedOut", "hung: a collective or a step timed out"},
      {"DeviceFault", "met a fault of its device"},
      {"Interrupted", "was told to stop"},
      {"Terminated", "was told to stop"},
      {"InitContainerFailed", "never began: an init container failed"},
      {"NodeLost", "was lost with its node"},
      {"PodDeleted", "was deleted by somebody"},
      {"Evicted", "was evicted from its node"},
      {"NodeShutdown", "was ended by its node's shutdown"},
      {"Preempted", "was preempted by a pod of higher priority"},
      {"PreemptionByScheduler", "was preempted by a pod of higher priority"},
      {"DeletionByTaintManager", "was evicted by a taint of its node"},
      {"EvictionByEvictionAPI", "was evicted (a drain, or another client of the eviction API)"},
      {"TerminationByKubelet", "was ended by its kubelet"},
      {"DeletionByPodGC", "was lost with its node"},
      {"NotStarted", "was not started by its node, and moved to another"},
      {"NodeAffinity", "was refused by its node's kubelet"},
      {"TopologyAffinityError", "was refused by its node's kubelet"},
      {"UnexpectedAdmissionError", "was refused by its node's kubelet"}};
  if (const auto it = words.find(reason); it != words.end()) return it->second;
  if (exit_code && *exit_code > kFirstSignal) {
    return "was killed by signal " + std::to_string(*exit_code - kFirstSignal) + " (" + reason + ")";
  }
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
  const JobName name{job.meta.ns, job.meta.name};
  if (reason == "OutOfMemory") {
    std::vector<Advice> advice =
        change_while_suspended("give each pod more memory (spec.trainer.resourcesPerNode.limits.memory)", job);
    advice.push_back(run_anew("or set a smaller --batch_size, a higher --grad_accum_steps or --precision bf16"));
    return advice;
  }
  if (reason == "InvalidUsage") return {run_anew("correct spec.trainer.args")};
  if (reason == "ConfigurationChanged") {
    return {
        {"set the flags that are named, or the image, back, or add --resume with the checkpoint's path to "
         "spec.trainer.args; the job goes on when its spec has changed:",
         kubectl("edit", name, "tj " + name.name)}};
  }
  if (reason == train::kInvalidSpec) return {run_anew("correct the field")};  // of an older operator
  if (reason == "DataUnreadable") {
    return {{"look at the volume with the data: is it mounted where --dataset says, and filled?",
             kubectl("get", name, "pvc")},
            run_anew("then correct spec.trainer.args or podTemplate")};
  }
  if (reason == "CheckpointFailed") {
    return {{"look at the checkpoint volume: is it full, or owned by another user than the pods' (fsGroup)?",
             kubectl("describe", name, "pvc " + claim_of(job))}};
  }
  if (reason == "NotFinite") return {run_anew("set a lower --lr, --clip_grad_norm 1 or --precision fp32")};
  if (reason == "DeviceFault") {
    return {{"the node is avoided for a while; look at it, and keep others off it while it is repaired:",
             "kubectl cordon NODE"}};
  }
  if (reason == "TimedOut") {
    return {{"the stacks of the hung worker are in the log of its pod:",
             kubectl("logs", name, "-l lockstep.dev/job=" + name.name + " -c trainer --tail=200 --prefix")}};
  }
  if (reason == "NodeLost" || reason == "DeletionByPodGC") return {{"look at the nodes:", "kubectl get nodes"}};
  if (reason == "DeadlineExceeded") return {run_anew("raise or remove activeDeadlineSeconds")};
  if (reason == "TooManyRestarts" || reason == "NoProgress") {
    return {{"find out why it fails (above) before it is started again: the budgets are restartPolicy's", ""}};
  }
  return {};
}

std::string wait_words(const train::Obstacle& wait) {
  const std::string& reason = wait.reason;
  if (reason == "CreateContainerConfigError") {
    if (is_about_root(wait)) return "needs a user by number, who is not root, for its container";
    if (has_any(wait.message, {"secret", "Secret", "configmap", "ConfigMap"})) {
      return "names a Secret or ConfigMap, or a key of one, that is not there";
    }
    return "has a container that its node cannot set up";
  }
  static const std::map<std::string, std::string> words = {
      {"InvalidSpec", "has a spec of which no pod can be made; pods that run are kept"},
      {"Unschedulable", "cannot be scheduled"},
      {"NotScheduled", "waits for a scheduler, and none has looked at it"},
      {"SchedulingGated", "is held back by its scheduling gates"},
      {"PodsGivenBack", "has deleted its pods, because too few were scheduled, and tries again later"},
      {"ErrImagePull", "cannot pull its image"},
      {"ImagePullBackOff", "cannot pull its image"},
      {"InvalidImageName", "has an invalid image name"},
      {"ErrImageNeverPull", "needs an image that its node does not have and may not pull"},
      {"CreateContainerError", "cannot be started by its node"},
      {"RunContainerError", "cannot be started by its node"},
      {"ContainerCreating", "waits for its node, which sets up volumes, network and devices"},
      {"ClaimMissing", "needs a volume claim that does not exist"},
      {"VolumeStillAttached", "waits for its volume, which is still attached to another node"},
      {"QuotaExceeded", "is held back by a quota"},
      {"PriorityClassMissing", "names a priority class that does not exist"},
      {"CreateRefused", "is refused by the API server"},
      {"NameTaken", "needs a name that somebody else's object has"},
      {"PreviousRunTerminating", "waits for the pods of an earlier TrainJob of this name to go"},
      {"ObjectTerminating", "waits for an object of its own that is being deleted"},
      {"NamespaceTerminating", "cannot have pods: its namespace is being deleted"},
      {"PodGroupUnavailable", "is a gang, and the cluster has no PodGroups that can be used for it"},
      {"BackingOff", "waits before its next pod: the last ones failed soon after their start"}};
  const auto it = words.find(reason);
  return it == words.end() ? "waits (" + reason + ")" : it->second;
}

std::vector<Advice> advice_for_wait(const train::Obstacle& wait, const api::TrainJob& job, const std::string& pod) {
  const std::string& reason = wait.reason;
  const JobName name{job.meta.ns, job.meta.name};
  if (reason == "Unschedulable") {
    std::vector<Advice> advice = {{"see what the nodes have left:",
                                   "kubectl get nodes; kubectl describe nodes | grep -A 8 'Allocated resources'"}};
    const std::vector<Advice> more =
        change_while_suspended("or ask for less (resourcesPerNode), or for fewer pods (numNodes)", job);
    advice.insert(advice.end(), more.begin(), more.end());
    return advice;
  }
  if (reason == "PodGroupUnavailable") {
    return {{"does the cluster have the kind, and may the operator read it (docs/gangs.md)?",
             "kubectl api-resources | grep -i podgroups"}};
  }
  if (reason == "NotScheduled") {
    return {{"does a scheduler of the name that the pod asks for run (podTemplate.spec.schedulerName)?",
             kubectl("get", name, "pod " + pod + " -o jsonpath='{.spec.schedulerName}'")}};
  }
  if (reason == "SchedulingGated") {
    return {{"see which gates, and whether the queue that set them lets the job in:",
             kubectl("get", name, "pod " + pod + " -o jsonpath='{.spec.schedulingGates}'")}};
  }
  if (reason == "PodsGivenBack") {
    return {{"see what the nodes have left:",
             "kubectl get nodes; kubectl describe nodes | grep -A 8 'Allocated resources'"}};
  }
  if (reason == "ErrImagePull" || reason == "ImagePullBackOff" || reason == "InvalidImageName" ||
      reason == "ErrImageNeverPull") {
    if (wait.message.find("container " + std::string(train::kAgentContainer)) != std::string::npos) {
      return {
          {"it is the operator's own image (its flag --agent_image), which brings the agent; may this namespace pull "
           "it (podTemplate.spec.imagePullSecrets)?",
           kubectl("describe", name, "pod " + pod)}};
    }
    std::vector<Advice> advice = {
        {"is " + job.spec.trainer.image + " spelt right, pushed, and may this namespace pull it (imagePullSecrets)?",
         kubectl("describe", name, "pod " + pod)}};
    const std::vector<Advice> more = change_while_suspended("correct spec.trainer.image", job);
    advice.insert(advice.end(), more.begin(), more.end());
    return advice;
  }
  if (reason == train::kInvalidSpec && may_be_edited(job)) {
    return {{"correct the field that is named, or what the cluster allows; the job goes on by itself:",
             kubectl("edit", name, "tj " + name.name)}};
  }
  if (reason == train::kInvalidSpec) return change_while_suspended("correct the field that is named", job);
  if (reason == "CreateContainerConfigError" && is_about_root(wait)) {
    return change_while_suspended(
        "give the image a user by number (USER 65532 in its Dockerfile), or set podTemplate.spec.securityContext: "
        "runAsUser: 65532 for another user, runAsNonRoot: false for root",
        job);
  }
  if (reason == "CreateContainerConfigError" || reason == "CreateContainerError" || reason == "RunContainerError" ||
      reason == "ContainerCreating") {
    return {{"message of the kubelet:", kubectl("describe", name, "pod " + pod)}};
  }
  if (reason == "ClaimMissing") {
    return {{"create the claim \"" + claim_of(job) + "\"; the job then begins by itself. Those that there are:",
             kubectl("get", name, "pvc")}};
  }
  if (reason == "VolumeStillAttached") {
    return {{"if that node will not return, mark it out of service, so that its volumes are detached:",
             "kubectl taint nodes NODE node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"}};
  }
  if (reason == "QuotaExceeded")
    return {{"raise the quota, or end something else:", kubectl("describe", name, "resourcequota")}};
  if (reason == "PriorityClassMissing") {
    const std::vector<Advice> more =
        change_while_suspended("or name another one (spec.scheduling.priorityClassName)", job);
    std::vector<Advice> advice = {
        {"create the class; the job then begins by itself. Those that there are:", "kubectl get priorityclasses"}};
    advice.insert(advice.end(), more.begin(), more.end());
    return advice;
  }
  if (reason == "NameTaken") return {{"delete or rename what is not the job's, or name the TrainJob otherwise", ""}};
  if (reason == "NamespaceTerminating") return {{"create the TrainJob in another namespace", ""}};
  return {};
}

}  // namespace lockstep::diagnose
