#include "tests/operator/train/golden_case.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "operator/api/yaml.h"
#include "operator/train/desired_network_policy.h"
#include "operator/train/desired_pod.h"
#include "operator/train/desired_service.h"
#include "operator/train/kueue_workload.h"
#include "operator/train/object_names.h"
#include "operator/train/plan.h"
#include "runner/base/json.h"

namespace lockstep::train {
namespace {

constexpr const char* kNow = "2026-11-21T10:00:00Z";
constexpr api::UnixSeconds kAgeSeconds = 600;  // of a job that is past its start
constexpr const char* kUid = "11111111-2222-3333-4444-555555555555";

Error bad(const std::string& what) { return Error{ErrorCode::kInvalid, what}; }

Json default_job(api::UnixSeconds now) {
  return {{"apiVersion", "lockstep.dev/v1"},
          {"kind", "TrainJob"},
          {"metadata",
           {{"name", "sasrec"},
            {"namespace", "team-a"},
            {"uid", kUid},
            {"generation", 1},
            {"resourceVersion", "100"},
            {"creationTimestamp", api::format_time(now - kAgeSeconds)}}},
          {"spec",
           {{"trainer",
             {{"image", "lockstep/runner:0.1.0"},
              {"args", Json::array({"run", "sasrec", "--dataset", "/data/ml-100k.inter"})},
              {"numNodes", 2}}}}}};
}

std::string node_of(int node_rank) { return std::string("node-") + static_cast<char>('a' + node_rank % 26); }

Json pod_object(const Json& job, int node_rank, int attempt, api::UnixSeconds now) {
  const api::ObjectMeta meta = api::meta_of(job);
  const std::string name = pod_name(meta.name, node_rank, attempt);
  return {{"metadata",
           {{"name", name},
            {"namespace", meta.ns},
            {"uid", "uid-of-" + name},
            {"creationTimestamp", api::format_time(now - kAgeSeconds)},
            {"labels",
             {{std::string(kJobLabel), meta.name},
              {std::string(kNodeRankLabel), std::to_string(node_rank)},
              {std::string(kAttemptLabel), std::to_string(attempt)},
              {std::string(kServingLabel), "true"}}},
            {"ownerReferences", owner_references(meta)}}}};
}

Json pod_condition(const char* type, const char* status) { return {{"type", type}, {"status", status}}; }

// Kubelets give a reason with False.
Json ready_condition(bool ready) {
  Json condition = pod_condition("Ready", ready ? "True" : "False");
  if (!ready) condition["reason"] = "ContainersNotReady";
  return condition;
}

Json container(const char* state, Json details, bool ready = false) {
  return {{"name", "trainer"}, {"ready", ready}, {"state", {{state, std::move(details)}}}};
}

void set_running(Json& pod, const std::string& node, bool ready, api::UnixSeconds now) {
  pod["spec"]["nodeName"] = node;
  pod["status"] = {{"phase", "Running"},
                   {"podIP", "10.0.0." + std::to_string(1 + node.back() - 'a')},
                   {"startTime", api::format_time(now - kAgeSeconds)},
                   {"conditions", Json::array({pod_condition("PodScheduled", "True"), ready_condition(ready)})},
                   {"containerStatuses",
                    Json::array({container("running", {{"startedAt", api::format_time(now - kAgeSeconds)}}, ready)})}};
}

void set_ended(Json& pod, const std::string& node, int code, api::UnixSeconds now) {
  set_running(pod, node, false, now);
  pod["status"]["phase"] = code == 0 ? "Succeeded" : "Failed";
  pod["status"]["containerStatuses"] = Json::array({container(
      "terminated",
      {{"exitCode", code}, {"reason", code == 0 ? "Completed" : "Error"}, {"finishedAt", api::format_time(now - 1)}})});
}

// What `is:` says. Fields of `and:` come on top.
Status set_pod_state(Json& pod, const std::string& is, const std::string& node, api::UnixSeconds now) {
  if (is == "ready" || is == "deleting" || is == "overdue") {
    set_running(pod, node, true, now);
    if (is == "deleting") pod["metadata"]["deletionTimestamp"] = api::format_time(now + 90);
    if (is == "overdue") pod["metadata"]["deletionTimestamp"] = api::format_time(now - 3600);
  } else if (is == "running") {
    set_running(pod, node, false, now);
  } else if (is == "starting") {
    pod["spec"]["nodeName"] = node;
    pod["status"] = {{"phase", "Pending"},
                     {"startTime", api::format_time(now - 5)},
                     {"conditions", Json::array({pod_condition("PodScheduled", "True"), ready_condition(false)})},
                     {"containerStatuses", Json::array({container("waiting", {{"reason", "ContainerCreating"}})})}};
  } else if (is == "unscheduled") {
    Json condition = pod_condition("PodScheduled", "False");
    condition["reason"] = "Unschedulable";
    condition["message"] = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.";
    pod["status"] = {{"phase", "Pending"}, {"conditions", Json::array({condition})}};
  } else if (is == "gated") {
    TRY(set_pod_state(pod, "unscheduled", node, now));
    pod["spec"]["schedulingGates"] = Json::array({{{"name", "kueue.x-k8s.io/admission"}}});
    Json& condition = pod["status"]["conditions"][0];
    condition["reason"] = "SchedulingGated";
    condition["message"] = "Scheduling is blocked due to non-empty scheduling gates";
  } else if (is == "new") {
    pod["metadata"]["creationTimestamp"] = api::format_time(now - 2);
    pod["status"] = {{"phase", "Pending"}};
  } else if (is == "done") {
    set_ended(pod, node, 0, now);
  } else if (is.substr(0, 7) == "exited ") {
    set_ended(pod, node, static_cast<int>(parse_number(is.substr(7)).value_or(1)), now);
  } else {
    return bad("pods: \"" + is + "\" is no state of a pod that this test knows");
  }
  return {};
}

// "sasrec-1-0" → 1, 0.
Result<std::pair<int, int>> place_of(const std::string& name, const std::string& job) {
  const size_t dash = name.rfind('-');
  if (name.substr(0, job.size() + 1) == job + "-" && dash != std::string::npos && dash > job.size()) {
    const auto node_rank = parse_number(name.substr(job.size() + 1, dash - job.size() - 1));
    const auto attempt = parse_number(name.substr(dash + 1));
    if (node_rank && attempt) return std::pair(static_cast<int>(*node_rank), static_cast<int>(*attempt));
  }
  return bad("pods: " + name + " is no pod of " + job);
}

int num_nodes_of(const Json& job) {
  return static_cast<int>(number_field(job, {"spec", "trainer", "numNodes"}).value_or(1));
}

Settings golden_settings() {
  Settings settings;
  settings.token_key = "golden";
  return settings;
}

// Brings a job to a named point by carrying out its own plans, so that a case starts from a state that the code makes.
class Past {
 public:
  Past(Json job, api::UnixSeconds now) : job_(std::move(job)), now_(now - kAgeSeconds) {}

  Result<Json> bring_to(const std::string& point) {
    if (point == "nothing") return job_;
    if (point == "its wait in a queue") {
      job_["metadata"]["labels"][std::string(kQueueLabel)] = "team-queue";
      TRY(pass());
      return job_;
    }
    TRY(pass());  // first sight
    TRY(pass());  // objects and pods
    if (point == "its start") return job_;
    for (int node_rank = 0; node_rank < num_nodes_of(job_); ++node_rank) {
      Json pod = pod_object(job_, node_rank, 0, now_);
      TRY(set_pod_state(pod, "ready", node_of(node_rank), now_));
      pods_.push_back(std::move(pod));
    }
    TRY(pass());
    if (point == "all is well") return job_;
    if (point == "its suspension") {
      job_["spec"]["suspend"] = true;
      TRY(pass());
      pods_.clear();
      TRY(pass());
      return job_;
    }
    if (point != "its end" && point != "its failure") return bad("after: \"" + point + "\" is not known");
    for (size_t i = 0; i < pods_.size(); ++i) {
      TRY(set_pod_state(pods_[i], point == "its end" ? "done" : "exited 2", node_of(static_cast<int>(i)), now_));
    }
    TRY(pass());
    return job_;
  }

 private:
  Status pass() {
    TRY_ASSIGN(api::TrainJob job, api::trainjob_from_json(job_));
    ClusterObjects objects{.job = std::move(job), .pods = views_of_pods(pods_)};
    objects.service =
        Json{{"metadata", {{"name", "sasrec"}, {"ownerReferences", owner_references(api::meta_of(job_))}}}};
    objects.kueue.version = "v1beta2";
    Observed o = observe(std::move(objects), now_);
    o.settings = golden_settings();
    o.first_pod = FirstPod{o.job.meta.generation, ""};
    const Plan plan = make_plan(o);
    if (plan.status) job_["status"] = api::to_json(*plan.status);
    now_ += 20;
    return {};
  }

  Json job_;
  std::vector<Json> pods_;
  api::UnixSeconds now_;
};

Status add_pods(const Json& yaml, const Json& job, bool all_ready, api::UnixSeconds now, ClusterObjects& objects) {
  std::map<std::string, Json> pods;
  const std::string name = api::meta_of(job).name;
  if (all_ready) {
    for (int node_rank = 0; node_rank < num_nodes_of(job); ++node_rank) {
      Json pod = pod_object(job, node_rank, 0, now);
      TRY(set_pod_state(pod, "ready", node_of(node_rank), now));
      pods[pod_name(name, node_rank, 0)] = std::move(pod);
    }
  }
  if (const Json* given = field(yaml, {"pods"})) {
    for (const auto& [pod_key, words] : given->items()) {
      if (words == "gone") {
        pods.erase(pod_key);
        continue;
      }
      TRY_ASSIGN(const auto place, place_of(pod_key, name));
      Json pod = pod_object(job, place.first, place.second, now);
      const std::string node = text_field(words, {"on"});
      TRY(set_pod_state(pod, words.is_string() ? words.get<std::string>() : text_field(words, {"is"}),
                        node.empty() ? node_of(place.first) : node, now));
      if (const Json* more = field(words, {"and"})) pod.merge_patch(*more);
      pods[pod_key] = std::move(pod);
    }
  }
  for (const auto& [key, pod] : pods) objects.pods.push_back(view_of_pod(pod));
  return {};
}

// Pods of a TrainJob that had the same name and another UID.
Status add_earlier_pods(const Json& yaml, Json job, api::UnixSeconds now, ClusterObjects& objects) {
  const Json* const given = field(yaml, {"earlier pods"});
  if (given == nullptr) return {};
  job["metadata"]["uid"] = "99999999-2222-3333-4444-555555555555";
  for (const auto& [name, is] : given->items()) {
    TRY_ASSIGN(const auto place, place_of(name, api::meta_of(job).name));
    Json pod = pod_object(job, place.first, place.second, now);
    TRY(set_pod_state(pod, is.get<std::string>(), node_of(place.first), now));
    objects.pods.push_back(view_of_pod(pod));
  }
  return {};
}

void add_nodes(const Json& yaml, api::UnixSeconds now, ClusterObjects& objects) {
  const Json* const given = field(yaml, {"nodes"});
  if (given == nullptr) return;
  objects.nodes.emplace();
  for (const auto& [name, state] : given->items()) {
    const std::string word = state.is_string() ? state.get<std::string>() : text_field(state, {"is"});
    if (word == "deleted") continue;
    const bool is_ready = word == "ready" || word == "cordoned" || word == "out of service";
    const char* const ready = is_ready ? "True" : word == "silent" ? "Unknown" : "False";
    Json condition = pod_condition("Ready", ready);
    if (const auto seconds = number_field(state, {"forSeconds"})) {
      condition["lastTransitionTime"] = api::format_time(now - *seconds);
    }
    Json node = {{"metadata", {{"name", name}}}, {"status", {{"conditions", Json::array({condition})}}}};
    if (word == "cordoned") node["spec"]["unschedulable"] = true;
    const std::map<std::string, std::string> taints = {{"unreachable", "node.kubernetes.io/unreachable"},
                                                       {"out of service", "node.kubernetes.io/out-of-service"}};
    if (const auto taint = taints.find(word); taint != taints.end()) {
      node["spec"]["taints"] = Json::array({{{"key", taint->second}, {"effect", "NoExecute"}}});
    }
    objects.nodes->emplace(name, view_of_node(node));
  }
}

Status add_report(const Json& yaml, const Json& job, Observed& o) {
  const Json* const given = field(yaml, {"report"});
  if (given == nullptr) return {};
  const int num_nodes = num_nodes_of(job);
  Json report = {{"generation", uint64_t{1}},
                 {"phase", "Running"},
                 {"nnodes", num_nodes},
                 {"wantedNodes", num_nodes},
                 {"progress",
                  {{"step", 120},
                   {"totalSteps", 1000},
                   {"epoch", 2},
                   {"percent", 12},
                   {"loss", 0.4321},
                   {"samplesPerSecond", 5120.25},
                   {"estimatedRemainingSeconds", 73.4}}}};
  Json patch = *given;
  const std::string pod = patch.is_object() && patch.contains("from") ? patch["from"].get<std::string>() : "sasrec-0-0";
  const int64_t ago = number_field(patch, {"secondsAgo"}).value_or(1);
  if (patch.is_object()) {
    patch.erase("from");
    patch.erase("secondsAgo");
    report.merge_patch(patch);
  }
  TRY_ASSIGN(o.report, parse_run_report(report.dump(), agents_max(o)));
  o.report->pod_uid = "uid-of-" + pod;
  o.report->read_at = o.now - ago;
  return {};
}

Status add_problems(const Json& yaml, Observed& o) {
  using Kind = CreateProblem::Kind;
  const std::map<std::string, Kind> kinds = {{"NameTaken", Kind::kNameTaken},
                                             {"PreviousRun", Kind::kPreviousRun},
                                             {"Refused", Kind::kRefused},
                                             {"NamespaceTerminating", Kind::kNamespaceTerminating}};
  const Json* const given = field(yaml, {"refused"});
  if (given == nullptr) return {};
  for (const auto& [object, words] : given->items()) {
    const auto kind = kinds.find(text_field(words, {"kind"}));
    if (kind == kinds.end()) return bad("refused: " + object + " has no kind that is known");
    o.problems[object] = {.kind = kind->second,
                          .object = object,
                          .reason = text_field(words, {"reason"}),
                          .message = text_field(words, {"message"}),
                          .time = o.now - number_field(words, {"secondsAgo"}).value_or(0),
                          .times = static_cast<int>(number_field(words, {"times"}).value_or(1))};
  }
  return {};
}

// The Workload that the operator itself makes of the job, in the state that `workload` says.
Status add_workload(const Json& yaml, const Json& job, api::UnixSeconds now, KueueView& kueue) {
  const Json* const given = field(yaml, {"workload"});
  if (given == nullptr) return {};
  const std::string is = given->is_string() ? given->get<std::string>() : text_field(*given, {"is"});
  TRY_ASSIGN(api::TrainJob read, api::trainjob_from_json(job));
  Observed o = observe({.job = std::move(read)}, now);
  o.settings = golden_settings();
  TRY_ASSIGN(const Json pod, unadmitted_pod(o));
  Json workload = desired_workload(o.job, o.wanted_pods, pod, kueue);
  workload["metadata"]["uid"] = "uid-of-the-workload";
  workload["metadata"]["resourceVersion"] = "200";
  workload["spec"]["queueName"] = "team-queue";
  const int num_nodes = static_cast<int>(number_field(*given, {"pods"}).value_or(o.wanted_pods));
  std::map<std::string, std::vector<std::array<const char*, 3>>> states = {
      {"new", {}},
      {"waiting", {{"QuotaReserved", "False", "Pending"}}},
      {"reserved", {{"QuotaReserved", "True", "QuotaReserved"}}},
      {"admitted", {{"QuotaReserved", "True", "QuotaReserved"}, {"Admitted", "True", "Admitted"}}},
      {"evicted",
       {{"QuotaReserved", "True", "QuotaReserved"},
        {"Admitted", "True", "Admitted"},
        {"Evicted", "True", "Preempted"}}},
      {"finished", {{"Finished", "True", "Succeeded"}}}};
  const auto state = states.find(is);
  if (state == states.end()) return bad("workload: \"" + is + "\" is no state that this test knows");
  Json conditions = Json::array();
  for (const auto& [type, status, reason] : state->second) {
    conditions.push_back({{"type", type},
                          {"status", status},
                          {"reason", reason},
                          {"message", std::string("Kueue's words on ") + type},
                          {"lastTransitionTime", api::format_time(now - 60)}});
  }
  workload["status"]["conditions"] = conditions;
  if (is == "reserved" || is == "admitted" || is == "evicted") {
    workload["status"]["admission"] = {
        {"clusterQueue", "cluster-queue"},
        {"podSetAssignments", Json::array({{{"name", "main"}, {"count", num_nodes}, {"flavors", {{"cpu", "spot"}}}}})}};
  }
  if (const Json* more = field(*given, {"and"})) workload.merge_patch(*more);
  kueue.workloads.push_back(workload_from_json(std::move(workload)));
  return {};
}

Status add_kueue(const Json& yaml, const Json& job, api::UnixSeconds now, KueueView& kueue) {
  kueue.version = "v1beta2";
  kueue.flavors["spot"] = Json{{"spec", {{"nodeLabels", {{"tier", "spot"}}}}}};
  if (const Json* given = field(yaml, {"kueue"})) {
    if (const std::string absent = text_field(*given, {"absent"}); !absent.empty()) {
      kueue.version.clear();
      kueue.why_absent = absent;
    }
    if (const std::string version = text_field(*given, {"version"}); !version.empty()) kueue.version = version;
    if (const Json* flavors = field(*given, {"flavors"})) {
      kueue.flavors.clear();
      for (const auto& [name, flavor] : flavors->items()) kueue.flavors[name] = Json{{"spec", flavor}};
    }
    if (const Json* priority = field(*given, {"priority"})) {
      kueue.priority = WorkloadPriority{.group = text_field(*priority, {"group"}),
                                        .name = text_field(*priority, {"name"}),
                                        .value = number_field(*priority, {"value"}).value_or(0),
                                        .problem = text_field(*priority, {"problem"})};
    }
  }
  return add_workload(yaml, job, now, kueue);
}

Status check_words(const Json& yaml) {
  static const std::vector<std::string> kKnown = {"what",
                                                  "now",
                                                  "after",
                                                  "job",
                                                  "pods",
                                                  "nodes",
                                                  "nodes in use",
                                                  "report",
                                                  "service",
                                                  "network policy",
                                                  "claim",
                                                  "first pod",
                                                  "refused",
                                                  "missing pods",
                                                  "earlier pods",
                                                  "sent",
                                                  "kinds",
                                                  "show",
                                                  "prometheusNamespace",
                                                  "kueue",
                                                  "workload"};
  for (const auto& [word, value] : yaml.items()) {
    if (std::find(kKnown.begin(), kKnown.end(), word) == kKnown.end()) return bad("\"" + word + "\" is not known here");
  }
  return {};
}

std::optional<Json> surrounding(const Json& yaml, const char* word, bool is_there, const char* kind, const Json& job) {
  const Json* const given = field(yaml, {word});
  if (given == nullptr ? !is_there : *given == "none") return std::nullopt;
  const api::ObjectMeta meta = api::meta_of(job);
  Json object = {
      {"kind", kind},
      {"metadata", {{"name", meta.name}, {"namespace", meta.ns}, {"ownerReferences", owner_references(meta)}}}};
  if (std::string(kind) == "Service") {
    const Result<api::TrainJob> owner = api::trainjob_from_json(job);
    if (owner.ok()) object["spec"] = desired_service(*owner)["spec"];
  } else {
    api::TrainJob owner;
    owner.meta = meta;
    object["spec"] = desired_network_policy(owner, golden_settings())["spec"];
  }
  if (given != nullptr && given->is_object()) object.merge_patch(*given);
  return object;
}

void add_what_was_learned(const Json& yaml, Observed& o) {
  // valid, none, the API server's words, or {refused: words, by: admission, secondsAgo, times, rank}.
  const Json& first_pod = yaml.at("first pod");
  if (first_pod != "none") {
    const std::string words = first_pod.is_string() ? first_pod.get<std::string>() : text_field(first_pod, {"refused"});
    o.first_pod = FirstPod{.generation = o.job.meta.generation,
                           .refused = words == "valid" ? "" : words,
                           .time = o.now - number_field(first_pod, {"secondsAgo"}).value_or(0),
                           .times = static_cast<int>(number_field(first_pod, {"times"}).value_or(1)),
                           .node_rank = static_cast<int>(number_field(first_pod, {"rank"}).value_or(0)),
                           .is_by_admission = text_field(first_pod, {"by"}) == "admission"};
  }
  if (const std::string claim = text_field(yaml, {"claim"}); !claim.empty()) o.claim_exists = claim == "exists";
  for (const Json& name : list_field(yaml, {"missing pods"})) o.missing_pods.insert(name.get<std::string>());
  o.settings = golden_settings();
  if (const Json* where = field(yaml, {"prometheusNamespace"}))
    o.settings.prometheus_namespace = where->get<std::string>();
  if (const Json* sent = field(yaml, {"sent"})) {
    o.sent_num_nodes = SentNumNodes{static_cast<int>(number_field(*sent, {"numNodes"}).value_or(0)),
                                    o.now - number_field(*sent, {"secondsAgo"}).value_or(0)};
  }
}

// kinds: by CRD name, `unknown`, `none`, or {version, trouble, objects: {NAME: fields}}.
void add_kinds(const Json& yaml, const Json& job, Observed& o) {
  for (const std::string& name : kinds_needed(o.job)) o.kinds[name] = {.is_known = true};
  const Json* const kinds = field(yaml, {"kinds"});
  if (kinds == nullptr) return;
  const api::ObjectMeta owner = api::meta_of(job);
  for (const auto& [name, given] : kinds->items()) {
    OptionalKind& kind = o.kinds[name];
    kind.is_known = given != "unknown";
    if (!given.is_object()) continue;
    const std::string group = name.substr(name.find('.') + 1);
    kind.api_version = group + "/" + text_field(given, {"version"});
    kind.trouble = text_field(given, {"trouble"});
    kind.is_complete = kind.trouble.empty();
    const Json* const objects = field(given, {"objects"});
    if (objects == nullptr) continue;
    for (const auto& [object_name, fields] : objects->items()) {
      Json object = {{"apiVersion", kind.api_version},
                     {"kind", text_field(given, {"kind"})},
                     {"metadata",
                      {{"name", object_name},
                       {"namespace", owner.ns},
                       {"uid", "uid-of-" + object_name},
                       {"labels", {{std::string(kJobLabel), owner.name}}},
                       {"ownerReferences", owner_references(owner)}}}};
      object.merge_patch(fields);
      kind.objects.push_back(std::move(object));
    }
  }
}

}  // namespace

Result<GoldenCase> read_golden_case(const std::string& text, const std::string& name) {
  TRY_ASSIGN(const OrderedJson ordered, api::parse_yaml(text, name));
  const Json yaml = Json::parse(ordered.dump());
  TRY(check_words(yaml));
  const std::string now_text = text_field(yaml, {"now"});
  const api::UnixSeconds now = *api::parse_time(now_text.empty() ? kNow : now_text);
  const std::string after = text_field(yaml, {"after"});

  // The plans up to that point have the case's spec without spec.suspend, and with the changes of `before`.
  Json job = default_job(now);
  Json patch = field(yaml, {"job"}) == nullptr ? Json(Json::object()) : *field(yaml, {"job"});
  Json earlier = patch;
  for (const char* later : {"status", "metadata"}) earlier.erase(later);
  if (earlier.contains("spec")) earlier["spec"].erase("suspend");
  if (earlier.contains("before")) earlier.merge_patch({{"spec", earlier["before"]}});
  earlier.erase("before");
  patch.erase("before");
  job.merge_patch(earlier);
  TRY_ASSIGN(job, Past(job, now).bring_to(after.empty() ? "nothing" : after));
  if (after == "its suspension") job["spec"]["suspend"] = true;
  job.merge_patch(patch);

  TRY_ASSIGN(api::TrainJob read, api::trainjob_from_json(job));
  ClusterObjects objects{.job = std::move(read)};
  TRY(add_pods(yaml, job, after == "all is well", now, objects));
  TRY(add_earlier_pods(yaml, job, now, objects));
  add_nodes(yaml, now, objects);
  const bool is_made = !after.empty() && after != "nothing";
  objects.service = surrounding(yaml, "service", is_made, "Service", job);
  objects.network_policy = surrounding(yaml, "network policy", false, "NetworkPolicy", job);
  TRY(add_kueue(yaml, job, now, objects.kueue));

  GoldenCase golden;
  golden.observed = observe(std::move(objects), now);
  if (!yaml.contains("first pod")) golden.observed.first_pod = FirstPod{golden.observed.job.meta.generation, ""};
  Json with_default = yaml;
  if (!yaml.contains("first pod")) with_default["first pod"] = "valid";
  add_what_was_learned(with_default, golden.observed);
  add_kinds(yaml, job, golden.observed);
  golden.observed.nodes_in_use = {
      .all = static_cast<int>(number_field(yaml, {"nodes in use", "all"}).value_or(0)),
      .silent = static_cast<int>(number_field(yaml, {"nodes in use", "silent"}).value_or(0))};
  TRY(add_report(yaml, job, golden.observed));
  TRY(add_problems(yaml, golden.observed));
  golden.shows_objects = text_field(yaml, {"show"}) == "objects";
  return golden;
}

}  // namespace lockstep::train
