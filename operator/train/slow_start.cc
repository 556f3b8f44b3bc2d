#include "operator/train/slow_start.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "runner/base/json.h"
#include "runner/base/plural.h"

namespace lockstep::train {
namespace {

// Most pods are set up, and have their image, within this time.
constexpr api::UnixSeconds kNormalSeconds = 30;
constexpr size_t kNamedObjectsMax = 6;

// In the order in which a kubelet comes to them.
enum class Stage { kNode, kUnknown, kImage, kInit };

bool is_starting(const PodView* pod) {
  return pod != nullptr && pod->scheduled && !pod->started && !pod->deleting && !has_ended(*pod);
}

Stage stage_of(const PodView& pod) {
  if (!pod.init_container.empty()) return Stage::kInit;
  if (pod.is_unprepared) return Stage::kNode;
  return pod.is_prepared ? Stage::kImage : Stage::kUnknown;
}

api::UnixSeconds since(const PodView& pod) {
  for (const api::UnixSeconds time : {pod.init_since, pod.started_at, pod.scheduled_at}) {
    if (time != 0) return time;
  }
  return pod.meta.created;
}

void add_name(const Json& source, const char* kind, const char* field_name, std::vector<std::string>& names) {
  const std::string name = text_field(source, {field_name});
  if (name.empty() || bool_field(source, {"optional"})) return;
  std::string object = std::string(kind) + " " + name;
  if (std::find(names.begin(), names.end(), object) == names.end()) names.push_back(std::move(object));
}

// "ConfigMap settings", "Secret keys": what must exist before the volumes of the pod can be mounted.
std::vector<std::string> needed_objects(const api::TrainJobSpec& spec, int node_rank) {
  std::vector<std::string> names;
  const auto add_volume = [&names](const Json& volume) {
    if (const Json* map = field(volume, {"configMap"})) add_name(*map, "ConfigMap", "name", names);
    if (const Json* secret = field(volume, {"secret"})) add_name(*secret, "Secret", "secretName", names);
    if (const Json* claim = field(volume, {"persistentVolumeClaim"})) add_name(*claim, "claim", "claimName", names);
    for (const Json& source : list_field(volume, {"projected", "sources"})) {
      if (const Json* map = field(source, {"configMap"})) add_name(*map, "ConfigMap", "name", names);
      if (const Json* secret = field(source, {"secret"})) add_name(*secret, "Secret", "name", names);
    }
  };
  if (spec.checkpoint && node_rank == 0) add_volume(spec.checkpoint->volume);
  for (const Json& volume : list_field(spec.trainer.pod_template, {"spec", "volumes"})) add_volume(volume);
  return names;
}

std::string needed_text(const std::vector<std::string>& names) {
  return names.empty() ? "" : "; its volumes need " + first_of(names, kNamedObjectsMax);
}

std::string message_of(const PodView& pod, const Observed& o) {
  const std::string who = "pod " + pod.meta.name + (pod.node.empty() ? "" : " on " + pod.node);
  const std::string when = " since " + api::format_time(since(pod));
  const std::string describe = "`kubectl describe pod " + pod.meta.name + " -n " + pod.meta.ns + "`";
  const std::string needs = needed_text(needed_objects(o.job.spec, pod.node_rank));
  switch (stage_of(pod)) {
    case Stage::kInit:
      return who + ": init container " + pod.init_container + " runs" + when;
    case Stage::kImage:
      return who + ": the node pulls the image of the next container, or creates it," + when + " (" + describe + ")";
    case Stage::kNode:
      return who + ": container trainer is still being created (volumes, network, device)" + when + needs + "; " +
             describe + " says what is missing";
    case Stage::kUnknown:
      break;
  }
  return who + ": container trainer is still being created (image, volumes, network, device)" + when + needs + "; " +
         describe + " says what is missing";
}

}  // namespace

std::optional<SlowStart> find_slow_start(const std::vector<const PodView*>& pods, const Observed& o, bool is_late) {
  const PodView* slowest = nullptr;
  for (const PodView* const pod : pods) {
    if (!is_starting(pod) || pod->waiting) continue;
    const bool is_normal = since(*pod) == 0 || since(*pod) + kNormalSeconds > o.now;
    if (is_normal && !is_late) continue;
    if (slowest == nullptr || stage_of(*pod) < stage_of(*slowest)) slowest = pod;
  }
  if (slowest == nullptr) return std::nullopt;
  return SlowStart{stage_of(*slowest) == Stage::kNode, message_of(*slowest, o)};
}

std::optional<api::UnixSeconds> next_slow_start(const std::vector<const PodView*>& pods, const Observed& o) {
  std::optional<api::UnixSeconds> next;
  for (const PodView* const pod : pods) {
    if (!is_starting(pod)) continue;
    const api::UnixSeconds at = since(*pod) + kNormalSeconds;
    if (at > o.now) next = std::min(next.value_or(at), at);
  }
  return next;
}

}  // namespace lockstep::train
