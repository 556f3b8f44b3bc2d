#include "operator/train/plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "operator/train/bookkeeping.h"
#include "operator/train/capacity.h"
#include "operator/train/deadline.h"
#include "operator/train/desired_network_policy.h"
#include "operator/train/desired_pod.h"
#include "operator/train/desired_service.h"
#include "operator/train/elastic.h"
#include "operator/train/failure_policy.h"
#include "operator/train/field.h"
#include "operator/train/health.h"
#include "operator/train/object_names.h"
#include "operator/train/placement_timeout.h"
#include "operator/train/pod_cleanup.h"
#include "operator/train/pod_end.h"
#include "operator/train/pod_template.h"
#include "operator/train/status.h"
#include "operator/train/success_policy.h"
#include "operator/train/suspend.h"
#include "operator/train/ttl.h"

namespace lockstep::train {
namespace {

using api::ConditionStatus;

// What is not watched is looked at again: a create that was refused, a claim that is missing.
constexpr api::UnixSeconds kTryAgainSeconds = 10;
// What a quota refuses is tried again after 10 s, 20 s, 40 s, then once a minute.
constexpr api::UnixSeconds kQuotaWaitMaxSeconds = 60;
// A report that is older says nothing about now.
constexpr api::UnixSeconds kReportFreshSeconds = 60;

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

std::string nodes_text(int n) { return std::to_string(n) + (n == 1 ? " node" : " nodes"); }

bool is_finished(const api::TrainJobStatus& status) {
  return status.conditions.is_true(api::condition::kComplete) || status.conditions.is_true(api::condition::kFailed);
}

api::UnixSeconds try_again_at(const CreateProblem& problem) {
  if (problem.reason != kQuotaExceeded) return problem.time + kTryAgainSeconds;
  constexpr int kDoublingsMax = 8;
  return problem.time +
         std::min(kTryAgainSeconds << std::clamp(problem.times - 1, 0, kDoublingsMax), kQuotaWaitMaxSeconds);
}

bool has_ended(const PodView& pod) { return pod.phase == PodPhase::kSucceeded || pod.phase == PodPhase::kFailed; }

class Planner {
 public:
  explicit Planner(const Observed& observed)
      : o_(observed),
        spec_(observed.job.spec),
        now_(observed.now),
        status_(observed.job.status),
        book_(bookkeeping_from_json(observed.job.status.bookkeeping)) {}

  Plan run() {
    if (is_finished(status_)) {
      look_at_pods();
      plan_after_the_end();
    } else {
      begin();
      look_at_pods();
      take_report();
      decide();
      write_conditions();
      if (is_finished(status_)) plan_after_the_end();
    }
    return finish();
  }

 private:
  // ---- what is ----

  int attempt_of(int node) const {
    const auto it = status_.attempts.find(node);
    return it == status_.attempts.end() ? 0 : it->second;
  }

  void begin() {
    status_.selector = pod_selector(o_.job.meta.name);
    if (!status_.start_time && !spec_.suspend) status_.start_time = now_;
  }

  // A status that was lost (restored from a backup that leaves it out) is behind its pods. So is one that was read too
  // early, but that one's write will be refused.
  void catch_up_with_pods() {
    for (const PodView& pod : o_.pods) {
      if (pod.attempt <= attempt_of(pod.node)) continue;
      status_.attempts[pod.node] = pod.attempt;
      book_.created.erase(pod.node);
    }
  }

  void look_at_pods() {
    catch_up_with_pods();
    const int nodes = spec_.trainer.num_nodes;
    current_.assign(static_cast<size_t>(nodes), nullptr);
    failed_.assign(static_cast<size_t>(nodes), false);
    for (int node = 0; node < nodes; ++node) look_at_node(node);
    for (const PodView& pod : o_.pods) {
      if (has_ended(pod)) continue;
      const std::optional<PodEnd> end = end_of(pod, o_);
      if (end && end->kind == EndKind::kNodeLost) continue;
      nodes_with_pods_.insert(pod.node);
      ++pods_left_;
      if (pod.deleting) look_again(*pod.meta.deletion_time + kTryAgainSeconds);
      if (const auto when = when_believed_lost(pod, o_)) look_again(*when);
    }
  }

  void look_at_node(int node) {
    const int attempt = attempt_of(node);
    const PodView* const pod = o_.pod(node, attempt);
    const bool is_done = book_.done.count(node) > 0;
    if (pod == nullptr) {
      if (is_done || book_.created.count(node) == 0) return;
      const std::string name = pod_name(o_.job.meta.name, node, attempt);
      if (o_.missing_pods.count(name) > 0) {
        ends_.push_back(end_of_missing_pod(name, node, attempt, now_));
      } else if (!is_held_up("pod " + name)) {
        lookups_.push_back({name, node, attempt});
      }
      return;
    }
    current_[static_cast<size_t>(node)] = pod;
    book_.created.insert(node);
    if (is_done) return;
    std::optional<PodEnd> end = end_of(*pod, o_);
    if (!end) return;
    if (end->kind != EndKind::kDone) {
      failed_[static_cast<size_t>(node)] = true;
      ends_.push_back(std::move(*end));
      return;
    }
    book_.done.insert(node);
    if (book_.first_done_at == 0) book_.first_done_at = now_;
  }

  // The newest report counts when node 0's pod of now has said it; what its agent said as it ended is newer than that.
  void take_report() {
    const PodView* const node0 = current_.empty() ? nullptr : current_.front();
    if (node0 == nullptr) return;
    if (o_.report && o_.report->pod_uid == node0->meta.uid) {
      take_figures(*o_.report);
      const bool is_alive = ends_.empty() || ends_.front().node != 0;
      const api::UnixSeconds stale_at = o_.report->read_at + kReportFreshSeconds;
      if (is_alive && stale_at > now_) {
        report_ = &*o_.report;
        look_again(stale_at);  // nobody tells that node 0 says nothing any more
      }
    }
    if (!node0->end || node0->end->container != kTrainerContainer) return;
    Result<RunReport> last_words = parse_run_report(node0->end->message);
    if (!last_words.ok()) return;
    last_words->pod_uid = node0->meta.uid;
    last_words->read_at = node0->end->time;
    take_figures(*last_words);
    made_no_step_ = !last_words->progress && !last_words->origin.empty();
  }

  void take_figures(const RunReport& report) {
    if (!report.origin.empty() && report.origin != book_.origin) {
      book_.origin = report.origin;
      event(false, "StateLoaded", "The run's state: " + book_.origin + ".", "Train");
    }
    take_progress(report, status_);
    take_process_failures(report, current_, status_);
    if (report.checkpoint_step) clear_budgets_at(*report.checkpoint_step, book_);
    if (book_.process_restarts_pod != report.pod_uid) {
      book_.process_restarts_before += book_.process_restarts_now;
      book_.process_restarts_now = 0;
      book_.process_restarts_pod = report.pod_uid;
    }
    // Last words may be somebody else's, and say nothing of it.
    if (const int64_t more = report.process_restarts - book_.process_restarts_now; more > 0) {
      book_.process_restarts_now = report.process_restarts;
      recovered_ = worker_restarted_text(status_, current_, more);
      event(true, "WorkerRestarted", recovered_, "RestartWorker");
    }
    status_.restarts.process = book_.process_restarts_before + book_.process_restarts_now;
  }

  // ---- what is decided ----

  void decide() {
    const Success success = succeed();
    if (is_over_) return;
    if (book_.held && book_.held->generation != o_.job.meta.generation) book_.held.reset();
    if (keep_suspended()) return;
    if (book_.suspending) take_back_suspend();
    if (!success.replaces_nobody) react_to_ends();
    if (is_over_ || book_.held) return;
    const Capacity capacity = count_capacity();
    keep_deadlines(capacity);
    if (is_over_) return;
    if (book_.done.empty()) keep_placement(capacity);
    release_avoided_hosts();
    scale();
    plan_pods(success.replaces_nobody);
    end_recovery();
  }

  Success succeed() {
    std::vector<NodeEnd> nodes;
    for (size_t i = 0; i < current_.size(); ++i) {
      const PodView* const pod = current_[i];
      if (book_.done.count(static_cast<int>(i)) > 0) {
        nodes.push_back(NodeEnd::kDone);
      } else if (failed_[i]) {
        nodes.push_back(NodeEnd::kLost);
      } else {
        nodes.push_back(pod != nullptr && pod->started ? NodeEnd::kRuns : NodeEnd::kNotStarted);
      }
    }
    Success success =
        apply_success_policy(spec_, {.nodes = std::move(nodes), .first_done_at = book_.first_done_at, .now = now_});
    if (success.complete && made_no_step_) success.complete->append(" No step was left to make: " + book_.origin + ".");
    if (success.complete) end_job(api::condition::kComplete, {"AllDone", *success.complete});
    if (success.look_again_at) look_again(*success.look_again_at);
    return success;
  }

  void end_job(std::string_view type, const JobFailure& words) {
    is_over_ = true;
    plan_.actions.clear();
    plan_.look_again_at.reset();
    status_.completion_time = now_;
    book_.recovering.reset();
    book_.waiting_since = 0;
    set(type, ConditionStatus::kTrue, words.reason, words.message);
    event(type == api::condition::kFailed, words.reason, words.message, std::string(type));
    plan_.why = words.message;
  }

  void fail(const JobFailure& failure) {
    measure(metric::kTrainJobFailures, {{"reason", failure.reason}}, 1);
    end_job(api::condition::kFailed, failure);
  }

  // Does what spec.suspend, or the operator's own hold, asks for. Returns whether the job may have no pods.
  bool keep_suspended() {
    suspend_ = apply_suspend(spec_, {.was_suspended = status_.conditions.is_true(api::condition::kSuspended),
                                     .pods_left = pods_left_,
                                     .held = book_.held ? &*book_.held : nullptr});
    if (suspend_.step == SuspendStep::kResuming) resume();
    if (suspend_.step == SuspendStep::kStopping) stop_for_suspend();
    if (suspend_.step == SuspendStep::kSuspended) stay_suspended();
    return suspend_.step == SuspendStep::kStopping || suspend_.step == SuspendStep::kSuspended;
  }

  // The job cannot go on as its spec stands, and whoever changed that can mend it. spec.suspend stays the user's: what
  // writes the spec from elsewhere (GitOps) would set it back.
  void hold(const JobFailure& why) {
    event(true, why.reason, why.message, "Suspend");
    book_.held = Hold{o_.job.meta.generation, why.reason, why.message + "."};
    for (const PodEnd& end : ends_) raise_attempt(end.node);  // so that the pod that says why stays for its logs
    keep_suspended();
  }

  void stop_for_suspend() {
    if (!book_.suspending && !book_.held) event(false, "Suspending", suspend_.message, "Suspend");
    book_.suspending = true;
    forget_waits();
    const std::set<std::string> kept = pods_kept_for_logs(spec_, status_, o_.pods);
    for (const PodView& pod : o_.pods) {
      if (pod.deleting || kept.count(pod.meta.name) > 0) continue;
      act(DeletePod{pod.meta.name, pod.meta.uid}, book_.held ? book_.held->reason : "spec.suspend is true");
    }
    plan_.why = suspend_.message;
  }

  void stay_suspended() {
    if (!status_.conditions.is_true(api::condition::kSuspended) && !book_.held) {
      event(false, "Suspended", suspend_.message, "Suspend");
    }
    book_.suspending = false;
    forget_waits();
    // Whatever runs next is above what ran so far. A node that is done stays so only where its peers can do without it.
    const bool keeps_done = spec_.trainer.launcher == api::Launcher::kLockstep;
    const std::set<int> created = book_.created;
    for (const int node : created) {
      if (!keeps_done || book_.done.count(node) == 0) raise_attempt(node);
    }
    retire_pods();
    plan_.why = suspend_.message;
  }

  void forget_waits() {
    book_.recovering.reset();
    book_.waiting_since = 0;
    book_.placement = {};
  }

  void resume() {
    status_.start_time = now_;
    book_.were_ready = false;
    book_.has_stepped = false;
    // Whoever resumes has looked at what went wrong, and may have changed the pods.
    book_.counted.clear();
    book_.out_of_memory = 0;
    book_.without_progress.clear();
    book_.quick_replacements.clear();
    event(false, "Resumed", suspend_.message, "Resume");
  }

  // spec.suspend was taken back, or the spec mended, while pods were on their way out: they are followed by others.
  void take_back_suspend() {
    book_.suspending = false;
    for (const PodEnd& end : ends_) raise_attempt(end.node);
    ends_.clear();
    event(false, "Resumed", "The job goes on; pods that were already told to stop get successors.", "Resume");
  }

  void raise_attempt(int node) {
    status_.attempts[node] = attempt_of(node) + 1;
    book_.created.erase(node);
    book_.done.erase(node);
    if (node < static_cast<int>(current_.size())) {
      current_[static_cast<size_t>(node)] = nullptr;
      failed_[static_cast<size_t>(node)] = false;
    }
  }

  // ---- restartPolicy ----

  void react_to_ends() {
    if (ends_.empty()) return;
    const int64_t known_step = status_.progress ? status_.progress->step : -1;
    const FailureOutcome outcome = apply_failure_policy(spec_, ends_, {.known_step = known_step, .now = now_}, book_);
    for (const Replacement& r : outcome.replacements) {
      add_failure({.node = r.end.node,
                   .rank = r.end.rank,
                   .attempt = r.end.attempt,
                   .host = r.end.host,
                   .exit_code = r.end.exit_code,
                   .reason = r.end.reason,
                   .message = r.end.message,
                   .time = r.end.time},
                  status_);
    }
    if (outcome.failure) return outcome.is_mendable ? hold(*outcome.failure) : fail(*outcome.failure);
    outcome.is_gang ? restart_gang(outcome) : replace_pods(outcome);
  }

  void replace_pods(const FailureOutcome& outcome) {
    for (const Replacement& r : outcome.replacements) {
      note_replacement(r.end.node, now_, book_);
      raise_attempt(r.end.node);
      ++status_.restarts.pod;
      note_restart("pod", r, "ReplacePod");
    }
  }

  void restart_gang(const FailureOutcome& outcome) {
    const auto cause = std::find_if(outcome.replacements.begin(), outcome.replacements.end(), [](const Replacement& r) {
      return r.verdict.action == api::RuleAction::kRestartGang;
    });
    note_replacement(kGang, now_, book_);
    std::set<int> nodes = book_.created;
    for (const Replacement& r : outcome.replacements) nodes.insert(r.end.node);
    for (const int node : nodes) raise_attempt(node);
    book_.first_done_at = 0;
    ++status_.restarts.gang;
    note_restart("gang", *cause, "RestartGang");
  }

  void note_restart(const std::string& scope, const Replacement& r, const std::string& action) {
    event(r.verdict.is_counted, r.end.reason, r.message, action);
    measure(metric::kTrainJobRestarts, {{"scope", scope}, {"reason", r.end.reason}}, 1);
    // What came last is what people want to know; how long it takes is counted from the first.
    Recovering recovering =
        book_.recovering.value_or(Recovering{.since = now_, .generation = o_.report ? o_.report->generation : 0});
    recovering.scope = scope;
    recovering.reason = r.end.reason;
    recovering.message = r.message;
    book_.recovering = std::move(recovering);
    plan_.why = r.message;
  }

  // A pod's affinity cannot be taken back. One that still waits when the machine that it avoids may be used again gets
  // a successor that may go there.
  void release_avoided_hosts() {
    const int window = spec_.restart_policy.window_seconds;
    const std::set<std::string> avoided = avoided_hosts(book_, window, now_);
    const std::vector<const PodView*> pods = current_;
    for (const PodView* const pod : pods) {
      if (pod == nullptr || pod->scheduled || pod->avoids.empty()) continue;
      if (std::includes(avoided.begin(), avoided.end(), pod->avoids.begin(), pod->avoids.end())) {
        for (const std::string& host : pod->avoids) look_again(book_.avoided.at(host) + window);
        continue;
      }
      event(false, "MachineReleased",
            "Node " + std::to_string(pod->node) + " (pod " + pod->meta.name + ") has found no other machine within " +
                std::to_string(window) + " s (restartPolicy.windowSeconds); its next pod may go where the fault was.",
            "ReplacePod");
      raise_attempt(pod->node);
    }
  }

  // It is over when a newer group trains; where nobody says that, when all pods are ready again.
  void end_recovery() {
    if (!book_.recovering) return;
    const Recovering& recovering = *book_.recovering;
    const api::NodeCounts counts = count_nodes(facts());
    const bool trains_again = report_ != nullptr && report_->is_running() && recovering.generation > 0 &&
                              report_->generation > recovering.generation && report_->read_at >= recovering.since;
    const bool all_ready = counts.ready + counts.succeeded == counts.desired;
    const bool is_denied = report_ != nullptr && report_->phase == "Recovering";  // by node 0, which knows better
    if (!trains_again && (!all_ready || is_denied)) return;
    measure(metric::kTrainJobRecovery, {{"scope", recovering.scope}, {"reason", recovering.reason}},
            static_cast<double>(now_ - recovering.since));
    const std::string took = "The run goes on after " + std::to_string(now_ - recovering.since) + " s";
    event(false, "Recovered", took + ".", "Recover");
    recovered_ = took + ": " + recovering.message;
    book_.recovering.reset();
  }

  // ---- deadlines ----

  void keep_deadlines(const Capacity& capacity) {
    const Deadline deadline = apply_deadline(spec_, status_.start_time.value_or(now_), now_);
    if (deadline.look_again_at) look_again(*deadline.look_again_at);
    if (deadline.passed) return fail({"DeadlineExceeded", *deadline.passed});

    if (are_enough_ready() || book_.were_ready) book_.enough_were_ready = true;
    const api::NodeCounts counts = count_nodes(facts());
    const Startup startup = apply_startup_timeout(spec_,
                                                  {.ready = counts.ready + counts.succeeded,
                                                   .needed = capacity.needed,
                                                   .were_ready = book_.enough_were_ready,
                                                   .waits_for_others = capacity.is_short() && !capacity.is_at_fault,
                                                   .is_loading = report_ != nullptr && report_->is_loading(),
                                                   .now = now_},
                                                  book_.waiting_since);
    book_.waiting_since = startup.waiting_since;
    if (startup.look_again_at) look_again(*startup.look_again_at);
    if (!startup.timed_out) return;
    // What keeps the pods is known now, or was when the last pod could not be made.
    ConditionState ready = pods_ready_condition(facts());
    const api::Condition* const before = status_.conditions.find(api::condition::kPodsReady);
    if (!is_problem(ready.reason) && before != nullptr && is_problem(before->reason)) ready.message = before->message;
    fail({"StartupTimeout", *startup.timed_out + ": " + ready.message});
  }

  // ---- capacity ----

  [[nodiscard]] bool are_enough_ready() const {
    const api::NodeCounts counts = count_nodes(facts());
    return counts.ready + counts.succeeded >= nodes_needed(spec_);
  }

  // A quota is all pods' of the job: of those that are to be made and that it has refused, the one whose time to try
  // again comes last.
  [[nodiscard]] const CreateProblem* quota_refusal() const {
    const CreateProblem* last = nullptr;
    const bool is_any = std::any_of(o_.problems.begin(), o_.problems.end(),
                                    [](const auto& problem) { return problem.second.reason == kQuotaExceeded; });
    if (!is_any) return nullptr;
    for (const int node : missing_nodes()) {
      const auto it = o_.problems.find("pod " + pod_name(o_.job.meta.name, node, attempt_of(node)));
      if (it == o_.problems.end() || it->second.reason != kQuotaExceeded) continue;
      if (last == nullptr || try_again_at(it->second) > try_again_at(*last)) last = &it->second;
    }
    return last;
  }

  [[nodiscard]] Capacity count_capacity() const {
    Capacity capacity{.desired = spec_.trainer.num_nodes, .needed = nodes_needed(spec_)};
    const bool is_refused = quota_refusal() != nullptr;
    const bool is_given_back = book_.placement.again_at > now_;
    const auto waits_for_earlier_job = [this](int node) {
      if (node == 0 && !o_.previous_node0.empty()) return true;
      return !o_.previous_pods.empty() &&
             o_.previous_pods.count(pod_name(o_.job.meta.name, node, attempt_of(node))) > 0;
    };
    for (size_t i = 0; i < current_.size(); ++i) {
      const int node = static_cast<int>(i);
      if (book_.done.count(node) > 0) continue;
      const PodView* const pod = current_[i];
      if (pod == nullptr) {
        if (is_refused || is_given_back || waits_for_earlier_job(node)) ++capacity.waiting;
        continue;
      }
      if (pod->scheduled || is_refused) ++capacity.holding;
      pod->scheduled ? ++capacity.placed : ++capacity.waiting;
      if (pod->scheduled && pod->waiting) capacity.is_at_fault = true;
    }
    return capacity;
  }

  void keep_placement(const Capacity& capacity) {
    const PlacementTimeout timeout = apply_placement_timeout(
        spec_, {.capacity = capacity, .are_enough_ready = are_enough_ready(), .job_uid = o_.job.meta.uid, .now = now_},
        book_.placement);
    if (timeout.look_again_at) look_again(*timeout.look_again_at);
    if (!timeout.gives_back) return;
    event(true, std::string(kPodsGivenBack), *timeout.gives_back, "GiveBackPods");
    plan_.why = *timeout.gives_back;
    const std::set<int> created = book_.created;
    for (const int node : created) raise_attempt(node);
  }

  // ---- elastic ----

  void scale() {
    const int before = status_.nodes.desired;
    const int wanted = spec_.trainer.num_nodes;
    if (before != 0 && before != wanted) {
      event(false, "Scaled", "From " + nodes_text(before) + " to " + std::to_string(wanted) + ".", "Scale");
    }
    for (const int node : nodes_to_remove(spec_, book_.created)) raise_attempt(node);
    for (auto done = book_.done.begin(); done != book_.done.end();) {
      done = *done >= wanted ? book_.done.erase(done) : std::next(done);
    }
    const PodView* const node0 = current_.empty() ? nullptr : current_.front();
    const std::optional<int> tell = nodes_to_tell(o_);
    if (tell && report_ != nullptr && node0 != nullptr && !node0->ip.empty()) {
      act(TellNodes{node0->ip, *tell},
          "the coordinator wants " + std::to_string(*report_->wanted_nodes) + ", numNodes is " + std::to_string(*tell));
    }
    if (tell) look_again(now_ + kTellAgainSeconds);
  }

  // ---- pods and what they need ----

  void plan_pods(bool replaces_nobody) {
    const std::vector<int> missing = replaces_nobody ? std::vector<int>() : missing_nodes();
    const bool is_valid = missing.empty() || is_template_valid();
    if (is_over_) return;
    if (is_valid) take_answer_to_first_pod();
    // Looked at also while nobody is missing, or no pod can be made: without the Service no agent finds a new node 0.
    const bool may_create = !replaces_nobody && (is_valid || has_had_pods()) && has_surroundings() && is_valid;
    for (const LookUpPod& lookup : lookups_) act(lookup, "it was there, and the cache does not have it");
    stop_serving();
    if (may_create) create_pods(missing);
    delete_old_pods();
  }

  std::vector<int> missing_nodes() const {
    std::vector<int> nodes;
    for (size_t i = 0; i < current_.size(); ++i) {
      const int node = static_cast<int>(i);
      if (current_[i] == nullptr && book_.created.count(node) == 0 && book_.done.count(node) == 0)
        nodes.push_back(node);
    }
    return nodes;
  }

  PodOf pod_of(int node) const {
    return {.node = node,
            .attempt = attempt_of(node),
            .avoided_hosts = avoided_hosts(book_, spec_.restart_policy.window_seconds, now_)};
  }

  // False: no pod can be made of this spec, as far as is known.
  bool is_template_valid() {
    if (const Result<Json> pod = desired_pod(o_, pod_of(0)); !pod.ok()) {
      refuse_spec(pod.error().message);
      return false;
    }
    if (!o_.first_pod || o_.first_pod->generation != o_.job.meta.generation || o_.first_pod->invalid.empty())
      return true;
    refuse_spec("the API server refuses a pod of this spec: " + with_template_paths(o_.first_pod->invalid));
    return false;
  }

  void take_answer_to_first_pod() {
    const int64_t generation = o_.job.meta.generation;
    const bool is_valid = o_.first_pod && o_.first_pod->generation == generation && o_.first_pod->invalid.empty();
    if (is_valid) book_.checked_generation = generation;
  }

  // A job that never had a pod was made wrong, and ends. One that had pods keeps those that run, and waits for another
  // spec.
  void refuse_spec(const std::string& message) {
    if (!has_had_pods()) return fail({"InvalidSpec", message});
    hold_up({"InvalidSpec", message});
  }

  bool has_had_pods() const {
    return book_.checked_generation != 0 || !o_.pods.empty() || !book_.created.empty() || !status_.attempts.empty();
  }

  // Claim, NetworkPolicy, Service. Pods come after them, but for the first of a spec, which comes beside the Service.
  bool has_surroundings() {
    if (const std::string claim = missing_claim(); !claim.empty()) {
      hold_up({"ClaimMissing", "spec.checkpoint.volume: there is no PersistentVolumeClaim " + quoted(claim) +
                                   " in namespace " + o_.job.meta.ns + "; create it"});
      look_again(now_ + kTryAgainSeconds);
      return false;
    }
    bool has_all = true;
    if (spec_.network_policy == api::NetworkPolicyMode::kIntraJob) {
      has_all = has_object("NetworkPolicy", o_.network_policy, desired_network_policy(o_.job, o_.settings),
                           network_policy_differs);
    }
    return has_object("Service", o_.service, desired_service(o_.job), service_differs) && has_all;
  }

  std::string missing_claim() const {
    if (!spec_.checkpoint || o_.claim_exists.value_or(true)) return {};
    return text_field(spec_.checkpoint->volume, {"persistentVolumeClaim", "claimName"});
  }

  // False while pods cannot be made for want of it. One that is made in this pass is in time.
  bool has_object(const std::string& kind, const std::optional<Json>& object, Json desired,
                  bool (*differs)(const Json& object, const Json& desired)) {
    const std::string name = kind + " " + o_.job.meta.name;
    if (object) {
      if (!api::meta_of(*object).deletion_time) {
        if (differs(*object, desired)) act(ApplyObject{std::move(desired)}, "somebody changed it");
        return true;
      }
      hold_up({"ObjectTerminating", name + " is being deleted; it is made again when it is gone"});
      return false;
    }
    if (is_held_up(name)) return false;
    act(CreateObject{std::move(desired)}, "the job's pods need it");
    return o_.problems.count(name) == 0;
  }

  // The first is the one that is said.
  void hold_up(Obstacle obstacle) {
    if (!obstacle_) obstacle_ = std::move(obstacle);
  }

  // Was its create refused, and is it too early to try again?
  bool is_held_up(const std::string& name) {
    const auto it = o_.problems.find(name);
    if (it == o_.problems.end()) return false;
    return is_held_up(it->second);
  }
  bool is_held_up(const CreateProblem& problem) {
    hold_up({problem.reason, problem.message});
    const api::UnixSeconds again = try_again_at(problem);
    look_again(std::max(again, now_ + 1));
    return now_ < again;
  }

  void create_pods(const std::vector<int>& missing) {
    if (book_.placement.again_at > now_) {
      hold_up({std::string(kPodsGivenBack),
               "too few nodes had a machine, and all pods were given back; they are made again at " +
                   api::format_time(book_.placement.again_at)});
      return;
    }
    if (const CreateProblem* const refusal = quota_refusal(); refusal != nullptr && is_held_up(*refusal)) return;
    const int64_t generation = o_.job.meta.generation;
    bool is_first = book_.checked_generation != generation;
    for (const int node : missing) {
      const PodOf of = pod_of(node);
      const std::string name = pod_name(o_.job.meta.name, node, of.attempt);
      if (const api::UnixSeconds when = not_before(node, book_); when > now_) {
        look_again(when);
        hold_up({"BackingOff", "node " + std::to_string(node) + " has failed soon after its start; its next pod " +
                                   name + " is made at " + api::format_time(when)});
        continue;
      }
      if (o_.previous_pods.count(name) > 0) {
        hold_up({"PreviousRunTerminating", "pod " + name +
                                               " of an earlier TrainJob of this name is still there; the "
                                               "garbage collector deletes it"});
        look_again(now_ + kTryAgainSeconds);
        continue;
      }
      if (node == 0 && !o_.previous_node0.empty()) {
        hold_up(
            {"PreviousRunTerminating",
             "pod " + o_.previous_node0 +
                 ", node 0 of an earlier TrainJob of this name, still lives and may write a last checkpoint; this "
                 "job's node 0 is made when it has ended (if its machine is lost for good, delete it with --force)"});
        look_again(now_ + kTryAgainSeconds);
        continue;
      }
      if (is_held_up("pod " + name)) continue;
      act(CreatePod{of, name, std::exchange(is_first, false), generation},
          of.attempt == 0 ? "node " + std::to_string(node) + " has no pod"
                          : "it is attempt " + std::to_string(of.attempt) + " of node " + std::to_string(node));
    }
  }

  bool is_old(const PodView& pod) const {
    return pod.attempt < attempt_of(pod.node) || pod.node >= spec_.trainer.num_nodes;
  }

  // A pod that has ended is in no DNS record.
  void stop_serving() {
    const Json desired = desired_service(o_.job);
    const Json& service = o_.service && !service_differs(*o_.service, desired) ? *o_.service : desired;
    for (const PodView& pod : o_.pods) {
      if (!is_old(pod) || has_ended(pod) || !selects(service, pod.meta.labels)) continue;
      act(StopServing{pod.meta.name, pod.meta.uid}, pod.node < spec_.trainer.num_nodes
                                                        ? "its name is its successor's now"
                                                        : "numNodes is " + std::to_string(spec_.trainer.num_nodes));
    }
  }

  // Highest ranks first: in this order they are scaled away.
  void delete_old_pods() {
    const std::set<std::string> kept = pods_kept_for_logs(spec_, status_, o_.pods);
    for (auto pod = o_.pods.rbegin(); pod != o_.pods.rend(); ++pod) {
      if (!is_old(*pod) || pod->deleting || kept.count(pod->meta.name) > 0) continue;
      act(DeletePod{pod->meta.name, pod->meta.uid},
          pod->node < spec_.trainer.num_nodes ? "attempt " + std::to_string(attempt_of(pod->node)) + " follows it"
                                              : "numNodes is " + std::to_string(spec_.trainer.num_nodes));
    }
  }

  void retire_pods() {
    stop_serving();
    delete_old_pods();
  }

  // ---- after the end ----

  void plan_after_the_end() {
    const api::UnixSeconds end = status_.completion_time.value_or(now_);
    api::NodeCounts counts = count_nodes(facts());
    if (is_finished(o_.job.status)) {
      // How the nodes ended is known; what becomes of their pods by cleaning up is no end of theirs.
      counts.succeeded = status_.nodes.succeeded;
      counts.failed = status_.nodes.failed;
    }
    status_.nodes = counts;
    for (const PodView* pod : pods_to_clean_up(spec_, o_.pods)) {
      act(DeletePod{pod->meta.name, pod->meta.uid},
          std::string("the job has finished, and podCleanup is ") + api::to_string(spec_.pod_cleanup));
    }
    const Ttl ttl = apply_ttl(spec_, end, now_);
    if (ttl.look_again_at) look_again(*ttl.look_again_at);
    if (ttl.is_over) {
      act(DeleteJob{}, "it finished at " + api::format_time(end) + ", and ttlSecondsAfterFinished is " +
                           std::to_string(*spec_.ttl_seconds_after_finished));
    }
  }

  // ---- status ----

  StatusFacts facts() const {
    return StatusFacts{.observed = o_,
                       .book = book_,
                       .current = current_,
                       .failed = failed_,
                       .nodes_with_pods = static_cast<int>(nodes_with_pods_.size()),
                       .obstacle = obstacle_,
                       .suspend = suspend_,
                       .report = report_,
                       .recovered = recovered_};
  }

  void set(std::string_view type, ConditionStatus status, std::string reason, std::string message) {
    status_.conditions.set({.type = std::string(type),
                            .status = status,
                            .reason = std::move(reason),
                            .message = std::move(message),
                            .observed_generation = o_.job.meta.generation},
                           now_);
  }
  void set(std::string_view type, const ConditionState& condition) {
    set(type, condition.status, condition.reason, condition.message);
    if (condition.look_again_at) look_again(*condition.look_again_at);
  }

  void write_conditions() {
    if (is_over_) {
      write_last_conditions();
    } else {
      write_suspended();
      write_pods_ready();
      write_running();
    }
    write_checkpoint_ready();
    for (const std::string_view type : {api::condition::kComplete, api::condition::kFailed}) {
      if (status_.conditions.is_true(type)) continue;
      set(type, ConditionStatus::kFalse, is_over_ ? "OtherEnd" : "NotFinished",
          is_over_ ? "The job has ended otherwise." : "The job has not finished.");
    }
    status_.nodes = count_nodes(facts());
    summarise(facts(), status_);
  }

  void write_last_conditions() {
    const std::string_view how =
        status_.conditions.is_true(api::condition::kComplete) ? api::condition::kComplete : api::condition::kFailed;
    const std::string reason(how);
    const std::string message = how == api::condition::kComplete ? "The job is complete." : "The job has failed.";
    using namespace api::condition;  // NOLINT(google-build-using-namespace): nine words of one list
    for (const std::string_view type : {kSuspended, kAdmitted, kPodsReady, kRunning, kRecovering, kDegraded}) {
      // A job that was admitted stays so; the others speak of what it does now.
      if (type == kAdmitted && status_.conditions.is_true(kAdmitted)) continue;
      set(type, ConditionStatus::kFalse, reason, message);
    }
  }

  void write_suspended() {
    const bool is_suspended = suspend_.step == SuspendStep::kSuspended;
    const bool is_stopping = suspend_.step == SuspendStep::kStopping;
    const api::Condition* const before = status_.conditions.find(api::condition::kSuspended);
    if (is_suspended || is_stopping) {
      set(api::condition::kSuspended, is_suspended ? ConditionStatus::kTrue : ConditionStatus::kFalse, suspend_.reason,
          suspend_.message);
      set(api::condition::kAdmitted, ConditionStatus::kFalse, "Suspended", "A suspended job may not have pods.");
      return;
    }
    const bool stays_resumed = before != nullptr && before->reason == "Resumed";
    if (suspend_.step == SuspendStep::kResuming) {
      set(api::condition::kSuspended, ConditionStatus::kFalse, "Resumed", suspend_.message);
    } else if (!stays_resumed) {
      set(api::condition::kSuspended, ConditionStatus::kFalse, "NotSuspended", suspend_.message);
    }
    set(api::condition::kAdmitted, ConditionStatus::kTrue, "NotQueued",
        "The job may have pods; no queue holds it back.");
  }

  void write_pods_ready() {
    const api::Condition* const before = status_.conditions.find(api::condition::kPodsReady);
    const std::string reason_before = before == nullptr ? "" : before->reason;
    const ConditionState condition = pods_ready_condition(facts());
    set(api::condition::kPodsReady, condition);
    if (condition.reason != reason_before && is_problem(condition.reason) && condition.reason != kPodsGivenBack) {
      event(condition.reason != kSchedulingGated, condition.reason, condition.message, "MakePods");
    }
    if (condition.status != ConditionStatus::kTrue || book_.were_ready) return;
    book_.were_ready = true;
    const api::UnixSeconds took = now_ - status_.start_time.value_or(now_);
    measure(metric::kTrainJobTimeToPodsReady, {}, static_cast<double>(took));
    event(false, "PodsReady", condition.message + " It took " + std::to_string(took) + " s.", "MakePods");
  }

  void write_running() {
    const ConditionState running = running_condition(facts());
    set(api::condition::kRunning, running);
    set(api::condition::kRecovering, recovering_condition(facts(), said_before(api::condition::kRecovering)));
    set(api::condition::kDegraded, degraded_condition(facts(), running));
    if (running.status != ConditionStatus::kTrue || book_.has_stepped) return;
    book_.has_stepped = true;
    const api::UnixSeconds took = now_ - status_.start_time.value_or(now_);
    measure(metric::kTrainJobTimeToFirstStep, {}, static_cast<double>(took));
    event(false, "Running", "The run trains, " + std::to_string(took) + " s after its start.", "Train");
  }

  void write_checkpoint_ready() {
    const ConditionState none{ConditionStatus::kFalse, "NoCheckpointYet",
                              "No complete checkpoint of this run is known."};
    set(api::condition::kCheckpointReady,
        checkpoint_ready_condition(status_, said_before(api::condition::kCheckpointReady, none)));
  }

  [[nodiscard]] ConditionState said_before(std::string_view type, const ConditionState& none = {}) const {
    const api::Condition* const before = status_.conditions.find(type);
    return before == nullptr ? none : ConditionState{before->status, before->reason, before->message};
  }

  // ---- the plan ----

  template <typename What>
  void act(What what, std::string why) {
    plan_.actions.push_back({std::move(what), std::move(why)});
  }

  void event(bool is_warning, std::string reason, std::string message, std::string action) {
    plan_.events.push_back({is_warning, std::move(reason), std::move(message), std::move(action)});
  }

  void measure(const MetricName& metric, std::map<std::string, std::string> labels, double value) {
    plan_.measurements.push_back({&metric, std::move(labels), value});
  }

  void look_again(api::UnixSeconds at) {
    if (at > now_ && (!plan_.look_again_at || at < *plan_.look_again_at)) plan_.look_again_at = at;
  }

  // Figures that only go on are written now and then; any other write takes them along, and every decision knows them.
  bool can_wait() {
    const std::optional<api::JobProgress>& written = o_.job.status.progress;
    if (!written || written->last_updated_time > now_) return false;
    const api::UnixSeconds due = written->last_updated_time + o_.settings.progress_seconds;
    if (due <= now_) return false;
    api::TrainJobStatus rest = status_;
    rest.progress = written;
    if (!(rest == o_.job.status)) return false;
    look_again(due);
    return true;
  }

  Plan finish() {
    status_.observed_generation = o_.job.meta.generation;
    status_.restarts.total = status_.restarts.process + status_.restarts.pod + status_.restarts.gang;
    status_.bookkeeping = to_json(book_);
    if (!(status_ == o_.job.status) && !can_wait()) plan_.status = status_;
    if (plan_.why.empty()) plan_.why = status_.message;
    return std::move(plan_);
  }

  const Observed& o_;
  const api::TrainJobSpec& spec_;
  const api::UnixSeconds now_;
  api::TrainJobStatus status_;  // as it will be
  Bookkeeping book_;
  Plan plan_;

  std::vector<const PodView*> current_;  // by node rank: the pod of its attempt
  std::vector<bool> failed_;             // by node rank
  std::vector<PodEnd> ends_;             // bad ones
  std::vector<LookUpPod> lookups_;
  std::set<int> nodes_with_pods_;
  int pods_left_ = 0;
  const RunReport* report_ = nullptr;
  std::string recovered_;      // StatusFacts::recovered
  bool made_no_step_ = false;  // node 0 has ended, and had nothing to do
  SuspendDecision suspend_;
  std::optional<Obstacle> obstacle_;
  bool is_over_ = false;
};

// Nothing: the job is ours to look after.
std::string why_hands_off(const Observed& o) {
  if (o.job.spec.managed_by != api::kControllerName) return "spec.managedBy is " + quoted(o.job.spec.managed_by);
  if (o.job.meta.deletion_time) return "the TrainJob is being deleted; the garbage collector takes its objects";
  const bool cannot_create = std::any_of(o.problems.begin(), o.problems.end(), [](const auto& problem) {
    return problem.second.kind == CreateProblem::Kind::kNamespaceTerminating;
  });
  return cannot_create ? "the namespace is being deleted" : "";
}

}  // namespace

Plan make_plan(const Observed& observed) {
  Plan plan;
  plan.why = why_hands_off(observed);
  if (!plan.why.empty()) return plan;
  return Planner(observed).run();
}

}  // namespace lockstep::train
