// restartPolicy: what follows when a pod ends badly. Pure. (docs/failure-handling.md)
//
// The first of `rules` that matches decides; else, for a trainer of launcher Lockstep,
// runner/recovery/restart_policy.h, whose rule is the agents' as well. The exit codes of other programs mean nothing
// but success, a stop, or a crash. Then its three limits apply (count_end): on the counted failures within
// windowSeconds (a new checkpoint resets the count), on restarts in a row without one new step, and on ends for lack of
// memory. The outcome: the job stops, with a reason, or one pod or all pods are replaced (scope).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "operator/api/trainjob.h"
#include "operator/train/bookkeeping.h"
#include "operator/train/pod_end.h"

namespace lockstep::train {

// When a pod is to be replaced that was made less than this long ago, its successor waits: kReplacementWaitFirstSeconds
// at first, doubling up to kReplacementWaitMaxSeconds. The first replacement never waits.
inline constexpr api::UnixSeconds kQuickReplacementSeconds = 60;
inline constexpr api::UnixSeconds kReplacementWaitFirstSeconds = 5;
inline constexpr api::UnixSeconds kReplacementWaitMaxSeconds = 300;
// At most so many nodes are avoided (and remembered for a refusal), the newest of them: a job that avoids every node
// would never start.
inline constexpr size_t kAvoidedNodesMax = 16;

struct Verdict {
  api::RuleAction action = api::RuleAction::kReplacePod;
  bool is_counted = true;
  bool avoids_node = false;
  std::string because;                     // "restartPolicy.rules[0] says so", "exit code 5 is never retried"
  bool is_fixable_by_spec_change = false;  // with kFail: the job is suspended until somebody changes the spec
};
// Decides about one end, without regard to the budgets. `after_first_commit`: has_committed.
Verdict judge(const PodEnd& end, const api::TrainJobSpec& spec, bool after_first_commit);

// Has the run, as far as its reports say, committed a step since the part of its spec that shapes the pods last
// changed? That part changes only while the job is suspended and has no pods, so a report is always about the present
// one.
bool has_committed(const api::TrainJobSpec& spec, const Bookkeeping& book);
// A report of pod 0 says so.
void note_commit(const api::TrainJobSpec& spec, Bookkeeping& book);

// Why a job has failed: the condition's reason and message.
struct JobFailure {
  std::string reason;
  std::string message;
};

struct Replacement {
  PodEnd end;
  Verdict verdict;
  std::string message;  // a sentence: what ended how, and what follows
};

struct FailureOutcome {
  std::optional<JobFailure> failure;       // the job is over; nothing is replaced
  bool is_fixable_by_spec_change = false;  // the job is suspended and not failed
  std::vector<Replacement> replacements;   // ends that were judged, in the order of time
  bool is_gang = false;                    // all pods are replaced, because of the first with kRestartGang
};

// The inputs of the policy besides the ends.
struct FailureInput {
  int64_t known_step = -1;  // the highest that pod 0 has reported
  api::UnixSeconds now = 0;
  bool waits_for_pods = false;       // Capacity::waits_for_pods
  bool queue_assigns_nodes = false;  // a pod goes where its predecessor was, so that no node can be avoided
};
// Counts each end once: the caller raises the attempts of the pods in the same write that keeps `book`.
FailureOutcome apply_failure_policy(const api::TrainJobSpec& spec, std::vector<PodEnd> ends, const FailureInput& input,
                                    Bookkeeping& book);

// Notes that the node rank's pod is replaced now, or with kGang all of them.
void note_replacement(int node_rank, api::UnixSeconds now, Bookkeeping& book);
// Drops what no later decision needs: quick replacements whose pods have lived long enough, and failures without
// progress once the run has come further than furthest_step. So the status of 10,000 pods that were lost once stays
// small.
void forget_settled(int64_t known_step, api::UnixSeconds now, Bookkeeping& book);
// When the node rank's next pod may be made, by its own quick replacements and by the gang's; 0: at once.
api::UnixSeconds not_before(int node_rank, const Bookkeeping& book);

// Nodes that the next pods stay away from.
std::set<std::string> avoided_nodes(const Bookkeeping& book, int window_seconds, api::UnixSeconds now);

}  // namespace lockstep::train
