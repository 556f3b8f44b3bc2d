#include "operator/train/reconciler.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "operator/kube/api_error.h"
#include "operator/train/desired_network_policy.h"
#include "operator/train/desired_service.h"
#include "operator/train/kueue_reader.h"
#include "operator/train/node_census.h"
#include "operator/train/object_names.h"
#include "operator/train/plan.h"
#include "operator/train/status.h"
#include "runner/base/json.h"
#include "runner/base/mutex.h"
#include "runner/base/plural.h"

namespace lockstep::train {
namespace {

// A pass that has learned something is followed by another one. More than this would mean that a plan never settles.
constexpr int kPassesMax = 6;
// After more conflicts than this in a row the key waits in the workqueue, with backoff, instead of racing a writer that
// never stops.
constexpr int kLostRacesMax = 1;
// A problem of an object that exists by now is remembered for at least this long.
constexpr api::UnixSeconds kProblemKeptSeconds = 10;
// Bounds the memory that whole pods and the answers to them take.
constexpr size_t kRequestsAtOnceMax = 128;
// After a change that the server refused or undid, and after one that another writer was quicker with.
constexpr std::chrono::milliseconds kRefusedWriteRetry{10'000};
constexpr std::chrono::milliseconds kConflictRetry{1'000};
// A claim is not watched; it is read again after this long.
constexpr api::UnixSeconds kClaimKnownSeconds = 10;

// A watch event for a state that a pass has put into the cache starts no new pass (Cache::Change::was_assumed). The
// answer to a patch or a read may contain changes by others, so a pass that puts it into the cache sets
// Outcome::learned, and another pass follows. A status is written with the version that was read: its answer contains
// no changes by others.

// What requests have shown about a job. Losing it costs a request or two.
struct Memory {
  std::string uid;  // of the TrainJob: another one of the same name starts anew
  std::optional<FirstPod> first_pod;
  std::optional<api::TrainJobStatus> unwritten_status;  // it can wait (Plan::status_wait_seconds)
  api::UnixSeconds write_status_at = 0;                 // the unwritten one; the clock has whole seconds
  std::map<std::string, CreateProblem> problems;
  std::set<std::string> missing_pods;
  std::set<std::string> missing_nodes;                     // that the API server does not have
  std::set<std::string> deleted_pods;                      // UIDs; the cache may not have their deletionTimestamp yet
  std::map<std::string, api::UnixSeconds> deletions_seen;  // UID of a pod → when its deletionTimestamp was first seen
  std::optional<SentNumNodes> sent_num_nodes;
  std::optional<bool> claim_exists;
  api::UnixSeconds claim_read_at = 0;
  KueueMemory kueue;
};

std::string object_text(const std::string& kind, const std::string& name) { return kind + " " + name; }

std::string pod_text(const std::string& name) { return object_text("pod", name); }

// Where objects of a kind are on the server, and in which cache.
struct ServedKind {
  const kube::Resource& resource;
  control::Cache<Json>& cache;
  std::shared_ptr<control::Cache<Json>> keeps_cache_alive = {};  // of a kind that may go while this is used
};

// Does `object` have all that `desired` says? Lists are compared whole.
bool has_all(const Json& object, const Json& desired) {
  if (!desired.is_object()) return object == desired;
  return object.is_object() && std::all_of(desired.items().begin(), desired.items().end(), [&](const auto& wanted) {
           const auto at = object.find(wanted.key());
           return at != object.end() && has_all(*at, wanted.value());
         });
}

bool is_pod(const std::string& object_text) { return object_text.starts_with("pod "); }

// Is a pod refused because of what it is: by the API server's validation, or by an admission (LimitRange, policy,
// webhook)? Then a change of the spec, or of what the cluster allows, helps.
bool is_about_the_pod(const Error& error) {
  const bool is_webhook = error.message.find("admission webhook \"") != std::string::npos;  // whatever its code
  if (error.reason == kube::kReasonInvalidObject || is_webhook) return true;
  if (error.code != ErrorCode::kInvalid && error.code != ErrorCode::kForbidden) return false;
  for (const std::string_view other :
       {kube::kReasonExceededQuota, kube::kReasonNoPriorityClass, kube::kReasonNamespaceTerminating,
        kube::kReasonNoPermission, std::string_view("Unauthorized")}) {
    if (error.reason == other) return false;
  }
  return true;
}

CreateProblem refusal(const std::string& object, const Error& error, api::UnixSeconds now) {
  if (error.reason == kube::kReasonNamespaceTerminating) {
    return {CreateProblem::Kind::kNamespaceTerminating, object, error.reason, error.message, now};
  }
  std::string reason = "CreateRefused";
  if (error.reason == kube::kReasonExceededQuota) reason = kQuotaExceeded;
  if (error.reason == kube::kReasonNoPriorityClass) reason = kPriorityClassMissing;
  if (is_pod(object) && is_about_the_pod(error)) reason = kInvalidSpec;
  return {.kind = CreateProblem::Kind::kRefused,
          .object = object,
          .reason = std::move(reason),
          .message = error.message,
          .time = now,
          .is_by_admission = error.reason != kube::kReasonInvalidObject};
}

// A refusal of one pod that the job's other pods would get as well.
bool concerns_all_pods(const Error& error) {
  return error.reason == kube::kReasonExceededQuota || error.reason == kube::kReasonNoPriorityClass;
}

// The identifying labels (job, node rank, attempt) that `object` lacks or has wrong, with their right values.
Json lost_labels(const Json& object, const Json& labels) {
  Json lost = Json::object();
  for (const std::string_view name : {kJobLabel, kNodeRankLabel, kAttemptLabel}) {
    const std::string wanted = text_field(labels, {name});
    if (!wanted.empty() && text_field(object, {"metadata", "labels", name}) != wanted) lost[std::string(name)] = wanted;
  }
  return lost;
}

CreateProblem label_missing(const std::string& object, const Json& lost, const std::string& why, api::UnixSeconds now) {
  const auto text_of_label = [](const auto& label) {
    return label.key() + "=" + label.value().template get<std::string>();
  };
  return {CreateProblem::Kind::kRefused, object, "LabelMissing",
          object + " is this job's and lacks " + joined(lost.items(), ", ", text_of_label) +
              ", by which it is found; " + why,
          now};
}

bool is_refusal(const Error& error) {
  return error.code == ErrorCode::kForbidden || error.code == ErrorCode::kInvalid || error.code == ErrorCode::kNotFound;
}

control::EventText text_of(const PlannedEvent& event) {
  return {.type = event.is_warning ? control::EventText::Type::kWarning : control::EventText::Type::kNormal,
          .reason = event.reason,
          .message = event.message,
          .action = event.action};
}

}  // namespace

struct Reconciler::Impl {
  Impl(Context given_context, Options given_options)
      : context(std::move(given_context)), options(std::move(given_options)) {
    if (!options.now) options.now = [] { return static_cast<api::UnixSeconds>(std::time(nullptr)); };
    if (!options.may_write) options.may_write = [] { return true; };
    const auto workloads = context.optional.find(kube::kKueueWorkloads.front().crd_name());
    kueue.emplace(context.client, workloads == context.optional.end() ? nullptr : workloads->second);
    if (context.nodes != nullptr) census.emplace(context.pods, *context.nodes);
  }

  // Releases the Workloads of a TrainJob of this name that is deleted, is being deleted, or was before this one.
  // Returns when to look again: while one of them still waits for pods.
  Result<std::optional<std::chrono::milliseconds>> release_orphans(const api::ObjectKey& key,
                                                                   const control::ViewPtr<JobView>& job) {
    std::optional<std::chrono::milliseconds> requeue_after;
    if (!options.may_write()) return requeue_after;
    const std::string uid = job == nullptr || job->meta.deletion_time ? "" : job->meta.uid;
    TRY_ASSIGN(const bool waits, kueue->release_orphans(key, uid, context.pods, options.now()));
    if (waits) requeue_after = std::chrono::seconds(kReadAgainSeconds);
    return requeue_after;
  }

  // Only the worker that holds the job's key uses its memory.
  Memory& memory_of(const api::ObjectKey& key, const std::string& uid) {
    const MutexLock lock(mutex);
    Memory& memory = memories[key];
    if (memory.uid != uid) memory = Memory{.uid = uid};
    return memory;
  }

  void forget(const api::ObjectKey& key) {
    context.progress.forget(key);
    context.announcer.forget(key);
    context.metrics.forget(key);
    const MutexLock lock(mutex);
    memories.erase(key);
  }

  Context context;
  Options options;
  std::optional<KueueReader> kueue;  // made by the constructor
  std::optional<NodeCensus> census;  // likewise, where the operator may read nodes
  Mutex mutex;
  std::map<api::ObjectKey, Memory> memories GUARDED_BY(mutex);  // a value: used by the worker that holds the key
};

namespace {

// One pass over one job.
class Pass {
 public:
  Pass(const Reconciler::Context& context, const Reconciler::Options& options, const KueueReader& kueue,
       std::optional<NodeCensus>& census, const api::ObjectKey& key, const JobView& job, Memory& memory)
      : context_(context),
        options_(options),
        kueue_(kueue),
        census_(census),
        key_(key),
        job_(job),
        memory_(memory),
        now_(options.now()),
        job_version_(job.meta.resource_version) {}

  struct Outcome {
    bool learned = false;  // plan again at once
    std::optional<std::chrono::milliseconds> requeue_after;
    std::optional<Error> lost_race;  // the status was written by somebody else meanwhile
  };

  Result<Outcome> run() {
    if (!job_.job.ok()) return report_unreadable(job_.job.error());
    TRY_ASSIGN(Observed observed, observe_now());
    return plan_and_carry_out(observed);
  }

 private:
  // Nothing is done about the job, and its pods go on, until somebody mends its spec.
  Result<Outcome> report_unreadable(const Error& why) {
    TRY_ASSIGN(const std::optional<api::TrainJobStatus> status, status_of_unreadable(job_.unreadable, why, now_));
    if (!status) return Outcome{};
    const Status written = write_status(*status);
    if (!written.ok() && written.error().code == ErrorCode::kConflict) return read_job_again(written.error());
    if (!written.ok() && written.error().code == ErrorCode::kNotFound) return Outcome{};  // deleted meanwhile
    TRY(written);
    options_.logger.warning("a TrainJob cannot be read", {{"job", api::to_string(key_)}, {"error", why.message}});
    context_.metrics.show(key_, *status);
    return Outcome{};
  }

  Result<Outcome> plan_and_carry_out(Observed& observed) {
    TRY_ASSIGN(std::optional<KueueView> kueue, kueue_.read(observed.job, memory_.kueue, now_));
    if (kueue) {
      copy_kueue(*std::move(kueue), observed);
    } else if (may_have_workload(observed.job)) {
      // Workloads cannot be read (the informer logs why): the job may have a reservation that says how many pods it
      // gets.
      return Outcome{.requeue_after = std::chrono::seconds(1)};
    }
    Plan plan = make_plan(observed);
    const api::TrainJobStatus& status = plan.status ? *plan.status : observed.job.status;
    follow(observed, status);
    if (options_.may_write()) context_.announcer.announce(key_, coordinator_news(observed, status));
    if (plan.requeue_at) outcome_.requeue_after = std::chrono::seconds(std::max<int64_t>(*plan.requeue_at - now_, 1));
    if (plan.status) {
      const api::UnixSeconds due = now_ + plan.status_wait_seconds;
      memory_.write_status_at = memory_.unwritten_status ? std::min(memory_.write_status_at, due) : due;
    }
    // The first status does not wait any longer once no action is left.
    const bool first_status_is_complete = plan.actions.empty() && !job_.job->status.phase;
    if ((plan.status || memory_.unwritten_status) && !first_status_is_complete && now_ < memory_.write_status_at) {
      if (plan.status) memory_.unwritten_status = *plan.status;
      requeue_within(std::chrono::seconds(memory_.write_status_at - now_));
    } else if (plan.status || memory_.unwritten_status) {
      const Status written = write_status(status);
      if (!written.ok() && written.error().code == ErrorCode::kConflict) {
        memory_.unwritten_status.reset();
        return read_job_again(written.error());
      }
      if (!written.ok() && written.error().code == ErrorCode::kNotFound) return Outcome{};  // deleted meanwhile
      TRY(written);
      memory_.unwritten_status.reset();
      options_.logger.info(plan.why, {{"job", api::to_string(key_)}, {"phase", phase_text(status)}});
    }
    context_.metrics.show(key_, status);
    // Events are writes, too: an operator that lost the Lease while the status was written must not record any.
    if (options_.may_write()) record_events(observed, plan);
    TRY(carry_out(observed, plan.actions));
    return outcome_;
  }

  void requeue_within(std::chrono::milliseconds time) {
    outcome_.requeue_after = std::min(outcome_.requeue_after.value_or(time), time);
  }

  static std::string phase_text(const api::TrainJobStatus& status) {
    return status.phase ? api::to_string(*status.phase) : "";
  }

  // ---- what is observed ----

  static std::optional<Json> copy_of(const control::ObjectPtr& object) {
    return object ? std::optional<Json>(*object) : std::nullopt;
  }

  Result<Observed> observe_now() {
    ClusterObjects objects{.job = *job_.job};
    const auto pods = context_.pods.find(job_index_value(key_));
    objects.pods.reserve(pods.size());
    for (const auto& pod : pods) objects.pods.push_back(*pod);
    objects.service = copy_of(context_.services.get(key_));
    objects.network_policy = copy_of(context_.network_policies.get(key_));
    if (context_.nodes != nullptr && context_.nodes->synced()) {
      TRY_ASSIGN(objects.nodes, nodes_of_pods(objects.pods));
    }
    Observed observed = observe(std::move(objects), now_);
    if (memory_.unwritten_status) observed.job.status = *memory_.unwritten_status;
    read_optional_kinds(observed);
    observed.settings = options_.settings;
    observed.first_pod = memory_.first_pod;
    forget_settled_problems(observed);
    observed.problems = memory_.problems;
    observed.missing_pods = memory_.missing_pods;
    observed.sent_num_nodes = memory_.sent_num_nodes;
    observed.report = context_.progress.newest(key_);
    mark_deleted_pods(observed.pods);
    note_deletions(observed.pods);
    count_nodes(observed);
    TRY(read_claim(observed));
    return observed;
  }

  void read_optional_kinds(Observed& observed) const {
    for (const std::string& name : kinds_needed(observed.job)) {
      OptionalKind& seen = observed.kinds[name];
      const auto informer = context_.optional.find(name);
      if (informer == context_.optional.end()) continue;
      const control::OptionalInformer::Kind kind = informer->second->wanted();
      seen.is_known = kind.is_known;
      seen.trouble = kind.trouble;
      if (kind.resource != nullptr) seen.api_version = kind.resource->api_version();
      if (!kind.cache) continue;
      seen.is_complete = true;
      for (const control::ObjectPtr& object : kind.cache->find(job_index_value(key_))) seen.objects.push_back(*object);
    }
  }

  // Forgets the problem of an object that exists by now. It does so only after kProblemKeptSeconds, so that this
  // operator does not race another writer that takes the labels away each time.
  void forget_settled_problems(const Observed& observed) {
    const auto forget = [this](const std::string& object) {
      const auto at = memory_.problems.find(object);
      if (at != memory_.problems.end() && at->second.time + kProblemKeptSeconds <= now_) memory_.problems.erase(at);
    };
    for (const PodView& pod : observed.pods) forget(pod_text(pod.meta.name));
    if (observed.service) forget(object_text(kube::kServices.kind, key_.name));
    if (observed.network_policy) forget(object_text(kube::kNetworkPolicies.kind, key_.name));
    for (const auto& [name, kind] : observed.kinds) {
      for (const Json& object : kind.objects) {
        forget(object_text(text_field(object, {"kind"}), text_field(object, {"metadata", "name"})));
      }
    }
  }

  // A pod that this operator has deleted may still be in the cache without a deletionTimestamp. It counts as being
  // deleted, so that the next pass does not delete it again. It gets no deletion time: only the API server knows by
  // when it is to be gone.
  void mark_deleted_pods(std::vector<PodView>& pods) {
    std::set<std::string> still_there;
    for (PodView& pod : pods) {
      if (memory_.deleted_pods.count(pod.meta.uid) == 0) continue;
      still_there.insert(pod.meta.uid);
      pod.deleting = true;
    }
    memory_.deleted_pods = std::move(still_there);
  }

  // By this operator's clock. After a restart it counts from then on.
  void note_deletions(std::vector<PodView>& pods) {
    std::map<std::string, api::UnixSeconds> seen;
    for (PodView& pod : pods) {
      if (!pod.meta.deletion_time) continue;
      const auto before = memory_.deletions_seen.find(pod.meta.uid);
      pod.deletion_seen_at = before == memory_.deletions_seen.end() ? now_ : before->second;
      seen.emplace(pod.meta.uid, pod.deletion_seen_at);
    }
    memory_.deletions_seen = std::move(seen);
  }

  void count_nodes(Observed& observed) {
    if (!census_ || !observed.nodes) return;
    const bool has_silent = std::any_of(observed.nodes->begin(), observed.nodes->end(),
                                        [](const auto& node) { return is_silent(node.second); });
    if (has_silent) observed.nodes_in_use = census_->count(now_);
  }

  Result<std::map<std::string, NodeView>> nodes_of_pods(const std::vector<PodView>& pods) {
    std::map<std::string, NodeView> nodes;
    std::set<std::string> names;
    for (const PodView& pod : pods) {
      if (has_ended(pod)) continue;
      if (!pod.node.empty()) names.insert(pod.node);
      if (!pod.scheduled) names.insert(pod.avoids.begin(), pod.avoids.end());
    }
    for (const std::string& name : names) {
      if (const auto node = context_.nodes->get({.ns = "", .name = name})) {
        nodes.emplace(name, *node);
        memory_.missing_nodes.erase(name);
      } else {
        TRY(look_up_node(name, nodes));
      }
    }
    return nodes;
  }

  // The cache may lag behind, so the API server is asked before a node counts as gone with its pods. By a list, because
  // the operator has no right to get nodes.
  Status look_up_node(const std::string& name, std::map<std::string, NodeView>& nodes) {
    if (memory_.missing_nodes.count(name) > 0) return {};
    TRY_ASSIGN(kube::ObjectList found, context_.client.list(kube::kNodes, {.field_selector = "metadata.name=" + name}));
    if (found.items.empty()) {
      memory_.missing_nodes.insert(name);
    } else {
      nodes.emplace(name, view_of_node(found.items.front()));
      context_.nodes->assume(std::move(found.items.front()));
    }
    return {};
  }

  // Only while pod 0 is still to be made. When a claim is deleted later, the scheduler reports it.
  Status read_claim(Observed& observed) {
    const auto& checkpoint = observed.job.spec.checkpoint;
    const bool has_pod0 = observed.pod(0, observed.job.status.attempt_of(0)) != nullptr;
    if (!checkpoint || has_pod0 || observed.job.spec.suspend) return {};
    const std::string claim = checkpoint->claim_name();
    if (claim.empty()) return {};
    if (!memory_.claim_exists || memory_.claim_read_at + kClaimKnownSeconds <= now_) {
      const Result<Json> found = context_.client.get(kube::kPersistentVolumeClaims, {.ns = key_.ns, .name = claim});
      if (!found.ok() && found.error().code != ErrorCode::kNotFound) return found.error();
      memory_.claim_exists = found.ok();
      memory_.claim_read_at = now_;
    }
    observed.claim_exists = memory_.claim_exists;
    return {};
  }

  void follow(const Observed& observed, const api::TrainJobStatus& status) {
    const PodView* const pod0 = observed.pod(0, status.attempt_of(0));
    const bool answers = pod0 != nullptr && is_trainer_running(*pod0) && !pod0->ip.empty() &&
                         observed.job.spec.trainer.launcher == api::Launcher::kLockstep;
    if (!answers) return context_.progress.follow(key_, {});
    context_.progress.follow(key_, {.job_uid = observed.job.meta.uid,
                                    .num_nodes = agents_max(observed),
                                    .pod_uid = pod0->meta.uid,
                                    .port = observed.job.spec.trainer.status_port,
                                    .ip = pod0->ip,
                                    .is_ready = pod0->ready,
                                    .trains = status.conditions.is_true(api::condition::kRunning)});
  }

  // ---- what is written ----

  Status may_write() const {
    if (options_.may_write()) return {};
    return Error{ErrorCode::kCancelled, "another operator leads by now"};
  }

  // With the resourceVersion that was read: kConflict when somebody else has written since. The API server takes
  // nothing but the status from such a request.
  Status write_status(const api::TrainJobStatus& status) {
    TRY(may_write());
    const Json object = {
        {"apiVersion", api::kApiVersion},
        {"kind", api::kKind},
        {"metadata",
         {{"namespace", key_.ns}, {"name", key_.name}, {"uid", memory_.uid}, {"resourceVersion", job_version_}}},
        {"status", to_json(status)}};
    Result<Json> stored = context_.client.update(kube::kTrainJobs, object, "status");
    if (!stored.ok()) return stored.error();
    job_version_ = api::meta_of(*stored).resource_version;
    context_.jobs.assume(*std::move(stored));
    return {};
  }

  // The cache lags behind, perhaps for long (its watch may hang): the next pass plans from what the API server has now.
  Result<Outcome> read_job_again(const Error& conflict) {
    Result<Json> job = context_.client.get(kube::kTrainJobs, key_);
    if (!job.ok() && job.error().code == ErrorCode::kNotFound) return Outcome{};  // deleted meanwhile
    if (!job.ok()) return job.error();
    context_.jobs.assume(*std::move(job));
    return Outcome{.learned = true, .lost_race = conflict};
  }

  void record_events(const Observed& observed, const Plan& plan) {
    const api::ObjectMeta& meta = observed.job.meta;
    const control::ObjectReference about{.api_version = std::string(api::kApiVersion),
                                         .kind = std::string(api::kKind),
                                         .key = key_,
                                         .uid = meta.uid,
                                         .resource_version = meta.resource_version};
    for (const PlannedEvent& event : plan.events) context_.events.record(about, text_of(event));
    for (const Measurement& measurement : plan.measurements) context_.metrics.count(key_, measurement);
  }

  // Actions of one kind that stand side by side go out together; so do a Service and the first pod of a spec.
  Status carry_out(const Observed& observed, const std::vector<Action>& actions) {
    std::span<const Action> left(actions);
    while (!left.empty() && !is_blocked_) {
      TRY(may_write());
      const std::span<const Action> group = left.first(group_size(left));
      left = left.subspan(group.size());
      for (const Action& action : group) {
        options_.logger.debug("action", {{"job", api::to_string(key_)}, {"why", action.why}});
      }
      TRY(carry_out_group(observed, group));
    }
    return {};
  }

  static const CreatePod* first_pod(const Action& action) {
    const auto* const create = std::get_if<CreatePod>(&action.what);
    return create != nullptr && create->is_first ? create : nullptr;
  }

  static bool is_alone(const Action& action) {
    return std::holds_alternative<CreateObject>(action.what) || std::holds_alternative<ApplyObject>(action.what) ||
           std::holds_alternative<PatchObject>(action.what) || std::holds_alternative<DeleteObject>(action.what) ||
           std::holds_alternative<SendNumNodes>(action.what) || std::holds_alternative<DeleteJob>(action.what) ||
           first_pod(action) != nullptr;
  }

  static size_t group_size(std::span<const Action> actions) {
    const auto* const object = std::get_if<CreateObject>(&actions.front().what);
    const bool is_service = object != nullptr && text_field(object->object, {"kind"}) == kube::kServices.kind;
    if (is_service && actions.size() > 1 && first_pod(actions[1]) != nullptr) return 2;
    if (is_alone(actions.front())) return 1;
    size_t size = 1;
    while (size < actions.size() && actions[size].what.index() == actions.front().what.index()) ++size;
    return size;
  }

  Status carry_out_group(const Observed& observed, std::span<const Action> group) {
    const Action& first = group.front();
    if (const CreatePod* const pod = first_pod(group.back())) {
      const auto* const object = std::get_if<CreateObject>(&first.what);
      return create_first_pod(observed, object == nullptr ? nullptr : &object->object, *pod);
    }
    if (std::holds_alternative<CreatePod>(first.what)) return create_pods(observed, group);
    if (std::holds_alternative<LookUpPod>(first.what)) return look_up_pods(observed, group);
    if (std::holds_alternative<StopServing>(first.what)) return stop_serving(group);
    if (std::holds_alternative<DeletePod>(first.what)) return delete_pods(group);
    return std::visit([&](const auto& what) { return act(observed, what); }, first.what);
  }

  [[nodiscard]] api::ObjectKey pod_key(const std::string& name) const { return {.ns = key_.ns, .name = name}; }

  // Sends a request for each action, in chunks, and takes each answer. A refusal does not stop the other actions; any
  // other error (the server is in trouble) stops after its chunk. Returns the first error.
  template <typename What>
  Status send_group(std::span<const Action> actions, const std::function<kube::Request(const What&)>& request,
                    const std::function<Status(const What&, Result<Json>)>& handle) {
    Status first;
    bool is_in_trouble = false;
    for (size_t begin = 0; begin < actions.size() && !is_in_trouble; begin += kRequestsAtOnceMax) {
      TRY(may_write());  // between the requests another replica may have become the leader
      const size_t end = std::min(begin + kRequestsAtOnceMax, actions.size());
      std::vector<kube::Request> requests;
      for (size_t i = begin; i < end; ++i) requests.push_back(request(std::get<What>(actions[i].what)));
      std::vector<Result<Json>> answers = context_.client.send_all(requests);
      for (size_t i = begin; i < end; ++i) {
        const Status handled = handle(std::get<What>(actions[i].what), std::move(answers[i - begin]));
        if (handled.ok()) continue;
        if (first.ok()) first = handled;
        is_in_trouble = is_in_trouble || !is_refusal(handled.error());
      }
    }
    return first;
  }

  // All other kinds of actions are carried out in groups.
  template <typename What>
  Status act(const Observed&, const What&) {
    return {};
  }

  Status create_first_pod(const Observed& observed, const Json* service, const CreatePod& pod) {
    TRY_ASSIGN(const Json object, desired_pod(observed, pod.parameters));
    std::vector<kube::Request> requests{kube::Create{kube::kPods, object, {.strict_fields = true}}};
    if (service != nullptr) requests.emplace_back(kube::Create{kube::kServices, *service});
    std::vector<Result<Json>> answers = context_.client.send_all(requests);
    creates_at_once_ = 4;  // so that a job of a few pods is made in two rounds
    const Status pod_taken = handle_first_pod(observed, pod, object, std::move(answers.front()));
    if (service != nullptr) TRY(handle_object(observed, *service, std::move(answers.back())));
    return pod_taken;
  }

  Status handle_first_pod(const Observed& observed, const CreatePod& pod, const Json& object, Result<Json> answer) {
    const bool is_refused = !answer.ok() && is_about_the_pod(answer.error());
    const bool is_answered = answer.ok() || answer.error().code == ErrorCode::kExists || is_refusal(answer.error());
    if (is_answered) {
      const std::optional<FirstPod>& before = memory_.first_pod;
      const bool is_again = before && before->generation == pod.generation && !before->refused.empty();
      memory_.first_pod =
          FirstPod{.generation = pod.generation,
                   .refused = is_refused ? answer.error().message : "",
                   .time = options_.now(),
                   .times = is_again ? before->times + 1 : 1,
                   .node_rank = pod.parameters.node_rank,
                   .is_by_admission = is_refused && answer.error().reason != kube::kReasonInvalidObject};
      outcome_.learned = true;
    }
    if (is_refused) {
      is_blocked_ = true;
      return {};
    }
    if (!answer.ok() && (concerns_all_pods(answer.error()) || answer.error().code == ErrorCode::kConflict)) {
      is_blocked_ = true;
    }
    return handle_answer(observed, pod_text(pod.name), kube::kPods, object, std::move(answer), context_.pods);
  }

  Status look_up_pods(const Observed& observed, std::span<const Action> group) {
    return send_group<LookUpPod>(
        group,
        [&](const LookUpPod& action) -> kube::Request {
          return kube::Get{kube::kPods, pod_key(action.name)};
        },
        [&](const LookUpPod& action, const Result<Json>& pod) { return handle_looked_up(observed, action, pod); });
  }

  Status handle_looked_up(const Observed& observed, const LookUpPod& action, const Result<Json>& pod) {
    if (!pod.ok() && pod.error().code != ErrorCode::kNotFound) return pod.error();
    if (pod.ok() && is_controlled_by(api::meta_of(*pod), observed.job.meta)) {
      Json labels = owned_labels(observed.job.meta);
      labels[std::string(kNodeRankLabel)] = std::to_string(action.node_rank);
      labels[std::string(kAttemptLabel)] = std::to_string(action.attempt);
      return adopt_ours(pod_text(action.name), kube::kPods, *pod, labels, context_.pods);
    }
    memory_.missing_pods.insert(action.name);
    outcome_.learned = true;
    return {};
  }

  static bool differs(const Json& stored, const Json& desired) {
    const std::string kind = text_field(desired, {"kind"});
    if (kind == kube::kServices.kind) return service_differs(stored, desired);
    if (kind == kube::kNetworkPolicies.kind) return network_policy_differs(stored, desired);
    return !has_all(stored["spec"], desired["spec"]);
  }

  Result<ServedKind> find_kind(const std::string& api_version, const std::string& kind) const {
    if (kind == kube::kServices.kind) return ServedKind{kube::kServices, context_.services};
    if (kind == kube::kNetworkPolicies.kind) return ServedKind{kube::kNetworkPolicies, context_.network_policies};
    const auto is_it = [&](const kube::Resource& version) {
      return version.kind == kind && version.api_version() == api_version;
    };
    for (const auto& [name, informer] : context_.optional) {
      if (std::none_of(informer->versions().begin(), informer->versions().end(), is_it)) continue;
      const control::OptionalInformer::Kind served = informer->wanted();
      if (served.cache && is_it(*served.resource)) return ServedKind{*served.resource, *served.cache, served.cache};
    }
    return Error{ErrorCode::kRetry, "the cluster does not have " + kind + " of " + api_version + " any more"};
  }
  Result<ServedKind> find_kind(const Json& object) const {
    return find_kind(text_field(object, {"apiVersion"}), text_field(object, {"kind"}));
  }

  Status act(const Observed& observed, const CreateObject& action) {
    TRY_ASSIGN(const ServedKind kind, find_kind(action.object));
    return handle_object(observed, action.object, context_.client.create(kind.resource, action.object));
  }

  Status handle_object(const Observed& observed, const Json& object, Result<Json> answer) {
    TRY_ASSIGN(const ServedKind kind, find_kind(object));
    const api::ObjectKey key = api::key_of(object);
    TRY(handle_answer(observed, object_text(kind.resource.kind, key.name), kind.resource, object, std::move(answer),
                      kind.cache));
    // The actions after it need this object: without it they wait for another pass.
    const control::ObjectPtr made = kind.cache.get(key);
    is_blocked_ = is_blocked_ || made == nullptr || !is_controlled_by(api::meta_of(*made), observed.job.meta);
    return {};
  }

  // The object is there, so that the actions after it do not need this one: a refusal (a policy, a field that cannot be
  // changed) stops nothing.
  Status act(const Observed&, const ApplyObject& action) {
    TRY_ASSIGN(const ServedKind kind, find_kind(action.object));
    const Result<Json> stored = context_.client.apply(kind.resource, action.object);
    if (!stored.ok() && !is_refusal(stored.error())) return stored.error();
    if (!stored.ok())
      warn_of_refusal(object_text(kind.resource.kind, api::meta_of(action.object).name), stored.error());
    if (stored.ok()) kind.cache.assume(*stored);
    // If the answer still differs, something in the cluster changes the object at each write: try again later.
    if (stored.ok() && !differs(*stored, action.object)) {
      outcome_.learned = true;
    } else {
      requeue_within(kRefusedWriteRetry);
    }
    return {};
  }

  void warn_of_refusal(const std::string& object, const Error& error) {
    options_.logger.warning("a change was refused",
                            {{"job", api::to_string(key_)}, {"object", object}, {"error", error.message}});
  }

  Status act(const Observed&, const PatchObject& action) {
    TRY_ASSIGN(const ServedKind kind, find_kind(action.api_version, action.kind));
    const api::ObjectKey key{.ns = key_.ns, .name = action.name};
    const control::ObjectPtr before = kind.cache.get(key);
    const Result<Json> stored = context_.client.merge_patch(kind.resource, key, action.patch, action.subresource);
    const std::string text = object_text(action.kind, action.name);
    if (!stored.ok() && is_refusal(stored.error()) && stored.error().code != ErrorCode::kNotFound) {
      warn_of_refusal(text, stored.error());
      remember(refusal(text, stored.error(), options_.now()));
    }
    // A conflict is no error here: the next pass sees what the other writer wrote. What is not watched, as a prebuilt
    // Workload before it is adopted, brings no pass by itself.
    if (!stored.ok() && stored.error().code == ErrorCode::kConflict) requeue_within(kConflictRetry);
    if (!stored.ok()) return is_gone(stored.error()) ? Status() : Status(stored.error());
    memory_.problems.erase(text);
    KueueReader::assume(*stored, kind.cache);
    const bool has_changed =
        before == nullptr || api::meta_of(*before).resource_version != api::meta_of(*stored).resource_version;
    outcome_.learned = outcome_.learned || has_changed;
    // Something in the cluster undoes the patch as it is stored.
    if (!has_changed) requeue_within(kRefusedWriteRetry);
    return {};
  }

  Status act(const Observed&, const DeleteObject& action) {
    TRY_ASSIGN(const ServedKind kind, find_kind(action.api_version, action.kind));
    const api::ObjectKey key{.ns = key_.ns, .name = action.name};
    const Status deleted = context_.client.remove(kind.resource, key, {.uid = action.uid});
    if (!deleted.ok() && !is_gone(deleted.error())) return deleted;
    kind.cache.assume_deleted(key, action.uid);
    outcome_.learned = true;
    return {};
  }

  // A failure is only logged: the number is sent again while pod 0's report shows another one.
  Status act(const Observed& observed, const SendNumNodes& action) {
    memory_.sent_num_nodes = SentNumNodes{.num_nodes = action.num_nodes, .time = now_};
    const Status sent =
        options_.send_num_nodes(action.ip, observed.job.spec.trainer.status_port, observed.token(), action.num_nodes);
    if (!sent.ok()) {
      options_.logger.warning(
          "numNodes could not be sent to pod 0",
          {{"job", api::to_string(key_)}, {"nodes", action.num_nodes}, {"error", sent.error().message}});
    }
    return {};
  }

  Status stop_serving(std::span<const Action> group) {
    return send_group<StopServing>(
        group,
        [&](const StopServing& action) -> kube::Request {
          return kube::MergePatch{
              kube::kPods, pod_key(action.name),
              Json{{"metadata", {{"uid", action.uid}, {"labels", {{std::string(kServingLabel), nullptr}}}}}}};
        },
        [&](const StopServing&, const Result<Json>& stored) -> Status {
          if (!stored.ok()) return is_gone(stored.error()) ? Status() : Status(stored.error());
          context_.pods.assume(*stored);
          outcome_.learned = true;
          return {};
        });
  }

  Status delete_pods(std::span<const Action> group) {
    return send_group<DeletePod>(
        group,
        [&](const DeletePod& action) -> kube::Request {
          return kube::Remove{kube::kPods, pod_key(action.name), {.uid = action.uid}};
        },
        [&](const DeletePod& action, const Result<Json>& deleted) -> Status {
          if (deleted.ok()) {
            memory_.deleted_pods.insert(action.uid);
            return {};
          }
          if (!is_gone(deleted.error())) return deleted.error();
          context_.pods.assume_deleted(pod_key(action.name), action.uid);
          return {};
        });
  }

  // Names the resourceVersion that was planned from: if ttlSecondsAfterFinished was raised meanwhile, the delete is
  // refused, and planned again.
  Status act(const Observed& observed, const DeleteJob&) {
    const Status deleted = context_.client.remove(kube::kTrainJobs, key_,
                                                  {.uid = observed.job.meta.uid, .resource_version = job_version_});
    if (!deleted.ok() && deleted.error().code == ErrorCode::kConflict) {
      TRY_ASSIGN(outcome_, read_job_again(deleted.error()));
      return {};
    }
    return deleted.ok() || is_gone(deleted.error()) ? Status() : deleted;
  }

  // kNotFound, or kConflict because another object has the name by now: the object that was meant is gone.
  static bool is_gone(const Error& error) {
    return error.code == ErrorCode::kNotFound || error.code == ErrorCode::kConflict;
  }

  // 1, 2, 4, … at a time, as Kubernetes' Job controller makes them: a quota that is used up refuses only about as many
  // as it has admitted, and after an error no more are sent.
  Status create_pods(const Observed& observed, std::span<const Action> actions) {
    TRY_ASSIGN(const Json common, common_pod(observed));
    Status first;
    bool are_all_refused = false;
    for (; !actions.empty() && first.ok() && !are_all_refused;
         creates_at_once_ = std::min(creates_at_once_ * 2, kRequestsAtOnceMax)) {
      TRY(may_write());
      const std::span<const Action> batch = actions.first(std::min(creates_at_once_, actions.size()));
      actions = actions.subspan(batch.size());
      std::vector<kube::Request> requests;
      for (const Action& action : batch) {
        TRY_ASSIGN(Json pod, pod_of_rank(observed, common, std::get<CreatePod>(action.what).parameters));
        requests.emplace_back(kube::Create{kube::kPods, std::move(pod)});
      }
      std::vector<Result<Json>> answers = context_.client.send_all(requests);
      for (size_t i = 0; i < batch.size(); ++i) {
        if (!answers[i].ok() && concerns_all_pods(answers[i].error())) are_all_refused = true;
        const Status taken =
            handle_answer(observed, pod_text(std::get<CreatePod>(batch[i].what).name), kube::kPods,
                          std::get<kube::Create>(requests[i]).object, std::move(answers[i]), context_.pods);
        if (first.ok() && !taken.ok()) first = taken;
      }
    }
    return first;
  }

  // Handles the answer to a create: the object was made, was there already, or there is a problem for the next plan.
  template <typename View>
  Status handle_answer(const Observed& observed, const std::string& text, const kube::Resource& resource,
                       const Json& object, Result<Json> answer, control::Cache<View>& cache) {
    if (answer.ok()) {
      cache.assume(*std::move(answer));
      memory_.problems.erase(text);
      outcome_.learned = true;
      return {};
    }
    const Error& error = answer.error();
    if (is_refusal(error)) {
      CreateProblem problem = refusal(text, error, options_.now());
      if (problem.reason == kInvalidSpec) {
        problem.generation = observed.job.meta.generation;
        const std::string rank = text_field(object, {"metadata", "labels", kNodeRankLabel});
        problem.node_rank = static_cast<int>(parse_number(rank).value_or(0));
      }
      remember(std::move(problem));
      return {};
    }
    // A ResourceQuota lost a race against other creates ("apply your changes to the latest version"): nothing was made,
    // and the next pass sends this create again.
    if (error.code == ErrorCode::kConflict) {
      requeue_within(kConflictRetry);
      return {};
    }
    if (error.code != ErrorCode::kExists) return error;
    const Result<Json> there = context_.client.get(resource, {.ns = key_.ns, .name = api::meta_of(object).name});
    if (!there.ok() && there.error().code == ErrorCode::kNotFound) {
      outcome_.learned = true;  // deleted in between: the next pass creates it
      return {};
    }
    if (!there.ok()) return there.error();
    // It is this job's: the answer to an earlier create was lost, or the cache does not show the object.
    if (is_controlled_by(api::meta_of(*there), observed.job.meta)) {
      const Json* const labels = field(object, {"metadata", "labels"});
      return adopt_ours(text, resource, *there, labels == nullptr ? Json() : *labels, cache);
    }
    remember_namesake(observed, text, api::meta_of(*there));
    return {};
  }

  // The caches find an object by its labels, so missing ones are put back. The problem is remembered and reported, for
  // a policy may take them away again; the next try is when the problem's time has come.
  template <typename View>
  Status adopt_ours(const std::string& text, const kube::Resource& resource, const Json& there, const Json& labels,
                    control::Cache<View>& cache) {
    outcome_.learned = true;
    const Json lost = lost_labels(there, labels);
    if (lost.empty()) {
      memory_.problems.erase(text);
      cache.assume(there);
      return {};
    }
    TRY(may_write());
    const api::ObjectMeta meta = api::meta_of(there);
    const Json patch{{"metadata", {{"uid", meta.uid}, {"labels", lost}}}};
    const Result<Json> stored = context_.client.merge_patch(resource, meta.key(), patch);
    if (!stored.ok() && !is_refusal(stored.error())) return is_gone(stored.error()) ? Status() : stored.error();
    remember(label_missing(text, lost,
                           stored.ok()
                               ? "the operator restored it, and something removed it again: look for a policy or a "
                                 "controller that changes labels"
                               : stored.error().message,
                           options_.now()));
    if (stored.ok()) cache.assume(*stored);
    return {};
  }

  void remember_namesake(const Observed& observed, const std::string& text, const api::ObjectMeta& meta) {
    if (is_of_another_run(meta, observed.job.meta)) {
      remember({CreateProblem::Kind::kPreviousRun, text, "PreviousRunTerminating",
                text + " of an earlier TrainJob of this name is still there; the garbage collector deletes it",
                options_.now()});
      return;
    }
    remember({CreateProblem::Kind::kNameTaken, text, "NameTaken",
              text +
                  " is there already and belongs to somebody else; it is left alone. Delete it, or give the TrainJob "
                  "another name",
              options_.now()});
  }

  // A known problem that has changed in nothing but its time does not cause another pass.
  void remember(CreateProblem problem) {
    const auto [at, is_new] = memory_.problems.try_emplace(problem.object, problem);
    const bool is_again = !is_new && at->second.reason == problem.reason && at->second.generation == problem.generation;
    if (is_again) problem.times = at->second.times + 1;
    if (is_new || at->second.reason != problem.reason || at->second.message != problem.message) outcome_.learned = true;
    at->second = std::move(problem);
  }

  const Reconciler::Context& context_;
  const Reconciler::Options& options_;
  const KueueReader& kueue_;
  std::optional<NodeCensus>& census_;
  const api::ObjectKey& key_;
  const JobView& job_;
  Memory& memory_;
  const api::UnixSeconds now_;
  std::string job_version_;  // the one that was read, or that of this pass's status write
  Outcome outcome_;
  size_t creates_at_once_ = 1;
  bool is_blocked_ = false;  // the other actions of the plan wait for another pass
};

}  // namespace

Reconciler::Reconciler(Context context, Options options)
    : impl_(std::make_unique<Impl>(std::move(context), std::move(options))) {}
Reconciler::~Reconciler() = default;

Result<control::ReconcileResult> Reconciler::reconcile(const api::ObjectKey& key) {
  Pass::Outcome last;
  int lost_races = 0;
  for (int pass = 0; pass < kPassesMax; ++pass) {
    const auto job = impl_->context.jobs.get(key);
    TRY_ASSIGN(const std::optional<std::chrono::milliseconds> requeue_after, impl_->release_orphans(key, job));
    if (job == nullptr) {
      impl_->forget(key);
      return control::ReconcileResult{requeue_after};
    }
    Memory& memory = impl_->memory_of(key, job->meta.uid);
    Result<Pass::Outcome> outcome =
        Pass(impl_->context, impl_->options, *impl_->kueue, impl_->census, key, *job, memory).run();
    if (!outcome.ok()) return outcome.error();
    last = *outcome;
    if (requeue_after) last.requeue_after = std::min(last.requeue_after.value_or(*requeue_after), *requeue_after);
    if (last.lost_race && ++lost_races > kLostRacesMax) return *last.lost_race;
    if (!last.learned) return control::ReconcileResult{last.requeue_after};
  }
  return control::ReconcileResult{std::chrono::seconds(1)};
}

}  // namespace lockstep::train
