#include "operator/train/pod_end.h"

#include <algorithm>
#include <string_view>

#include "operator/train/object_names.h"
#include "runner/contract/exit_code.h"

namespace lockstep::train {
namespace {

// An older report does not prove that a pod is alive.
constexpr api::UnixSeconds kAliveReportSeconds = 30;
// The cache may show a pod on a new node before it shows the node. A node that is still missing this long after the
// pod's start does not exist any more.
constexpr api::UnixSeconds kNodeSeenSeconds = 60;
// When the kubelets of so many nodes are silent, the API server's connection to them is the likely cause, and their
// pods run on: a pod that nobody else reports on is then replaced only after this long.
constexpr api::UnixSeconds kOutageSeconds = 600;
constexpr int kOutageNodesMin = 4;
// How often such an outage, which no event of the job's own objects ends, is looked at again.
constexpr api::UnixSeconds kOutageRequeueSeconds = 10;
// Bytes kept of a termination message that is not an agent's report (an agent's has at most 4,096 bytes of JSON).
constexpr size_t kForeignMessageBytesMax = 512;

// The last lines of a log: the end says more than the beginning.
std::string tail(const std::string& text) {
  if (text.size() <= kForeignMessageBytesMax) return text;
  size_t from = text.size() - kForeignMessageBytesMax;
  while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0U) == 0x80U) ++from;
  return "…" + text.substr(from);
}

// The exit codes of contract/exit_code.h are our programs': another one's 13 may be anything.
std::string reason_of_code(int code, bool is_ours) {
  return is_ours || code == 0 || code > kSignalCodes ? exit_reason(code) : exit_reason(code_of(ExitCode::kCrash));
}

void add_container_end(const PodView& pod, const Observed& o, PodEnd& end) {
  if (!pod.end) return;
  const bool is_ours = o.job.spec.trainer.launcher == api::Launcher::kLockstep;
  const ContainerEnd& container = *pod.end;
  end.exit_code = container.exit_code;
  if (container.time != 0) end.time = container.time;
  const bool killed_for_memory = container.reason == "OOMKilled";
  end.reason =
      killed_for_memory ? exit_reason(code_of(ExitCode::kOutOfMemory)) : reason_of_code(container.exit_code, is_ours);
  if (!container.reason.empty()) end.pod_reasons.push_back(container.reason);
  end.is_of_trainer = container.container == kTrainerContainer;
  if (!end.is_of_trainer) {
    end.reason = "InitContainerFailed";
    end.message = "init container " + container.container + ": " + tail(container.message);
    return;
  }
  const std::optional<TerminationReport> report = is_ours ? parse_termination_report(container.message) : std::nullopt;
  if (report) {
    end.message = report->message;
    end.rank = report->rank;
    end.step = report->step;
    end.job_ended = report->job_ended;
    if (report->reason == kConfigurationChanged) end.reason = report->reason;
  } else if (killed_for_memory) {  // a killed program writes no message: its last output is about something else
    end.message = "the kernel ended the container, which had used up its memory limit";
  } else if (!container.message.empty()) {
    end.message = tail(container.message);
  }
}

bool is_stop_code(int code) {
  constexpr int kKilled = 137;  // after the grace period
  return is_stop(code) || code == kKilled || code == code_of(ExitCode::kDone);
}

// Does pod 0 report, and so knows whose heartbeats still come?
bool has_fresh_report(const Observed& o) { return o.report && o.report->read_at + kAliveReportSeconds > o.now; }

// Until when pod 0's report proves that the pod lives, because it has the pod as a member of the group; nullopt: no
// report does.
std::optional<api::UnixSeconds> known_to_live_until(const PodView& pod, const Observed& o) {
  if (!o.report) return std::nullopt;
  const bool is_member = std::any_of(o.report->agents.begin(), o.report->agents.end(), [&](const ReportedAgent& agent) {
    return agent.node_rank == pod.node_rank && agent.attempt == pod.attempt && agent.state == "member";
  });
  return is_member ? std::optional(o.report->read_at + kAliveReportSeconds) : std::nullopt;
}

bool is_outage(const Observed& o) {
  return o.nodes_in_use.all >= kOutageNodesMin && 2 * o.nodes_in_use.silent > o.nodes_in_use.all;
}

// Why the node of a pod counts as lost, and from when on.
struct NodeLoss {
  std::string why;
  api::UnixSeconds from = 0;
};

// The kubelet does not answer. While pod 0 reports, the pod's peers know whether it lives, so its node counts as lost
// at once. Otherwise nobody else knows, and most kubelets come back: there the node counts as lost only after
// health.notReadyTimeoutSeconds. nullopt: nobody says since when the kubelet is silent. If it stays so, Kubernetes
// deletes the pod, which then counts as lost when it is overdue.
std::optional<NodeLoss> silent_node(const PodView& pod, const NodeView& node, const Observed& o) {
  NodeLoss loss{"node " + pod.node + (node.unreachable ? " is unreachable" : " is not ready"), 0};
  if (has_fresh_report(o)) return loss;
  if (node.not_ready_since == 0) return std::nullopt;
  const int timeout = o.job.spec.health.not_ready_timeout_seconds;
  loss.why += ", for longer than health.notReadyTimeoutSeconds (" + std::to_string(timeout) + ")";
  loss.from = node.not_ready_since + timeout;
  if (is_outage(o)) loss.from = std::max(loss.from, node.not_ready_since + kOutageSeconds);
  return loss;
}

// nullopt: the node exists and answers, or its state is not known.
std::optional<NodeLoss> loss_of_node(const PodView& pod, const Observed& o) {
  if (!o.nodes || pod.node.empty()) return std::nullopt;
  std::optional<NodeLoss> loss;
  const auto node = o.nodes->find(pod.node);
  if (node == o.nodes->end()) {
    if (pod.started_at == 0) return std::nullopt;
    loss = {"node " + pod.node + " does not exist any more", pod.started_at + kNodeSeenSeconds};
  } else if (node->second.out_of_service) {
    loss = {"node " + pod.node + " is out of service", 0};
  } else if (node->second.unreachable || (!node->second.ready && !pod.ready && !pod.deleting)) {
    // A kubelet that itself calls its node not ready, as in a graceful shutdown, still ends pods that are being
    // deleted.
    loss = silent_node(pod, node->second, o);
  }
  if (loss) loss->from = std::max(loss->from, known_to_live_until(pod, o).value_or(0));
  return loss;
}

// Why no kubelet runs the pod any more; nullopt: one may.
std::optional<std::string> why_lost(const PodView& pod, const Observed& o) {
  const std::optional<NodeLoss> loss = loss_of_node(pod, o);
  if (loss && loss->from <= o.now) return loss->why;
  if (!is_overdue(pod, o.now)) return std::nullopt;
  return "it was to be gone by " + api::format_time(*pod.meta.deletion_time) + ", and its kubelet does not answer";
}

// The pod failed as a whole, and not by the end of its program. The condition DisruptionTarget tells what the cluster
// did to a pod that ran (node pressure, a shutdown) from what it did itself: an eviction without it is for the pod's
// own limit of local storage. All other reasons without it are a kubelet's refusals, at the start of the pod or of the
// kubelet. Its eviction manager refuses with the reason Evicted, too, and these words.
EndKind kind_of_failed_pod(const PodView& pod) {
  if (!pod.disruption.empty() || pod.reason.empty()) return EndKind::kDisrupted;
  const bool is_eviction = pod.reason == "Evicted" && pod.message.find("The node had condition") == std::string::npos;
  return is_eviction ? EndKind::kOverLimit : EndKind::kRefused;
}

PodEnd failed_as_a_pod(const PodView& pod, const Observed& o) {
  PodEnd end = new_end(kind_of_failed_pod(pod), pod, o.now);
  add_container_end(pod, o, end);
  if (!pod.disruption.empty()) {
    end.reason = pod.disruption;
    end.pod_reasons.push_back("DisruptionTarget");
    end.message = pod.disruption_message;
  }
  if (!pod.reason.empty()) {
    end.reason = pod.reason;
    end.message = pod.message.empty() ? end.message : pod.message;
  }
  if (end.reason.empty()) end.reason = "PodFailed";
  end.pod_reasons.push_back(end.reason);
  return end;
}

}  // namespace

PodEnd new_end(EndKind kind, const PodView& pod, api::UnixSeconds time) {
  PodEnd end;
  end.kind = kind;
  end.node_rank = pod.node_rank;
  end.attempt = pod.attempt;
  end.pod = pod.meta.name;
  end.node = pod.node;
  end.time = time;
  return end;
}

std::optional<PodEnd> find_end(const PodView& pod, const Observed& o) {
  // When the cause is not the program, the kubelet sets the pod's status.reason: Evicted, NodeShutdown, OutOfcpu, …
  const bool has_failed = pod.phase == PodPhase::kFailed && (!pod.reason.empty() || !pod.end);
  const bool is_disrupted = !pod.disruption.empty() || has_failed;
  const bool trainer_ended = pod.end && pod.end->container == kTrainerContainer;
  const bool ended_with_0 = pod.phase == PodPhase::kSucceeded || (trainer_ended && pod.end->exit_code == 0);
  // Our agent ends with 0 only when the run is done; another program may do so, too, when it is told to stop.
  const bool may_be_stopped = o.job.spec.trainer.launcher != api::Launcher::kLockstep && (is_disrupted || pod.deleting);
  if (ended_with_0 && !may_be_stopped) {
    PodEnd end = new_end(EndKind::kDone, pod, o.now);
    add_container_end(pod, o, end);
    end.exit_code = 0;
    return end;
  }
  if (is_disrupted) return failed_as_a_pod(pod, o);
  if (pod.end && !(pod.deleting && is_stop_code(pod.end->exit_code))) {
    PodEnd end = new_end(EndKind::kExit, pod, o.now);
    add_container_end(pod, o, end);
    return end;
  }
  if (const std::optional<std::string> lost = why_lost(pod, o)) {
    PodEnd end = new_end(EndKind::kNodeLost, pod, o.now);
    end.reason = "NodeLost";
    end.pod_reasons = {"NodeLost"};
    end.message = *lost;
    return end;
  }
  if (!pod.deleting) return std::nullopt;
  PodEnd end = new_end(EndKind::kDeleted, pod, o.now);
  end.reason = "PodDeleted";
  end.pod_reasons = {"PodDeleted"};
  end.message = "somebody deleted the pod";
  return end;
}

bool is_lost(const PodView& pod, const Observed& o) { return why_lost(pod, o).has_value(); }

std::optional<api::UnixSeconds> when_believed_lost(const PodView& pod, const Observed& o) {
  const std::optional<NodeLoss> loss = loss_of_node(pod, o);
  if (!loss || loss->from <= o.now) return std::nullopt;
  return is_outage(o) ? std::min(loss->from, o.now + kOutageRequeueSeconds) : loss->from;
}

PodEnd end_of_missing_pod(const std::string& pod, int node_rank, int attempt, api::UnixSeconds now) {
  PodEnd end;
  end.kind = EndKind::kDeleted;
  end.node_rank = node_rank;
  end.attempt = attempt;
  end.pod = pod;
  end.reason = "PodDeleted";
  end.pod_reasons = {"PodDeleted"};
  end.message = "the pod is gone; somebody deleted it";
  end.time = now;
  return end;
}

std::string describe(const PodEnd& end) {
  std::string text = "Pod " + end.pod;
  if (!end.node.empty()) text += " on " + end.node;
  if (end.rank) text += ", rank " + std::to_string(*end.rank) + ",";
  if (end.kind == EndKind::kExit || end.kind == EndKind::kDone) {
    text += " ended with " + std::to_string(end.exit_code.value_or(0)) + " (" + end.reason + ")";
    if (end.step) text += " at step " + std::to_string(*end.step);
  } else if (end.kind == EndKind::kRefused) {
    text += " was refused by its kubelet (" + end.reason + ")";
  } else if (end.kind == EndKind::kNotStarted) {
    text += " did not start (" + end.reason + ")";
  } else {
    text += " was lost (" + end.reason + ")";
  }
  if (!end.message.empty()) text += ": " + end.message;
  // Callers append to the text.
  while (!text.empty() && std::string_view(". \n").find(text.back()) != std::string_view::npos) text.pop_back();
  return text;
}

}  // namespace lockstep::train
