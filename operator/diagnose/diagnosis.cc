#include "operator/diagnose/diagnosis.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "operator/train/bookkeeping.h"
#include "operator/train/object_names.h"
#include "operator/train/observed.h"
#include "operator/train/pod_end.h"
#include "operator/train/status.h"
#include "operator/train/user_program.h"
#include "runner/base/json.h"
#include "runner/base/nearest.h"
#include "runner/base/plural.h"

namespace lockstep::diagnose {
namespace {

using api::format_duration;
using api::UnixSeconds;

// An operator reconciles a new job within a second. If it has not done so after this long, something is wrong.
constexpr UnixSeconds kOperatorSlowSeconds = 30;
// A leader renews its Lease every few seconds. After this long without a renewal no operator seems to run.
constexpr UnixSeconds kLeaseStaleSeconds = 60;
// The progress of a running job is read every few seconds. When it is older than this, pod 0 seems not to answer.
constexpr UnixSeconds kProgressStaleSeconds = 180;
// Only failures that are newer than this are part of the verdict of a job that runs.
constexpr UnixSeconds kRecentSeconds = 3600;
// An event and an entry of status.recentFailures that are at most this far apart are the same incident.
constexpr UnixSeconds kSameSeconds = 10;
constexpr size_t kLogLinesMax = 8;

std::string without_full_stop(std::string text) {
  while (!text.empty() && (text.back() == '.' || text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// One line, for a table or a sentence.
std::string on_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return without_full_stop(std::move(text));
}

UnixSeconds time_field(const Json& object, const char* name) {
  return api::parse_time(text_field(object, {name})).value_or(0);
}

std::string pod_to_read(const std::vector<train::PodView>& pods) {
  const train::PodView* ended = nullptr;
  const train::PodView* not_ready = nullptr;
  for (const train::PodView& pod : pods) {
    const bool ended_badly = pod.end && pod.end->exit_code != 0;
    if (ended_badly && (ended == nullptr || pod.end->time > ended->end->time)) ended = &pod;
    if (pod.started && !pod.ready && !pod.end && not_ready == nullptr) not_ready = &pod;
  }
  if (ended != nullptr) return ended->meta.name;
  return not_ready == nullptr ? std::string() : not_ready->meta.name;
}

class Diagnoser {
 public:
  Diagnoser(const Facts& facts, train::Observed observed)
      : facts_(facts),
        o_(std::move(observed)),
        job_(o_.job),
        spec_(o_.job.spec),
        status_(o_.job.status),
        book_(train::bookkeeping_from_json(o_.job.status.bookkeeping)) {}

  Diagnosis run() {
    decide();
    add_progress();
    add_gang();
    add_pods();
    build_timeline();
    const std::string pod = pod_to_read(o_.pods);
    add_log(pod);
    add_general_advice(pod);
    out_.notes = facts_.unread;
    return std::move(out_);
  }

 private:
  api::ObjectKey name() const { return {job_.meta.ns, job_.meta.name}; }
  std::string ago(UnixSeconds time) const { return format_duration(facts_.now - time) + " ago"; }
  std::string subject() const { return "TrainJob " + job_.meta.name; }
  const api::Condition* condition(std::string_view type) const { return status_.conditions.find(type); }
  bool is(api::JobPhase phase) const { return status_.phase == phase; }

  void conclude(bool is_well, std::string verdict) {
    out_.is_well = is_well;
    out_.verdict = without_full_stop(std::move(verdict));
  }
  void advise(std::vector<Advice> advice) {
    for (Advice& one : advice) {
      if (std::find(out_.advice.begin(), out_.advice.end(), one) == out_.advice.end()) {
        out_.advice.push_back(std::move(one));
      }
    }
  }

  // ---- the verdict ----

  void decide() {
    if (spec_.managed_by != api::kControllerName) {
      return conclude(true,
                      subject() + " is left alone by the Lockstep operator: spec.managedBy is " + spec_.managed_by);
    }
    if (job_.meta.deletion_time) return decide_deleted();
    if (status_.observed_generation == 0) return decide_unseen();
    if (status_.conditions.is_true(api::condition::kComplete)) return decide_complete();
    if (status_.conditions.is_true(api::condition::kFailed)) return decide_failed();
    if (is_unseen()) return decide_unseen();
    const api::Condition* const admitted = condition(api::condition::kAdmitted);
    const bool may_run =
        spec_.suspend || book_.spec_hold || admitted == nullptr || admitted->status == api::ConditionStatus::kTrue;
    if (!may_run) return decide_queued(*admitted);
    if (is(api::JobPhase::kSuspended)) return decide_suspended();
    if (spec_.suspend || book_.spec_hold) {
      const api::Condition* const suspending = condition(api::condition::kSuspended);
      return conclude(true,
                      subject() + " is being suspended" + (suspending == nullptr ? "" : ": " + suspending->message));
    }
    if (is_recovering()) return decide_recovering();
    if (status_.conditions.is_true(api::condition::kRunning)) return decide_running();
    decide_waiting();
  }

  void decide_deleted() {
    conclude(false, subject() + " is being deleted, for " + format_duration(facts_.now - *job_.meta.deletion_time) +
                        "; " + plural(std::ssize(o_.pods), "pod") + " of it " + (o_.pods.size() == 1 ? "is" : "are") +
                        " still there");
    if (!job_.meta.finalizers.empty()) {
      out_.details.push_back("waits for the finalizers " + joined(job_.meta.finalizers));
    }
  }

  // An operator that leads says so in its Lease. One of a single namespace may have its Lease elsewhere: then the
  // status is newer than this one.
  bool is_lease_stale() const {
    if (!facts_.operator_seen || *facts_.operator_seen + kLeaseStaleSeconds >= facts_.now) return false;
    UnixSeconds newest = status_.progress ? status_.progress->last_updated_time : 0;
    for (const api::Condition& one : status_.conditions.list()) newest = std::max(newest, one.last_transition_time);
    return newest <= *facts_.operator_seen + kLeaseStaleSeconds;
  }
  bool is_new() const { return job_.meta.created + kOperatorSlowSeconds > facts_.now; }
  bool is_unseen() const {
    return is_lease_stale() || (status_.observed_generation < job_.meta.generation && !is_new());
  }

  void decide_unseen() {
    if (status_.observed_generation == 0 && is_new() && !is_lease_stale()) {
      return conclude(true, subject() + " was made " + ago(job_.meta.created) + "; the operator has not seen it yet");
    }
    if (status_.observed_generation == 0) {
      conclude(false, "no operator has looked at " + subject() + ", which was made " + ago(job_.meta.created));
    } else if (is_lease_stale()) {
      conclude(false, "no operator leads: its Lease was last renewed " + ago(*facts_.operator_seen) +
                          "; the status below is of that time, and nothing is repaired");
    } else {
      conclude(false, "the operator has not looked at the newest change of " + subject() + " (generation " +
                          std::to_string(job_.meta.generation) +
                          ", seen: " + std::to_string(status_.observed_generation) + ")");
    }
    advise({{"is it installed, and does it run, for this namespace, too?",
             "kubectl get deployments,pods -A -l app.kubernetes.io/name=lockstep"},
            {"what it says:",
             "kubectl logs -n lockstep-system -l app.kubernetes.io/name=lockstep,app.kubernetes.io/component=operator "
             "--tail=50"}});
  }

  void decide_complete() {
    std::string text = subject() + " is complete";
    if (status_.start_time && status_.completion_time) {
      text += " after " + format_duration(*status_.completion_time - *status_.start_time);
    }
    if (status_.completion_time) text += ", " + ago(*status_.completion_time);
    if (status_.restarts.total > 0) text += "; " + plural(status_.restarts.total, "restart") + " on the way";
    conclude(true, text);
    for (const api::MetricValue& metric : metrics()) out_.details.push_back(metric.name + "  " + metric.value);
  }

  std::vector<api::MetricValue> metrics() const {
    return status_.progress ? status_.progress->metrics : std::vector<api::MetricValue>();
  }

  // ---- failures ----

  static train::PodEnd as_end(const api::RecentFailure& failure) {
    train::PodEnd end;
    end.node_rank = failure.node;
    end.attempt = failure.attempt;
    end.node = failure.host;
    end.exit_code = failure.exit_code;
    end.reason = failure.reason;
    end.message = failure.message;
    end.rank = failure.rank;
    end.time = failure.time;
    return end;
  }

  // The newest bad end: of a pod that is still there, which says most, or of the status.
  std::optional<train::PodEnd> newest_ending() const {
    std::optional<train::PodEnd> newest;
    if (!status_.recent_failures.empty()) {
      newest = as_end(
          *std::max_element(status_.recent_failures.begin(), status_.recent_failures.end(),
                            [](const api::RecentFailure& a, const api::RecentFailure& b) { return a.time < b.time; }));
    }
    for (const train::PodView& pod : o_.pods) {
      const std::optional<train::PodEnd> end = train::find_end(pod, o_);
      if (!end || end->kind == train::EndKind::kDone) continue;
      const bool is_same = newest && newest->node_rank == end->node_rank && newest->attempt == end->attempt;
      if (is_same) {
        newest->step = end->step;
        if (!newest->rank) newest->rank = end->rank;
      } else if (!newest || end->time > newest->time) {
        newest = end;
      }
    }
    return newest;
  }

  std::string who(const train::PodEnd& ending) const {
    const std::string pod = "pod " + train::pod_name(job_.meta.name, ending.node_rank, ending.attempt);
    return ending.rank ? "rank " + std::to_string(*ending.rank) + " in " + pod : pod;
  }

  std::string sentence(const train::PodEnd& ending) const {
    std::string text = who(ending) + " " + ending_words(ending.reason, ending.exit_code);
    if (ending.step) text += " at step " + std::to_string(*ending.step);
    return text;
  }

  void explain(const train::PodEnd& ending) {
    std::string line = who(ending);
    if (!ending.node.empty()) line += " on " + ending.node;
    if (ending.exit_code) line += ", exit code " + exit_code_words(ending.reason, *ending.exit_code);
    line += ", " + ago(ending.time);
    out_.details.push_back(line);
    if (!ending.message.empty()) out_.details.push_back("its last message: " + on_one_line(ending.message));
  }

  int counted_failures() const {
    return std::accumulate(book_.counted.begin(), book_.counted.end(), 0, [&](int sum, const auto& slice) {
      return slice.first + spec_.restart_policy.window_seconds < facts_.now ? sum : sum + slice.second;
    });
  }

  // "restarted (1 of maxRestarts 10 used)". The column RESTARTS may show more, because not every restart counts.
  std::string restart_words(const train::PodEnd& ending) const {
    if (status_.attempt_of(ending.node_rank) == ending.attempt) return "started again by its agent";
    const int used = counted_failures();
    if (used == 0) return "restarted";
    return "restarted (" + std::to_string(used) + " of maxRestarts " +
           std::to_string(spec_.restart_policy.max_restarts) + " used)";
  }

  void decide_failed() {
    const api::Condition& failed = *condition(api::condition::kFailed);
    const std::optional<train::PodEnd> ending = newest_ending();
    const bool by_ending = ending && failed.message.find("(" + ending->reason + ")") != std::string::npos;
    std::string text = subject() + " has failed";
    if (by_ending) {
      text += ": " + sentence(*ending);
      if (failed.reason == "TooManyRestarts") {
        text += "; that was once more than restartPolicy.maxRestarts (" +
                std::to_string(spec_.restart_policy.max_restarts) + ") allows";
      } else if (failed.reason == "NoProgress") {
        text += "; restarts came no further " + std::to_string(spec_.restart_policy.no_progress_restarts) +
                " times in a row";
      } else {
        text += "; it was not tried again";
      }
    } else {
      text += " (" + failed.reason + "): " + on_one_line(failed.message);
    }
    conclude(false, text);
    if (by_ending) explain(*ending);
    if (by_ending) out_.details.push_back("the operator: " + on_one_line(failed.message));
    if (failed.reason == "StartupTimeout") {
      const train::Obstacle wait = last_wait();
      if (!wait.reason.empty()) advise(advice_for_wait(wait, job_, pod_name_of(0)));
    }
    if (by_ending) advise(advice_for_ending(ending->reason, job_));
    advise(advice_for_ending(failed.reason, job_));
  }

  // Why pods could not start: the newest warning about the creation of pods.
  train::Obstacle last_wait() const {
    train::Obstacle wait;
    UnixSeconds newest = 0;
    for (const Json& event : facts_.events) {
      const bool is_wait = text_field(event, {"action"}) == "MakePods" && text_field(event, {"type"}) == "Warning";
      if (!is_wait || last_time(event) < newest) continue;
      newest = last_time(event);
      wait = {text_field(event, {"reason"}), text_field(event, {"message"})};
    }
    return wait;
  }

  // "TrainJob sasrec waits in queue …": the queue's words, which the operator has passed on.
  void decide_queued(const api::Condition& admitted) {
    constexpr std::array<std::string_view, 2> kJustWaits = {"Queued", "QuotaReserved"};
    const bool is_well = std::find(kJustWaits.begin(), kJustWaits.end(), admitted.reason) != kJustWaits.end();
    constexpr std::string_view kJob = "The job ";
    const std::string& words = admitted.message;
    conclude(is_well, words.substr(0, kJob.size()) == kJob ? subject() + " " + words.substr(kJob.size())
                                                           : subject() + " may not have pods: " + words);
    if (admitted.reason == "QueueUnavailable") return;
    if (admitted.reason == "PriorityClassMissing") {
      return advise({{"the classes that there are:",
                      "kubectl get workloadpriorityclasses.kueue.x-k8s.io,priorityclasses.scheduling.k8s.io"}});
    }
    advise({{"what the queue knows:", kubectl("get", name(), "workloads.kueue.x-k8s.io,localqueues.kueue.x-k8s.io")},
            {"its quota, and who has it:", "kubectl describe clusterqueues.kueue.x-k8s.io"}});
  }

  void decide_suspended() {
    if (book_.spec_hold) {
      conclude(false, subject() + " was suspended by the operator (" + book_.spec_hold->reason +
                          "): " + book_.spec_hold->message);
      return advise(advice_for_ending(book_.spec_hold->reason, job_));
    }
    std::string text = subject() + " is suspended";
    if (train::any_pod_may_save(spec_)) {
      text += "; its program itself knows where it goes on, because its checkpoints are its own";
    } else if (status_.progress && status_.progress->last_checkpoint_step) {
      text += "; it goes on from its checkpoint of step " + std::to_string(*status_.progress->last_checkpoint_step);
    } else {
      text += spec_.checkpoint ? "; no checkpoint is known: it starts from step 0"
                               : "; it keeps no checkpoints: it starts from step 0";
    }
    conclude(true, text);
    advise({{"go on with:",
             kubectl("patch", name(), "tj " + name().name + R"( --type=merge -p '{"spec": {"suspend": false}}')")}});
  }

  // ---- on its way ----

  bool is_recovering() const { return status_.conditions.is_true(api::condition::kRecovering); }

  std::optional<train::Obstacle> obstacle() const {
    const api::Condition* const ready = condition(api::condition::kPodsReady);
    if (ready == nullptr || ready->status == api::ConditionStatus::kTrue || !train::is_problem(ready->reason)) {
      return std::nullopt;
    }
    return train::Obstacle{ready->reason, ready->message};
  }

  void decide_recovering() {
    const std::optional<train::PodEnd> ending = newest_ending();
    const api::Condition& recovering = *condition(api::condition::kRecovering);
    std::string text = ending ? sentence(*ending) + "; " + restart_words(*ending)
                              : subject() + " recovers: " + on_one_line(recovering.message);
    const std::optional<train::Obstacle> wait = obstacle();
    if (wait) {
      text += ", and its new pod " + wait_words(*wait);
    } else {
      text += "; recovering since " + format_duration(facts_.now - recovering.last_transition_time);
    }
    conclude(false, text);
    if (ending) explain(*ending);
    if (wait) add_wait(*wait);
    const api::Condition* const ready = condition(api::condition::kPodsReady);
    if (ready != nullptr && (ready->reason == train::kEarlierGangEnding || ready->reason == "PodsNotReady"))
      out_.details.push_back(on_one_line(ready->message));
    if (!wait) add_words_of_nodes();
    if (ending) advise(advice_for_ending(ending->reason, job_));
  }

  void decide_running() {
    const api::Condition& running = *condition(api::condition::kRunning);
    const std::optional<train::PodEnd> ending = newest_ending();
    const std::string since = format_duration(facts_.now - running.last_transition_time);
    const bool is_degraded = status_.conditions.is_true(api::condition::kDegraded);
    const bool is_recent = ending && ending->time + kRecentSeconds > facts_.now;
    std::string text = subject() + " trains since " + since;
    if (is_recent) text = sentence(*ending) + "; " + restart_words(*ending) + "; training again since " + since;
    if (is_degraded) text += "; " + on_one_line(condition(api::condition::kDegraded)->message);
    const bool is_silent = is_progress_stale();
    if (is_silent) text += "; no figures since " + format_duration(facts_.now - status_.progress->last_updated_time);
    conclude(!is_degraded && !is_silent, text);
    if (is_recent) explain(*ending);
    if (is_recent) advise(advice_for_ending(ending->reason, job_));
    if (!is_recent && ending)
      out_.details.push_back("its last failure: " + sentence(*ending) + ", " + ago(ending->time));
    if (is_silent) {
      advise({{"is the run stuck, or does pod 0 not answer the operator (port " +
                   std::to_string(spec_.trainer.status_port) + ", a NetworkPolicy)?",
               kubectl("logs", name(), pod_name_of(0) + " -c trainer --tail=20")}});
    }
  }

  bool is_progress_stale() const {
    return spec_.trainer.launcher == api::Launcher::kLockstep && status_.progress &&
           status_.progress->last_updated_time + kProgressStaleSeconds < facts_.now;
  }

  void decide_waiting() {
    const std::optional<train::Obstacle> wait = obstacle();
    if (wait) {
      conclude(false, subject() + " " + wait_words(*wait));
      return add_wait(*wait);
    }
    const UnixSeconds since = status_.start_time.value_or(job_.meta.created);
    conclude(true, subject() + " is starting: " + std::to_string(status_.nodes.ready) + " of " +
                       plural(spec_.trainer.num_nodes, "pod") + " ready, " + format_duration(facts_.now - since) +
                       " after its start");
    if (const api::Condition* const ready = condition(api::condition::kPodsReady)) {
      out_.details.push_back(on_one_line(ready->message));
    }
    add_words_of_nodes();
  }

  // The status of a pod that starts says how far it has come; what is missing there is only in an event.
  void add_words_of_nodes() {
    const Json* newest = nullptr;
    for (const Json& event : facts_.events) {
      if (text_field(event, {"type"}) != "Warning" || text_field(event, {"involvedObject", "kind"}) == api::kKind) {
        continue;
      }
      const std::string of_pod = text_field(event, {"involvedObject", "name"});
      const bool is_starting = std::any_of(o_.pods.begin(), o_.pods.end(), [&of_pod](const train::PodView& pod) {
        return pod.meta.name == of_pod && pod.scheduled && !pod.started && !train::has_ended(pod);
      });
      if (is_starting && (newest == nullptr || last_time(event) >= last_time(*newest))) newest = &event;
    }
    if (newest == nullptr) return;
    out_.details.push_back("pod " + text_field(*newest, {"involvedObject", "name"}) + ", " +
                           text_field(*newest, {"reason"}) + ": " + on_one_line(text_field(*newest, {"message"})));
  }

  void add_wait(const train::Obstacle& wait) {
    const api::Condition& ready = *condition(api::condition::kPodsReady);
    out_.details.push_back(wait.reason + ": " + on_one_line(wait.message));
    std::string line = "not ready since " + format_duration(facts_.now - ready.last_transition_time);
    if (book_.waiting_since != 0) {
      const char* const end = wait.reason == train::kInvalidSpec ? "gives its reservation in the queue back" : "fails";
      line += std::string("; the job ") + end + " when this has kept it for " +
              format_duration(spec_.health.startup_timeout_seconds) + " (health.startupTimeoutSeconds), " +
              format_duration(facts_.now - book_.waiting_since) + " so far";
    } else {
      line += "; the job waits for as long as it takes";
    }
    out_.details.push_back(std::move(line));
    add_words_of_nodes();
    advise(advice_for_wait(wait, job_, first_pod_not_ready()));
  }

  // Problems that PodsReady does not report: the pods are scheduled without the gang or the topology that was asked
  // for, or the gang waits until the pods of the earlier gang have ended.
  void add_gang() {
    const api::Condition* const gang = condition(api::condition::kGangScheduled);
    if (gang == nullptr || (gang->reason != train::kNoGang && gang->reason != train::kTopologyIgnored &&
                            gang->reason != train::kEarlierGangEnding))
      return;
    out_.details.push_back(gang->reason + ": " + on_one_line(gang->message));
  }

  // ---- figures ----

  void add_progress() {
    if (!status_.progress) return;
    const api::JobProgress& p = *status_.progress;
    std::string line = "step " + std::to_string(p.step) + " of " + std::to_string(p.total_steps) + " (" +
                       std::to_string(p.percent) + "%)";
    if (!p.loss.empty()) line += ", loss " + p.loss;
    const bool is_over = status_.completion_time.has_value();
    if (p.estimated_remaining_seconds && !is_over) {
      line += ", " + format_duration(*p.estimated_remaining_seconds) + " left";
    }
    if (p.last_checkpoint_step) {
      line += ", newest checkpoint at step " + std::to_string(*p.last_checkpoint_step);
      const int64_t behind = p.step - *p.last_checkpoint_step;
      if (behind > 0 && !is_over) line += ": " + plural(behind, "step") + " would be lost with all pods";
    } else if (!is_over) {
      line += spec_.checkpoint ? ", no checkpoint yet" : ", no checkpoints (spec.checkpoint)";
    }
    out_.details.push_back(line);
  }

  // ---- pods ----

  std::string pod_name_of(int node_rank) const {
    return train::pod_name(job_.meta.name, node_rank, status_.attempt_of(node_rank));
  }

  std::string first_pod_not_ready() const {
    for (int node_rank = 0; node_rank < spec_.trainer.num_nodes; ++node_rank) {
      const train::PodView* const pod = o_.pod(node_rank, status_.attempt_of(node_rank));
      if (pod != nullptr && !pod->ready) return pod->meta.name;
    }
    return pod_name_of(0);
  }

  void add_pods() {
    const bool is_over = status_.completion_time.has_value();
    for (int node_rank = 0; node_rank < spec_.trainer.num_nodes; ++node_rank) {
      const train::PodView* const pod = o_.pod(node_rank, status_.attempt_of(node_rank));
      if (pod == nullptr) {
        if (is_over || is(api::JobPhase::kSuspended)) continue;
        const bool is_done = book_.done.count(node_rank) > 0;
        out_.pods.push_back({node_rank, "", "", is_done ? "done" : "no pod", is_done});
        continue;
      }
      out_.pods.push_back(row_of(*pod));
    }
  }

  PodRow row_of(const train::PodView& pod) const {
    PodRow row{pod.node_rank, pod.meta.name, pod.node, "", false};
    const std::optional<train::PodEnd> end = train::find_end(pod, o_);
    if (end && end->kind == train::EndKind::kDone) {
      row.state = "done";
      row.is_well = true;
    } else if (end && end->exit_code) {
      row.state = "ended with " + std::to_string(*end->exit_code) + " (" + end->reason + ")";
    } else if (end) {
      row.state = "lost (" + end->reason + ")";
    } else if (pod.ready) {
      row.state = "ready";
      row.is_well = true;
    } else if (pod.waiting) {
      row.state = pod.waiting->reason;
    } else if (!pod.scheduled) {
      row.state = "not scheduled";
    } else if (!pod.init_container.empty()) {
      row.state = "init container " + pod.init_container + " runs";
    } else {
      row.state = pod.started ? "runs, not ready" : "starting";
    }
    return row;
  }

  // ---- what happened ----

  static UnixSeconds last_time(const Json& event) {
    for (const char* name : {"lastTimestamp", "eventTime", "firstTimestamp"}) {
      if (const UnixSeconds time = time_field(event, name); time != 0) return time;
    }
    return 0;
  }

  void add_timeline_entry(UnixSeconds time, std::string text, bool is_bad = false) {
    if (time != 0) out_.timeline.push_back({time, on_one_line(std::move(text)), is_bad});
  }

  void build_timeline() {
    add_timeline_entry(job_.meta.created, "the TrainJob was made");
    for (const Json& event : facts_.events) add_event(event);
    for (const api::RecentFailure& failure : status_.recent_failures) {
      if (!has_event_of(failure)) add_failure(failure);
    }
    if (status_.completion_time && !has_event_at(*status_.completion_time)) {
      add_timeline_entry(*status_.completion_time, std::string("the job ended: ") + status_.message,
                         is(api::JobPhase::kFailed));
    }
    std::stable_sort(out_.timeline.begin(), out_.timeline.end(),
                     [](const TimelineEntry& a, const TimelineEntry& b) { return a.time < b.time; });
  }

  // Of the pods' events only the warnings are shown: their normal ones would fill the screen.
  void add_event(const Json& event) {
    const bool is_warning = text_field(event, {"type"}) == "Warning";
    const bool is_of_job = text_field(event, {"involvedObject", "kind"}) == api::kKind;
    if (!is_of_job && !is_warning) return;
    std::string text = text_field(event, {"reason"}) + ": " + text_field(event, {"message"});
    if (!is_of_job) text = "pod " + text_field(event, {"involvedObject", "name"}) + ", " + text;
    const int64_t count = number_field(event, {"count"}).value_or(1);
    if (count > 1) text = on_one_line(text) + " (" + std::to_string(count) + " times)";
    add_timeline_entry(last_time(event), text, is_warning);
  }

  bool has_event_at(UnixSeconds time) const {
    return std::any_of(facts_.events.begin(), facts_.events.end(), [&](const Json& event) {
      return text_field(event, {"involvedObject", "kind"}) == api::kKind &&
             std::abs(last_time(event) - time) <= kSameSeconds;
    });
  }

  bool has_event_of(const api::RecentFailure& failure) const {
    return std::any_of(facts_.events.begin(), facts_.events.end(), [&](const Json& event) {
      return text_field(event, {"reason"}) == failure.reason &&
             std::abs(time_field(event, "firstTimestamp") - failure.time) <= kSameSeconds;
    });
  }

  void add_failure(const api::RecentFailure& f) {
    std::string text = sentence(as_end(f));
    if (!f.host.empty()) text += " (" + f.host + ")";
    if (!f.message.empty()) text += ": " + f.message;
    add_timeline_entry(f.time, text, true);
  }

  // ---- the rest ----

  void add_log(const std::string& pod) {
    const auto found = facts_.logs.find(pod);
    if (out_.is_well || found == facts_.logs.end()) return;
    std::istringstream text(found->second);
    for (std::string line; std::getline(text, line);) {
      if (!line.empty()) out_.log.push_back(line);
    }
    if (out_.log.size() > kLogLinesMax) {
      out_.log.erase(out_.log.begin(), out_.log.end() - static_cast<std::ptrdiff_t>(kLogLinesMax));
    }
    if (!out_.log.empty()) out_.log_pod = pod;
  }

  void add_general_advice(const std::string& pod) {
    if (out_.is_well) return;
    if (!pod.empty()) advise({{"the whole log:", kubectl("logs", name(), pod + " -c trainer")}});
    advise({{"everything that Kubernetes knows:", kubectl("describe", name(), "tj " + name().name)}});
  }

  const Facts& facts_;
  const train::Observed o_;
  const api::TrainJob& job_;
  const api::TrainJobSpec& spec_;
  const api::TrainJobStatus& status_;
  const train::Bookkeeping book_;
  Diagnosis out_;
};

Diagnosis of_missing_job(const Facts& facts) {
  Diagnosis diagnosis;
  diagnosis.verdict = "there is no TrainJob " + facts.name + " in namespace " + facts.ns;
  const std::string nearest = nearest_name(facts.name, facts.jobs_there);
  if (!nearest.empty()) diagnosis.verdict += "; did you mean " + nearest + "?";
  if (nearest.empty() && facts.jobs_there.empty()) diagnosis.verdict += ", nor any other";
  diagnosis.advice = {{"those of all namespaces:", "kubectl get tj -A"}};
  diagnosis.notes = facts.unread;
  return diagnosis;
}

Diagnosis of_unreadable_job(const Facts& facts, const Error& error) {
  Diagnosis diagnosis;
  diagnosis.verdict = "TrainJob " + facts.name + " cannot be read: " + error.message;
  diagnosis.advice = {{"is the CRD of the same version as this program (lockstep version)?",
                       "kubectl get crd trainjobs.lockstep.dev -o yaml"}};
  return diagnosis;
}

}  // namespace

Diagnosis diagnose(const Facts& facts) {
  if (!facts.job) return of_missing_job(facts);
  const Result<api::TrainJob> job = api::trainjob_from_json(*facts.job);
  if (!job.ok()) return of_unreadable_job(facts, job.error());
  return Diagnoser(facts, train::observe({.job = *job, .pods = train::views_of_pods(facts.pods)}, facts.now)).run();
}

std::string pod_to_read(const Facts& facts) {
  if (!facts.job) return {};
  const Result<api::TrainJob> job = api::trainjob_from_json(*facts.job);
  if (!job.ok()) return {};
  return pod_to_read(train::observe({.job = *job, .pods = train::views_of_pods(facts.pods)}, facts.now).pods);
}

}  // namespace lockstep::diagnose
