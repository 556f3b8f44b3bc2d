#include "operator/train/pod_view.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "operator/train/object_names.h"
#include "operator/train/pod_group.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"
#include "runner/base/utf8.h"

namespace lockstep::train {
namespace {

// The API server sets deletionTimestamp to the end of the grace period; this much later no kubelet is at work on it.
constexpr api::UnixSeconds kDeletionSlackSeconds = 10;

PodPhase phase_of(const std::string& word) {
  if (word == "Pending") return PodPhase::kPending;
  if (word == "Running") return PodPhase::kRunning;
  if (word == "Succeeded") return PodPhase::kSucceeded;
  if (word == "Failed") return PodPhase::kFailed;
  return PodPhase::kUnknown;
}

constexpr size_t kPodTextBytesMax = 4096;
constexpr size_t kAvoidsMax = 256;

std::optional<int> small_number(const std::string& text) {
  const std::optional<int64_t> number = parse_number(text);
  if (!number || *number < 0 || *number > std::numeric_limits<int>::max()) return std::nullopt;
  return static_cast<int>(*number);
}

// A text that may have any size.
std::string cut_text_field(const Json& object, std::initializer_list<std::string_view> path) {
  return cut_utf8(text_field(object, path), kPodTextBytesMax);
}

api::UnixSeconds time_field(const Json& object, std::initializer_list<std::string_view> path) {
  return api::parse_time(text_field(object, path)).value_or(0);
}

// A kubelet gives a reason whenever it sets Ready to False ("ContainersNotReady", "PodCompleted", …). Without one,
// Kubernetes' node controller has set it, for all pods of a node whose kubelet is silent or reports a fault.
bool is_marked_with_its_node(const Json& pod) {
  const Json& conditions = list_field(pod, {"status", "conditions"});
  return std::any_of(conditions.begin(), conditions.end(), [](const Json& condition) {
    return text_field(condition, {"type"}) == "Ready" && text_field(condition, {"status"}) == "False" &&
           text_field(condition, {"reason"}).empty();
  });
}

void read_conditions(const Json& pod, PodView& view) {
  for (const Json& condition : list_field(pod, {"status", "conditions"})) {
    const std::string type = text_field(condition, {"type"});
    const bool is_true = text_field(condition, {"status"}) == "True";
    if (type == "PodScheduled") {
      view.scheduled = is_true;
      if (!is_true) view.unschedulable = cut_text_field(condition, {"message"});
      if (is_true) view.scheduled_at = time_field(condition, {"lastTransitionTime"});
    }
    if (type == "PodReadyToStartContainers") (is_true ? view.is_prepared : view.is_unprepared) = true;
    if (type == "DisruptionTarget" && is_true) {
      view.disruption = cut_text_field(condition, {"reason"});
      if (view.disruption.empty()) view.disruption = type;
      view.disruption_message = cut_text_field(condition, {"message"});
    }
  }
}

std::optional<ContainerEnd> read_end(const Json& status) {
  const Json* const terminated = field(status, {"state", "terminated"});
  if (terminated == nullptr) return std::nullopt;
  return ContainerEnd{.container = cut_text_field(status, {"name"}),
                      .exit_code = static_cast<int>(number_field(*terminated, {"exitCode"}).value_or(0)),
                      .reason = cut_text_field(*terminated, {"reason"}),
                      .message = cut_text_field(*terminated, {"message"}),
                      .time = time_field(*terminated, {"finishedAt"})};
}

// The first container that waits for another reason than "ContainerCreating" and "PodInitializing", which are normal.
void note_waiting(const Json& status, PodView& view) {
  const Json* const waiting = field(status, {"state", "waiting"});
  if (waiting == nullptr || view.waiting) return;
  const std::string reason = cut_text_field(*waiting, {"reason"});
  if (reason.empty() || reason == "ContainerCreating" || reason == "PodInitializing") return;
  view.waiting = Waiting{cut_text_field(status, {"name"}), reason, cut_text_field(*waiting, {"message"})};
}

void read_containers(const Json& pod, PodView& view) {
  const Json& statuses = list_field(pod, {"status", "containerStatuses"});
  view.all_ended = !statuses.empty() && std::all_of(statuses.begin(), statuses.end(), [](const Json& status) {
    return field(status, {"state", "terminated"}) != nullptr;
  });
  for (const Json& status : statuses) {
    if (text_field(status, {"name"}) != kTrainerContainer) continue;
    note_waiting(status, view);
    view.ready = bool_field(status, {"ready"}) && !is_marked_with_its_node(pod);
    view.started = field(status, {"state", "running"}) != nullptr || field(status, {"state", "terminated"}) != nullptr;
    view.running_since = time_field(status, {"state", "running", "startedAt"});
    view.end = read_end(status);
  }
  if (!view.end) {
    for (const Json& status : statuses) note_waiting(status, view);
  }
  // Init containers with restartPolicy Always are sidecars: once the trainer has begun, their end is no failure.
  if (view.started) return;
  for (const Json& status : list_field(pod, {"status", "initContainerStatuses"})) {
    note_waiting(status, view);
    // A sidecar is ready while it runs.
    if (field(status, {"state", "running"}) != nullptr && !bool_field(status, {"ready"})) {
      view.init_container = cut_text_field(status, {"name"});
      view.init_since = time_field(status, {"state", "running", "startedAt"});
    }
    const std::optional<ContainerEnd> end = read_end(status);
    if (end && end->exit_code != 0 && view.phase == PodPhase::kFailed) view.end = end;
  }
}

// "a,b" → a, b
std::set<std::string> names_in(const std::string& text) {
  std::set<std::string> names;
  std::istringstream list(text);
  for (std::string name; names.size() < kAvoidsMax && std::getline(list, name, ',');) {
    names.insert(cut_utf8(name, kPodTextBytesMax));
  }
  return names;
}

}  // namespace

std::optional<TerminationReport> parse_termination_report(const std::string& text) {
  const Result<Json> parsed = parse_json(text, "termination message");
  if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
  const Json& object = *parsed;
  TerminationReport report;
  if (const auto code = number_field(object, {"exitCode"})) report.exit_code = static_cast<int>(*code);
  report.reason = text_field(object, {"reason"});
  report.message = text_field(object, {"message"});
  if (const auto rank = number_field(object, {"rank"}); rank && *rank >= 0) report.rank = static_cast<int>(*rank);
  if (const auto step = number_field(object, {"step"}); step && *step >= 0) report.step = *step;
  report.job_ended = bool_field(object, {"jobEnded"});
  return report;
}

std::vector<PodView> views_of_pods(const std::vector<Json>& pods) {
  std::vector<PodView> views;
  for (const Json& pod : pods) {
    if (PodView view = view_of_pod(pod); view.node_rank >= 0) views.push_back(std::move(view));
  }
  return views;
}

bool has_ended(const PodView& pod) { return pod.phase == PodPhase::kSucceeded || pod.phase == PodPhase::kFailed; }

bool is_trainer_running(const PodView& pod) { return pod.started && !pod.end && !has_ended(pod); }

std::optional<api::UnixSeconds> overdue_at(const PodView& pod) {
  if (!pod.meta.deletion_time) return std::nullopt;
  const bool is_seen = pod.deletion_seen_at != 0;
  const api::UnixSeconds gone_by = is_seen ? pod.deletion_seen_at + pod.deletion_grace_seconds : 0;
  return std::max(*pod.meta.deletion_time, gone_by) + kDeletionSlackSeconds;
}

bool is_overdue(const PodView& pod, api::UnixSeconds now) {
  const std::optional<api::UnixSeconds> at = overdue_at(pod);
  return at && *at <= now;
}

PodView view_of_pod(const Json& pod) {
  PodView view;
  view.meta = api::meta_of(pod);
  const auto label = [&](std::string_view name) { return text_field(pod, {"metadata", "labels", name}); };
  const auto annotation = [&](std::string_view name) { return text_field(pod, {"metadata", "annotations", name}); };
  view.job = {view.meta.ns, label(kJobLabel)};
  view.serving = label(kServingLabel) == "true";
  const std::optional<int> node_rank = small_number(label(kNodeRankLabel));
  const std::optional<int> attempt = small_number(label(kAttemptLabel));
  view.node_rank = attempt ? node_rank.value_or(-1) : -1;
  view.attempt = attempt.value_or(0);
  view.num_nodes = small_number(annotation(kNumNodesAnnotation)).value_or(0);
  view.generation = parse_number(annotation(kGenerationAnnotation)).value_or(0);
  view.avoids = names_in(annotation(kAvoidsAnnotation));
  view.deleting = view.meta.deletion_time.has_value();
  view.deletion_grace_seconds = number_field(pod, {"metadata", "deletionGracePeriodSeconds"}).value_or(0);
  view.phase = phase_of(text_field(pod, {"status", "phase"}));
  view.node = cut_text_field(pod, {"spec", "nodeName"});
  view.ip = cut_text_field(pod, {"status", "podIP"});
  view.started_at = time_field(pod, {"status", "startTime"});
  view.reason = cut_text_field(pod, {"status", "reason"});
  view.message = cut_text_field(pod, {"status", "message"});
  read_conditions(pod, view);
  if (!view.node.empty()) view.scheduled = true;
  view.pod_group = cut_utf8(pod_group_of(pod), kPodTextBytesMax);
  const auto name_of = [](const Json& gate) { return text_field(gate, {"name"}); };
  view.gates = cut_utf8(joined(list_field(pod, {"spec", "schedulingGates"}), ", ", name_of), kPodTextBytesMax);
  read_containers(pod, view);
  if (view.scheduled && view.started_at == 0) view.is_unprepared = true;
  view.meta.labels.clear();
  view.meta.annotations.clear();
  view.meta.finalizers.clear();
  std::erase_if(view.meta.owners, [](const api::OwnerReference& owner) { return !owner.controller; });
  view.meta.owners.shrink_to_fit();
  for (api::OwnerReference& owner : view.meta.owners) {
    for (std::string* const text : {&owner.api_version, &owner.kind, &owner.name, &owner.uid}) {
      *text = cut_utf8(*text, kPodTextBytesMax);
    }
  }
  return view;
}

}  // namespace lockstep::train
