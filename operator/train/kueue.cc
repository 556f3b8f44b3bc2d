#include "operator/train/kueue.h"

#include <algorithm>
#include <utility>

#include "operator/kube/resource.h"
#include "operator/train/object_names.h"
#include "operator/train/observed.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"

namespace lockstep::train {
namespace {

using api::ConditionStatus;

// On a prebuilt Workload that we deactivated because the job cannot run, so that only what we did is undone.
constexpr std::string_view kDeactivatedAnnotation = "lockstep.dev/deactivated";
// Seconds between two looks at what is not watched: a prebuilt Workload or a flavour that does not exist yet.
constexpr api::UnixSeconds kRequeueSeconds = 10;

std::string in_quotes(const std::string& text) { return "\"" + text + "\""; }
// "Preempted: no quota is left" of a condition; one of them may be empty.
std::string words_of(const api::Condition& condition) {
  if (condition.message.empty()) return condition.reason;
  return condition.reason + ": " + condition.message;
}

// The beginning of a patch: it is refused when the Workload has changed since it was read.
Json with_version(const Workload& workload) {
  return {{"metadata", {{"uid", workload.meta.uid}, {"resourceVersion", workload.meta.resource_version}}}};
}

std::string api_version_of(const Workload& workload) { return text_field(workload.object, {"apiVersion"}); }

Action patch(const Workload& workload, Json body, std::string why, std::string subresource = "") {
  return {PatchObject{api_version_of(workload), kube::kKueueWorkloads.front().kind, workload.meta.name, std::move(body),
                      std::move(subresource)},
          std::move(why)};
}

Action remove(const Workload& workload, std::string why) {
  return {
      DeleteObject{api_version_of(workload), kube::kKueueWorkloads.front().kind, workload.meta.name, workload.meta.uid},
      std::move(why)};
}

Action remove_finalizer(const Workload& workload, std::string why) {
  Json left = Json::array();
  for (const std::string& finalizer : workload.meta.finalizers) {
    if (finalizer != kWorkloadFinalizer) left.push_back(finalizer);
  }
  Json body = with_version(workload);
  body["metadata"]["finalizers"] = std::move(left);
  return patch(workload, std::move(body), std::move(why));
}

bool has_finalizer(const api::ObjectMeta& workload) {
  const std::vector<std::string>& all = workload.finalizers;
  return std::find(all.begin(), all.end(), kWorkloadFinalizer) != all.end();
}

// Collects the changes of one status write. It contains all conditions, because a merge patch replaces whole lists.
class StatusChange {
 public:
  StatusChange(const Workload& workload, api::UnixSeconds now)
      : workload_(workload), conditions_(workload.conditions), now_(now) {}

  void set(std::string type, ConditionStatus status, std::string reason, std::string message) {
    conditions_.set({.type = std::move(type),
                     .status = status,
                     .reason = std::move(reason),
                     .message = std::move(message),
                     .observed_generation = workload_.meta.generation},
                    now_);
  }
  Json& status() { return status_; }

  Action write(std::string why) {
    Json body = with_version(workload_);
    status_["conditions"] = to_json(conditions_);
    body["status"] = status_;
    return patch(workload_, std::move(body), std::move(why), "status");
  }

 private:
  const Workload& workload_;
  api::Conditions conditions_;
  api::UnixSeconds now_;
  Json status_ = Json::object();
};

// Gives the quota of an evicted job back. Called after its last pod has ended, because others may use the quota at
// once; of a job that runs in another cluster, also when its status has not come from there in time.
Action give_back(const Workload& workload, const std::string& version, api::UnixSeconds now) {
  const api::Condition& evicted = *workload.conditions.find("Evicted");
  StatusChange change(workload, now);
  // After these two we ask Kueue to queue the job again at once; after any other reason Kueue does so itself, when it
  // has waited.
  const bool is_requeued = evicted.reason == "Preempted" || evicted.reason == "NodeFailures";
  change.set("Requeued", is_requeued ? ConditionStatus::kTrue : ConditionStatus::kFalse, evicted.reason,
             evicted.message);
  change.set("QuotaReserved", ConditionStatus::kFalse, "Pending", evicted.message);
  if (const api::Condition* const admitted = workload.conditions.find("Admitted"); admitted != nullptr) {
    if (admitted->status == ConditionStatus::kTrue) {
      // What spec.maximumExecutionTimeSeconds is compared with. The older version spells it so.
      const char* const total =
          version == "v1beta1" ? "accumulatedPastExexcutionTimeSeconds" : "accumulatedPastExecutionTimeSeconds";
      change.status()[total] = number_field(workload.object, {"status", total}).value_or(0) +
                               std::max<int64_t>(0, now - admitted->last_transition_time);
    }
    change.set("Admitted", ConditionStatus::kFalse, "NoReservation", "The workload has no reservation");
  }
  change.set("PodsReady", ConditionStatus::kFalse, "WaitForStart", "Not all pods are ready or succeeded");
  change.status()["admission"] = nullptr;
  change.status()["reclaimablePods"] = nullptr;
  return change.write("it was evicted (" + words_of(evicted) + "): its quota is given back");
}

// Why a Workload that is not admitted waits, in Kueue's words.
void say_why_it_waits(const Workload& w, const std::string& queue, QueueDecision& d) {
  d.reason = "Queued";
  d.message = "The job waits in queue " + in_quotes(queue) + ": ";
  if (!w.is_active) {
    const api::Condition* const evicted = w.conditions.find("Evicted");
    d.reason = "Deactivated";
    d.message += "Workload " + w.meta.name + " is deactivated" +
                 (evicted == nullptr ? std::string() : " (" + words_of(*evicted) + ")") +
                 "; it waits until its spec.active is true.";
    return;
  }
  const api::Condition* const reserved = w.conditions.find("QuotaReserved");
  if (reserved == nullptr) {
    d.message += "Kueue has said nothing of Workload " + w.meta.name + " yet.";
    return;
  }
  if (reserved->status != ConditionStatus::kTrue) {
    if (reserved->reason == "Inadmissible" || reserved->reason == "Misconfigured") d.reason = "Inadmissible";
    d.message += reserved->message.empty() ? reserved->reason : reserved->message;
    if (const api::Condition* const evicted = w.conditions.find("Evicted"); w.is_evicted()) {
      d.message += " (evicted: " + words_of(*evicted) + ")";
    }
    d.message += ".";
    return;
  }
  d.reason = "QuotaReserved";
  d.message += "quota is reserved in cluster queue " + in_quotes(w.cluster_queue);
  std::vector<std::string> pending;
  for (const Json& check : w.checks) {
    if (text_field(check, {"state"}) == "Ready") continue;
    const std::string words = text_field(check, {"message"});
    pending.push_back(text_field(check, {"name"}) + (words.empty() ? "" : " (" + words + ")"));
  }
  d.message +=
      pending.empty() ? "; the admission comes next." : "; admission checks are pending: " + joined(pending) + ".";
}

std::string queue_of(const api::TrainJob& job, const Workload* workload) {
  const std::string queue = label_of(job.meta, kQueueLabel);
  return queue.empty() && workload != nullptr ? workload->queue : queue;
}

class Decision {
 public:
  Decision(const api::TrainJob& job, const KueueView& kueue, const QueueInput& input)
      : job_(job),
        kueue_(kueue),
        input_(input),
        prebuilt_(label_of(job.meta, kPrebuiltWorkloadLabel)),
        workload_(workload_of(job, kueue)),
        queue_(queue_of(job, workload_)) {}

  QueueDecision run() {
    delete_other_workloads();
    if (!has_queue(job_) && (workload_ == nullptr || !workload_->is_reserved())) {
      // The label was removed. The job keeps its reservation for as long as it runs.
      if (workload_ != nullptr) delete_workload("the job has no queue any more");
      return std::move(d_);
    }
    d_.is_queued = true;
    if (!input_.wants_to_run) {
      leave_queue("the job is suspended and has no pods");
    } else if (kueue_.version.empty()) {
      go_on_without_kueue();
    } else if (workload_ == nullptr) {
      ask();
    } else if (prepare()) {
      follow_admission();
      if (!d_.priority_problem.empty()) d_.message += " " + d_.priority_problem;
    }
    return std::move(d_);
  }

 private:
  [[nodiscard]] bool has_pods() const { return !input_.node_ranks_with_pods.empty(); }
  // A label of the job may name a Workload that is somebody else's.
  [[nodiscard]] bool is_ours(const Workload& workload) const { return is_controlled_by(workload.meta, job_.meta); }
  // In a worker cluster the Workload was copied by MultiKueue. Its hash may be of another operator version, so it is
  // not compared.
  [[nodiscard]] bool is_made_by_others() const { return workload_->is_prebuilt() || prebuilt_ == workload_->meta.name; }

  void wait(std::string reason, std::string message) {
    d_.may_run = false;
    d_.reason = std::move(reason);
    d_.message = std::move(message);
  }
  void write(Action write) { d_.writes.push_back(std::move(write)); }
  void requeue() { d_.requeue_at = input_.now + kRequeueSeconds; }

  // A job has one Workload. It owns another one only if its label named another prebuilt Workload before; that one is
  // deleted.
  void delete_other_workloads() {
    for (const Workload& other : kueue_.workloads) {
      if (!is_ours(other) || (workload_ != nullptr && other.meta.name == workload_->meta.name)) continue;
      if (other.meta.deletion_time) {
        if (!has_pods() && has_finalizer(other.meta))
          write(remove_finalizer(other, "it is not the job's Workload any more"));
      } else {
        write(remove(other, "it is not the job's Workload any more"));
      }
    }
  }

  // Of a job that is suspended, held, or too large for its prebuilt Workload: its Workload is deleted (a prebuilt one
  // is deactivated). When the job is resumed it queues anew, with the spec that it has then. A Workload that somebody
  // else has deactivated is kept, because the next one would be active.
  void leave_queue(const std::string& why) {
    d_.may_run = false;
    if (workload_ == nullptr || has_pods() || !is_ours(*workload_)) return;
    if (!workload_->is_prebuilt() && (workload_->is_active || workload_->meta.deletion_time)) {
      return delete_workload(why);
    }
    if (workload_->is_active) {
      Json body = with_version(*workload_);
      body["metadata"]["annotations"] = {{std::string(kDeactivatedAnnotation), why}};
      body["spec"] = {{"active", false}};
      write(patch(*workload_, std::move(body), why));
    } else if (workload_->is_evicted() && workload_->is_reserved()) {
      give_back_all();
    }
  }

  void give_back_all() { write(give_back(*workload_, kueue_.version, input_.now)); }

  // Kueue is gone. A running job goes on, because nobody could admit it again after a stop.
  void go_on_without_kueue() {
    const std::string what = kueue_.why_absent.empty() ? "Kueue is not there" : kueue_.why_absent;
    const std::string waits_for =
        queue_.empty() ? "its prebuilt Workload " + in_quotes(prebuilt_) : "queue " + in_quotes(queue_);
    if (has_pods() && !input_.was_stopped) {
      d_.reason = "QueueUnavailable";
      d_.message = "The job goes on with the pods that it has, and gets no others: " + what + ".";
      d_.no_new_pods = what;
      return;
    }
    wait("QueueUnavailable", "The job waits for " + waits_for + ": " + what + ".");
  }

  void ask() {
    if (!prebuilt_.empty()) {
      requeue();
      return wait("WorkloadMissing", "The job waits for its prebuilt Workload " + in_quotes(prebuilt_) +
                                         ", which is not there (label " + std::string(kPrebuiltWorkloadLabel) + ").");
    }
    const std::string name = workload_name(job_.meta);
    if (has_pods()) {
      return wait("NotAdmitted", "The job has no Workload in queue " + in_quotes(queue_) +
                                     "; its pods end first, and then it asks for them.");
    }
    if (input_.write_problem != nullptr) {
      return wait("WorkloadRefused",
                  "The job cannot wait in queue " + in_quotes(queue_) + ": " + *input_.write_problem + ".");
    }
    if (kueue_.priority && !kueue_.priority->problem.empty()) {
      requeue();
      return wait(std::string(kPriorityClassMissing),
                  "The job cannot wait in queue " + in_quotes(queue_) + ": " + kueue_.priority->problem + ".");
    }
    wait("Queued", "The job waits in queue " + in_quotes(queue_) + ": Workload " + name + " is made now.");
    if (!input_.pod) return;
    write({CreateObject{desired_workload(job_, input_.wanted_pods, *input_.pod, kueue_)},
           "the job asks queue " + queue_ + " for " + plural(input_.wanted_pods, "pod")});
  }

  // False: the job cannot run with this Workload.
  bool prepare() {
    const Workload& w = *workload_;
    if (w.meta.deletion_time) {
      wait("WorkloadDeleted", "Workload " + w.meta.name + " is being deleted; " +
                                  (has_pods() ? "the job's pods end first." : "the job asks again when it is gone."));
      requeue();
      if (!has_pods() && has_finalizer(w.meta) && is_ours(w)) {
        write(remove_finalizer(w, "it is being deleted, and the job has no pods"));
      }
      return false;
    }
    if (!is_ours(w)) return adopt();
    if (w.is_finished()) {
      wait("WorkloadFinished", "Workload " + w.meta.name + " was declared finished (" +
                                   words_of(*w.conditions.find("Finished")) +
                                   "), though the job is not; delete it, and the job queues again.");
      return false;
    }
    // A Workload that somebody has deactivated is replaced when it is active again: the next one would be active.
    if (is_made_by_others() ? !fits_prebuilt() : w.is_active && is_outdated()) return false;
    if (!w.is_active && w.meta.annotations.count(std::string(kDeactivatedAnnotation)) > 0) {
      Json body = with_version(w);
      body["metadata"]["annotations"] = {{std::string(kDeactivatedAnnotation), nullptr}};
      body["spec"] = {{"active", true}};
      write(patch(w, std::move(body), "the job may run again"));
    }
    follow_labels();
    return true;
  }

  bool adopt() {
    const Workload& w = *workload_;
    requeue();  // it is watched by its labels, which it does not have yet
    if (w.meta.controller() != nullptr) {
      wait("WorkloadTaken", "Workload " + in_quotes(w.meta.name) + " belongs to " + w.meta.controller()->kind + " " +
                                w.meta.controller()->name + ", not to this job; name another one in the label " +
                                std::string(kPrebuiltWorkloadLabel) + ".");
      return false;
    }
    if (input_.write_problem != nullptr) {
      wait("WorkloadRefused",
           "The job cannot take over the prebuilt Workload " + w.meta.name + ": " + *input_.write_problem + ".");
      return false;
    }
    wait("Queued", "The job takes over the prebuilt Workload " + w.meta.name + ".");
    Json body = with_version(w);
    // The only owner: beside another one the Workload would outlive the job, and hold its reservation.
    body["metadata"]["ownerReferences"] = owner_references(job_.meta);
    body["metadata"]["labels"] = owned_labels(job_.meta);  // by which it is found from now on
    body["metadata"]["labels"][std::string(kJobUidLabel)] = job_.meta.uid;
    std::vector<std::string> finalizers = w.meta.finalizers;
    if (!has_finalizer(w.meta)) finalizers.emplace_back(kWorkloadFinalizer);
    body["metadata"]["finalizers"] = finalizers;
    write(patch(w, std::move(body), "it is the prebuilt Workload of the job"));
    return false;
  }

  // A job that grew while it ran goes on with what it has. After its next stop, the Workload must not hold quota.
  bool fits_prebuilt() {
    const Workload& w = *workload_;
    const bool runs = w.is_active && w.is_admitted() && (!input_.was_stopped || w.is_evicted());
    if (w.count >= input_.wanted_pods || has_pods() || runs) return true;
    wait("WorkloadOutOfSync", "The prebuilt Workload " + w.meta.name + " asks for " + plural(w.count, "pod") +
                                  ", the job for " + plural(input_.wanted_pods, "pod") +
                                  "; it is deactivated until it asks for enough.");
    leave_queue("this Workload asks for fewer pods than the TrainJob needs");
    return false;
  }

  // The job has changed since its Workload was made. While it runs, only numNodes can.
  bool is_outdated() {
    const Workload& w = *workload_;
    const bool is_larger = input_.wanted_pods > w.count - w.reclaimable;
    bool is_edited = false;
    if (!has_pods() && input_.was_stopped && input_.pod) {
      const Workload now = workload_from_json(desired_workload(job_, input_.wanted_pods, *input_.pod, kueue_));
      is_edited = now.template_hash != w.template_hash || now.count != w.count || now.min_count != w.min_count;
    }
    if (!is_larger && !is_edited) return false;
    wait("Requeued", is_larger && !is_edited
                         ? "The job asks for " + plural(input_.wanted_pods, "pod") + ", and quota for " +
                               std::to_string(w.count - w.reclaimable) + " is reserved; it queues again in " +
                               in_quotes(queue_) + "."
                         : "The job has changed; its Workload " + w.meta.name + " is replaced, and it queues again.");
    if (!has_pods()) delete_workload("the job has changed since it was made");
    return true;
  }

  void delete_workload(const std::string& why) {
    const Workload& w = *workload_;
    if (!is_ours(w)) return;
    if (!w.meta.deletion_time) return write(remove(w, why));
    if (has_finalizer(w.meta)) write(remove_finalizer(w, why));
  }

  // Queue, priority class and time limit may be changed by the job's labels: the queue while nothing is reserved, the
  // time limit until the admission.
  void follow_labels() {
    const Workload& w = *workload_;
    Json spec = Json::object();
    const std::string queue = label_of(job_.meta, kQueueLabel);
    if (!queue.empty() && queue != w.queue && !w.is_reserved()) spec["queueName"] = queue;
    // Of a Workload that has quota, the API server lets one class of Kueue's be replaced by another.
    const bool has_label = !label_of(job_.meta, kWorkloadPriorityLabel).empty();
    const bool may_change = !w.is_reserved() || (has_label && w.priority_group == kKueueGroup);
    const bool is_read = kueue_.priority && !has_its_priority(job_, w);
    if (is_read && !kueue_.priority->problem.empty()) {
      d_.priority_problem = "Its priority is not changed: " + kueue_.priority->problem + ".";
      requeue();
    } else if (is_read && may_change) {
      Json made = desired_workload(job_, input_.wanted_pods, input_.pod.value_or(Json::object()), kueue_);
      for (const char* name : {"priority", "priorityClassRef", "priorityClassName", "priorityClassSource"}) {
        if (made["spec"].contains(name)) {
          spec[name] = made["spec"][name];
        } else if (field(w.object, {"spec", name}) != nullptr) {
          spec[name] = nullptr;
        }
      }
    }
    constexpr const char* kTimeLimit = "maximumExecutionTimeSeconds";
    const std::optional<int64_t> seconds = max_execution_seconds(job_.meta);
    if (!is_made_by_others() && !w.is_admitted() && seconds != number_field(w.object, {"spec", kTimeLimit})) {
      spec[kTimeLimit] = seconds ? Json(*seconds) : Json(nullptr);
    }
    if (spec.empty()) return;
    Json body = with_version(w);
    body["spec"] = std::move(spec);
    write(patch(w, std::move(body), "the job's labels have changed"));
  }

  void follow_admission() {
    const Workload& w = *workload_;
    if (w.is_evicted()) {
      d_.is_evicted = has_pods();
      say_why_it_waits(w, queue_, d_);
      d_.may_run = false;
      if (has_pods() || w.is_reserved()) {
        const api::Condition& evicted = *w.conditions.find("Evicted");
        d_.reason = evicted.reason.empty() ? "Evicted" : evicted.reason;
        d_.message = "The job was evicted from queue " + in_quotes(queue_) + " (" + words_of(evicted) + ").";
      }
      if (!has_pods() && w.is_reserved()) give_back_all();
      return;
    }
    if (!w.is_admitted()) {
      say_why_it_waits(w, queue_, d_);
      d_.may_run = false;
      return;
    }
    const int given = w.admitted_count.value_or(w.count);
    d_.reason = "Admitted";
    d_.message = "Queue " + in_quotes(queue_) + " has admitted the job to cluster queue " + in_quotes(w.cluster_queue) +
                 " with ";
    d_.message += given < input_.wanted_pods ? std::to_string(given) + " of " + plural(input_.wanted_pods, "pod") + "."
                                             : plural(input_.wanted_pods, "pod") + ".";
    if (const Result<Json> added = admitted_pod(w, kueue_); !added.ok()) {
      d_.no_new_pods = added.error().message;
      requeue();
    }
    give_back_early(given);
  }

  // The pods of ranks from numNodes on have ended: other jobs may use their quota. The job gets it back only by
  // queueing again.
  void give_back_early(int given) {
    const Workload& w = *workload_;
    const int unneeded = w.count - input_.wanted_pods;
    if (input_.wanted_pods >= given || unneeded <= w.reclaimable) return;
    if (has_pods() && *input_.node_ranks_with_pods.rbegin() >= input_.wanted_pods) return;
    StatusChange change(w, input_.now);
    change.status()["reclaimablePods"] = Json::array({{{"name", w.pod_set}, {"count", unneeded}}});
    write(change.write("the job needs " + plural(input_.wanted_pods, "pod") + " only"));
  }

  const api::TrainJob& job_;
  const KueueView& kueue_;
  const QueueInput& input_;
  const std::string prebuilt_;
  const Workload* const workload_;  // nullptr: there is none
  const std::string queue_;
  QueueDecision d_;
};

}  // namespace

QueueDecision apply_queue(const api::TrainJob& job, const KueueView& kueue, const QueueInput& input) {
  return Decision(job, kueue, input).run();
}

int num_pods(const api::TrainJob& job, const KueueView& kueue) {
  const int wanted = job.spec.trainer.num_nodes;
  const Workload* const workload = workload_of(job, kueue);
  if (workload == nullptr) {
    // Kueue is gone, and the job goes on with what it had.
    const bool goes_on = has_queue(job) && kueue.version.empty() && job.status.nodes.desired > 0;
    return goes_on ? std::min(wanted, job.status.nodes.desired) : wanted;
  }
  return workload->has_admission ? std::min(wanted, workload->admitted_count.value_or(workload->count)) : wanted;
}

std::optional<Action> say_pods_ready(const Workload& workload, bool are_ready, api::UnixSeconds now) {
  const std::string reason_before = workload.conditions.reason_of("PodsReady");
  const bool was_ready = workload.conditions.is_true("PodsReady");
  const bool recovers = was_ready || reason_before == "WaitForRecovery" || reason_before == "Recovered";
  std::string reason = are_ready ? "Started" : "WaitForStart";
  if (are_ready && recovers && reason_before != "Started") reason = "Recovered";
  if (!are_ready && recovers) reason = "WaitForRecovery";
  if (was_ready == are_ready && reason_before == reason) return std::nullopt;
  StatusChange change(workload, now);
  change.set("PodsReady", are_ready ? ConditionStatus::kTrue : ConditionStatus::kFalse, reason,
             are_ready                     ? "All pods are ready or have succeeded"
             : reason == "WaitForRecovery" ? "At least one pod has failed, waiting for recovery"
                                           : "Not all pods are ready or succeeded");
  return change.write("PodsReady is " + reason);
}

std::vector<Action> finish_workload(const Workload& workload, bool succeeded, const std::string& message, bool has_pods,
                                    api::UnixSeconds now) {
  if (has_pods) return {};
  std::vector<Action> writes;
  const char* const why = "the job has ended, and so has its last pod";
  if (!workload.is_finished() && !workload.meta.deletion_time) {
    StatusChange change(workload, now);
    change.set("Finished", ConditionStatus::kTrue, succeeded ? "Succeeded" : "Failed", message);
    writes.push_back(change.write(why));
  } else if (has_finalizer(workload.meta)) {
    writes.push_back(remove_finalizer(workload, why));
  }
  return writes;
}

bool is_orphan(const api::ObjectMeta& workload, const std::string& job_uid) {
  const api::OwnerReference* const owner = workload.controller();
  return owner != nullptr && owner->uid != job_uid && workload.deletion_time && has_finalizer(workload);
}

std::vector<Action> release_orphans(const std::vector<Workload>& workloads, const std::vector<PodView>& pods,
                                    const std::string& job_uid, api::UnixSeconds now) {
  std::vector<Action> writes;
  for (const Workload& w : workloads) {
    if (!is_orphan(w.meta, job_uid)) continue;
    const bool has_pods = std::any_of(pods.begin(), pods.end(), [&](const PodView& pod) {
      const api::OwnerReference* const of = pod.meta.controller();
      return of != nullptr && of->uid == w.meta.controller()->uid && !has_ended(pod) && !is_overdue(pod, now);
    });
    if (!has_pods) writes.push_back(remove_finalizer(w, "its TrainJob is gone, and so are the pods"));
  }
  return writes;
}

}  // namespace lockstep::train
