#include "operator/train/failure_policy.h"

#include <algorithm>
#include <tuple>

#include "operator/train/pod_group.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"
#include "runner/base/sha256.h"
#include "runner/contract/exit_code.h"
#include "runner/recovery/restart_policy.h"

namespace lockstep::train {
namespace {

using api::RuleAction;

// The scheduler's reason when it takes a pod away for others of higher priority.
constexpr std::string_view kPreempted = "PreemptionByScheduler";

RuleAction action_of_scope(const api::TrainJobSpec& spec) {
  switch (spec.restart_policy.scope) {
    case api::FailureScope::kPod:
      return RuleAction::kReplacePod;
    case api::FailureScope::kGang:
      return RuleAction::kRestartGang;
    case api::FailureScope::kAuto:
      break;
  }
  // The peers of another launcher's ranks cannot form a new group.
  return spec.trainer.launcher == api::Launcher::kLockstep ? RuleAction::kReplacePod : RuleAction::kRestartGang;
}

bool matches(const api::FailureRule& rule, const PodEnd& end) {
  const auto has = [](const auto& list, const auto& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };
  if (end.exit_code && end.is_of_trainer && has(rule.exit_codes, *end.exit_code)) return true;
  return std::any_of(end.pod_reasons.begin(), end.pod_reasons.end(),
                     [&](const std::string& reason) { return has(rule.pod_reasons, reason); });
}

// By the reason, which says so of a program that the kernel killed, too, and only of ours when its exit code is 13.
bool is_out_of_memory(const PodEnd& end) {
  return end.kind == EndKind::kExit && end.reason == exit_reason(code_of(ExitCode::kOutOfMemory));
}

// The agent ended because the run did, and no rank of its own was the cause. (Agents of an earlier version end the
// whole run when one node's workers crash again and again: then all pods end with that node's code.)
bool ended_with_the_run(const PodEnd& end, const api::TrainJobSpec& spec) {
  return spec.trainer.launcher == api::Launcher::kLockstep && end.kind == EndKind::kExit && end.job_ended && !end.rank;
}

Verdict judge_exit(const PodEnd& end, const api::TrainJobSpec& spec, bool after_first_commit) {
  const RuleAction retry = action_of_scope(spec);
  const int code = end.exit_code.value_or(code_of(ExitCode::kCrash));
  if (!end.is_of_trainer) return {retry, true, false, ""};
  if (spec.trainer.launcher != api::Launcher::kLockstep) {
    if (is_stop(code)) return {retry, false, false, "it was told to stop by somebody else"};
    return {retry, true, false, ""};
  }
  const EndVerdict verdict = judge_end({.code = is_out_of_memory(end) ? code_of(ExitCode::kOutOfMemory) : code,
                                        .is_configuration_changed = end.reason == kConfigurationChanged,
                                        .after_first_commit = after_first_commit});
  if (verdict.consequence == Consequence::kRestart) {
    return {retry, verdict.is_counted, verdict.avoids_machine, verdict.because};
  }
  return {RuleAction::kFail, verdict.is_counted, false, verdict.because,
          verdict.consequence == Consequence::kSuspendJob};
}

Verdict judge_without_rules(const PodEnd& end, const api::TrainJobSpec& spec, bool after_first_commit) {
  switch (end.kind) {
    case EndKind::kExit:
      return judge_exit(end, spec, after_first_commit);
    case EndKind::kOverLimit:
      return {action_of_scope(spec), true, false, "it used more local storage than its own limit allows"};
    case EndKind::kNotStarted:  // its peers wait for it wherever it is, so that it alone is replaced
      return {RuleAction::kReplacePod, false, true, ""};
    default:
      break;
  }
  if (end.reason == kPreempted && spec.scheduling.gang == api::Gang::kNative && is_disrupted_whole(spec)) {
    return {RuleAction::kRestartGang, false, false, "the scheduler takes the whole gang"};
  }
  return {action_of_scope(spec), false, false, ""};
}

Verdict judge_by_rules(const PodEnd& end, const api::TrainJobSpec& spec, bool after_first_commit) {
  const std::vector<api::FailureRule>& rules = spec.restart_policy.rules;
  for (size_t i = 0; i < rules.size(); ++i) {
    if (!matches(rules[i], end)) continue;
    return {rules[i].action, rules[i].action != RuleAction::kIgnore, rules[i].avoid_node,
            "restartPolicy.rules[" + std::to_string(i) + "] says " + api::to_string(rules[i].action)};
  }
  return judge_without_rules(end, spec, after_first_commit);
}

// What of a spec can make a program refuse its input. Not numNodes, which also changes while a run goes on, and which a
// queue may lower.
std::string hash_of_pods(const api::TrainJobSpec& spec) {
  constexpr size_t kDigits = 16;
  const api::Trainer& t = spec.trainer;
  Json shape{{"image", t.image},
             {"command", t.command},
             {"args", t.args},
             {"env", t.env},
             {"numProcPerNode", t.num_proc_per_node.value_or(0)},
             {"resourcesPerNode", t.resources_per_node},
             {"podTemplate", t.pod_template}};
  // Not with their defaults, so that hashes of operators that did not know the fields stay valid.
  if (t.status_port != api::Trainer().status_port) shape["statusPort"] = t.status_port;
  if (t.coordinator_port != api::Trainer().coordinator_port) shape["coordinatorPort"] = t.coordinator_port;
  if (t.shared_memory != api::SharedMemory::kMemory) shape["sharedMemory"] = to_string(t.shared_memory);
  return sha256_hex(dump_line(shape)).substr(0, kDigits);
}

void note_node(const std::string& node, api::UnixSeconds now, std::map<std::string, api::UnixSeconds>& nodes) {
  if (node.empty()) return;
  nodes[node] = now;
  if (nodes.size() <= kAvoidedNodesMax) return;
  nodes.erase(
      std::min_element(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.second < b.second; }));
}

// Returns whether that node's kubelet has refused a pod of this job before, within restartPolicy.windowSeconds.
bool note_refusal(const PodEnd& end, int window_seconds, api::UnixSeconds now, Bookkeeping& book) {
  std::erase_if(book.refusals, [&](const auto& refusal) { return refusal.second + window_seconds < now; });
  const bool was_before = book.refusals.count(end.node) > 0;
  note_node(end.node, now, book.refusals);
  return was_before;
}

// Why this end fails the job, if a budget is used up.
std::optional<JobFailure> failure_of(const PodEnd& end, const CountedEnd& counted, const api::RestartPolicy& policy,
                                     const Bookkeeping& book) {
  switch (counted.used_up) {
    case UsedUp::kNothing:
      break;
    case UsedUp::kOutOfMemory:
      return JobFailure{end.reason, describe(end) +
                                        "; it is out of memory for the second time with no checkpoint between: "
                                        "ask for more memory, or make the batch smaller"};
    case UsedUp::kNoProgress:
      return JobFailure{
          "NoProgress",
          describe(end) + "; " + plural(policy.no_progress_restarts, "time") + " in a row a restart of pod " +
              std::to_string(end.node_rank) + " came no further than " +
              (book.furthest_step < 0 ? std::string("its start") : "step " + std::to_string(book.furthest_step)) +
              " (restartPolicy.noProgressRestarts)"};
    case UsedUp::kRestarts:
      return JobFailure{"TooManyRestarts", describe(end) + "; that is failure " + std::to_string(counted.failures) +
                                               " within " + std::to_string(policy.window_seconds) +
                                               " s without a new checkpoint, and restartPolicy.maxRestarts is " +
                                               std::to_string(policy.max_restarts)};
  }
  return std::nullopt;
}

// Does this end count for restartPolicy.noProgressRestarts? Only runs with launcher Lockstep report their steps. A pod
// that gave up waiting for its peers counts, because peers that run and never find each other would be replaced for
// ever. It does not count while a peer has not started: the job may wait for that one without a time limit. A pod that
// ended with the run counts, or a run that ends without a cause in any of its pods would be started again for ever.
bool counts_for_no_progress(const PodEnd& end, const Verdict& verdict, const api::TrainJobSpec& spec,
                            const FailureInput& input) {
  if (spec.trainer.launcher != api::Launcher::kLockstep) return false;
  if (end.kind == EndKind::kOverLimit) return verdict.is_counted;
  if (end.kind != EndKind::kExit) return false;
  const bool lost_its_peers = end.is_of_trainer && end.exit_code == code_of(ExitCode::kPeerLost);
  return verdict.is_counted || (lost_its_peers ? !input.waits_for_pods : ended_with_the_run(end, spec));
}

std::string sentence_of(const PodEnd& end, const Verdict& verdict) {
  std::string text = describe(end);
  text += verdict.action == RuleAction::kRestartGang ? "; all pods are replaced" : "; it is replaced";
  if (!verdict.is_counted) text += ", which restartPolicy.maxRestarts does not count";
  if (verdict.avoids_node && !end.node.empty()) text += ", on another node than " + end.node;
  if (!verdict.because.empty()) text += " (" + verdict.because + ")";
  return text;
}

// When the wait before the node rank's next replacement ends; 0: there is no wait.
api::UnixSeconds wait_ends_at(int node_rank, const Bookkeeping& book) {
  const auto it = book.quick_replacements.find(node_rank);
  if (it == book.quick_replacements.end() || it->second.times == 0) return 0;
  constexpr int kDoublings = 16;
  const api::UnixSeconds wait = kReplacementWaitFirstSeconds << std::min(it->second.times - 1, kDoublings);
  return it->second.last + std::min(wait, kReplacementWaitMaxSeconds);
}

void forget_quick_replacements(api::UnixSeconds now, Bookkeeping& book) {
  std::erase_if(book.quick_replacements, [&](const auto& entry) {
    return std::max(entry.second.last, wait_ends_at(entry.first, book)) + kQuickReplacementSeconds <= now;
  });
}

}  // namespace

Verdict judge(const PodEnd& end, const api::TrainJobSpec& spec, bool after_first_commit) {
  Verdict verdict = judge_by_rules(end, spec, after_first_commit);
  if (verdict.action != RuleAction::kFail && ended_with_the_run(end, spec)) {
    // The pod with the cause, whose report names its rank, is counted, and its node avoided: once, and not once a pod.
    verdict.is_counted = false;
    verdict.avoids_node = false;
    verdict.because = "the run ended because of another pod";
  }
  return verdict;
}

bool has_committed(const api::TrainJobSpec& spec, const Bookkeeping& book) {
  return !book.committed_spec.empty() && book.committed_spec == hash_of_pods(spec);
}

void note_commit(const api::TrainJobSpec& spec, Bookkeeping& book) { book.committed_spec = hash_of_pods(spec); }

FailureOutcome apply_failure_policy(const api::TrainJobSpec& spec, std::vector<PodEnd> ends, const FailureInput& input,
                                    Bookkeeping& book) {
  // The first end is the likely cause of the others.
  std::sort(ends.begin(), ends.end(), [](const PodEnd& a, const PodEnd& b) {
    return std::tie(a.time, a.node_rank) < std::tie(b.time, b.node_rank);
  });
  // A worker's report names the step that its state had, which a checkpoint may have brought: only a further one is
  // news.
  const int64_t furthest_step = std::max({input.known_step, book.furthest_step, int64_t{0}});
  const bool is_further = std::any_of(
      ends.begin(), ends.end(), [furthest_step](const PodEnd& end) { return end.step.value_or(0) > furthest_step; });
  if (is_further) note_commit(spec, book);
  const bool after_first_commit = has_committed(spec, book);
  FailureOutcome outcome;
  for (PodEnd& end : ends) {
    Verdict verdict = judge(end, spec, after_first_commit);
    // When all pods restart, only the first end counts: the others ended because of it.
    const bool is_aftermath = outcome.is_gang;
    if (end.kind == EndKind::kRefused && note_refusal(end, spec.restart_policy.window_seconds, input.now, book)) {
      verdict.avoids_node = true;
      if (verdict.because.empty()) verdict.because = "its kubelet refused a pod of this job before";
    }
    if (end.kind == EndKind::kNotStarted) book.moved.insert(end.node_rank);
    if (input.queue_assigns_nodes) verdict.avoids_node = false;
    if (verdict.avoids_node) note_node(end.node, input.now, book.avoided);
    if (verdict.action == RuleAction::kFail) {
      outcome.failure = JobFailure{end.reason, describe(end) + "; " + verdict.because};
      const bool is_of_input =
          end.kind == EndKind::kExit && end.is_of_trainer && spec.trainer.launcher == api::Launcher::kLockstep &&
          (end.exit_code == code_of(ExitCode::kUsage) || end.exit_code == code_of(ExitCode::kData));
      if (is_of_input && !verdict.is_fixable_by_spec_change) {
        outcome.failure->message += "; when it is corrected, delete the job, and apply its file again";
      }
      outcome.is_fixable_by_spec_change = verdict.is_fixable_by_spec_change;
      outcome.replacements.push_back({std::move(end), std::move(verdict), ""});
      return outcome;
    }
    const api::RestartPolicy& policy = spec.restart_policy;
    CountedEnd counted;
    if (!is_aftermath) {
      counted = count_end({.node = end.node_rank,
                           .known_step = std::max(input.known_step, end.step.value_or(-1)),
                           .is_counted = verdict.is_counted,
                           .is_out_of_memory = is_out_of_memory(end),
                           .tells_of_progress = counts_for_no_progress(end, verdict, spec, input)},
                          {.max_restarts = policy.max_restarts,
                           .window_seconds = policy.window_seconds,
                           .no_progress_restarts = policy.no_progress_restarts},
                          input.now, book);
      outcome.failure = failure_of(end, counted, policy, book);
    }
    if (counted.is_last_try && verdict.action == RuleAction::kReplacePod && policy.scope == api::FailureScope::kAuto) {
      verdict.action = RuleAction::kRestartGang;
      verdict.because = "replacing it alone came no further " + plural(counted.no_progress - 1, "time") + " in a row";
    }
    if (verdict.action == RuleAction::kRestartGang) outcome.is_gang = true;
    std::string message = sentence_of(end, verdict);
    outcome.replacements.push_back({std::move(end), std::move(verdict), std::move(message)});
    if (outcome.failure) return outcome;
  }
  return outcome;
}

api::UnixSeconds not_before(int node_rank, const Bookkeeping& book) {
  return std::max(wait_ends_at(node_rank, book), wait_ends_at(kGang, book));
}

void note_replacement(int node_rank, api::UnixSeconds now, Bookkeeping& book) {
  forget_quick_replacements(now, book);
  const auto it = book.quick_replacements.find(node_rank);
  const int times = it == book.quick_replacements.end() ? 0 : it->second.times + 1;
  book.quick_replacements[node_rank] = {times, now};
}

void forget_settled(int64_t known_step, api::UnixSeconds now, Bookkeeping& book) {
  forget_quick_replacements(now, book);
  if (book.without_progress.empty() || known_step <= book.furthest_step) return;
  // As count_end would at the next failure.
  book.furthest_step = known_step;
  book.without_progress.clear();
}

std::set<std::string> avoided_nodes(const Bookkeeping& book, int window_seconds, api::UnixSeconds now) {
  std::set<std::string> nodes;
  for (const auto& [node, since] : book.avoided) {
    if (since + window_seconds > now) nodes.insert(node);
  }
  return nodes;
}

}  // namespace lockstep::train
