// What follows from a bad end of a program: a restart, or the end of the job; whether it counts; whether the machine is
// avoided. Pure. (The table in docs/failure-handling.md.)
//
// One rule for all who restart something of Lockstep's own (a user's program has no exit codes of ours: its agent
// reports 1 for each, agent/program_ranks.cc, and with the launchers Torchrun and None the operator asks no rule): the
// agent (node_machine.h, a process), the coordinator (a node), `lockstep run --local_nodes` (node_restarts.h, a node)
// and the operator (operator/train/failure_policy.h, a pod). Before the first commit an error of the user's input (2,
// 3) is final: the next process would find it, too. After it the same input has worked, so such an error is news about
// one machine or one moment, like every other end but 5. It goes up the levels process, pod, another Kubernetes node,
// gang; the budgets of each level bound it. What only one level knows (restartPolicy.rules, budgets, deadlines) is
// decided there. So is what bounds a restart:
//   process  the agent gives its node up after max_restarts, in a crash loop, or at the second end in a row that
//            avoids_machine. All ends count there. Its own word is never final for the job.
//   node     the coordinator ends the job (agents then report jobEnded), or goes on without the node, which ends with
//            the code of its worker and without jobEnded.
//   pod      the operator and node_restarts.h: count_end, below.
// An agent that finds its own pod lacking GPUs, or a worker fewer GPUs than its agent, ends with 12; a node that the
// coordinator refuses, because it differs from nodes that have trained, with 2.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace lockstep {

struct BadEnd {
  int code = 1;  // contract/exit_code.h; not 0
  // The run was refused because its flags differ from those of its newest checkpoint (kConfigurationChanged).
  bool is_configuration_changed = false;
  // The run has committed a step since the spec that shapes the pods last changed, as far as the caller knows.
  bool after_first_commit = false;
};

enum class Consequence {
  kRestart,     // by this level, or by the one above it when this level's budget is used up
  kSuspendJob,  // until its spec changes; where nobody can suspend the job, it ends
  kEndJob,
};

struct EndVerdict {
  Consequence consequence = Consequence::kRestart;
  bool is_counted = true;       // against max_restarts
  bool avoids_machine = false;  // what is started in its place goes to another Kubernetes node
  std::string because;          // part of a sentence; may be empty
};

EndVerdict judge_end(const BadEnd& end);

// ---- what bounds the restarts of a pod, or of a node of --local_nodes ----

// The second end of this kind ends the job, unless a new checkpoint came between the two.
inline constexpr int kOutOfMemoryMax = 2;

struct RestartLimits {
  int max_restarts = 10;  // ends that count, within the window and without a new checkpoint
  int window_seconds = 3600;
  int no_progress_restarts = 3;  // of one node in a row, without a step beyond the furthest one
};

// What the caller keeps of one job.
struct RestartCounts {
  // Ends that count, by the beginning of a slice of the window: bounded, however many restarts are allowed.
  std::map<int64_t, int> counted;
  int out_of_memory = 0;                // since the newest checkpoint
  int64_t checkpoint_step = -1;         // of the newest checkpoint that has cleared the two above
  int64_t furthest_step = -1;           // the highest that is known to have been committed
  std::map<int, int> without_progress;  // node → ends in a row at or before furthest_step
  bool operator==(const RestartCounts&) const = default;
};

struct EndToCount {
  int node = 0;
  int64_t known_step = -1;  // the highest of the run that is known by now
  bool is_counted = true;   // against max_restarts
  bool is_out_of_memory = false;
  bool tells_of_progress = true;  // it counts for no_progress_restarts
};
enum class UsedUp { kNothing, kOutOfMemory, kNoProgress, kRestarts };
struct CountedEnd {
  UsedUp used_up = UsedUp::kNothing;  // the job is to end
  int no_progress = 0;                // how often in a row this node has now ended without progress
  int failures = 0;                   // that count, within the window
  // The last restart that no_progress_restarts allows: all nodes are restarted, because the cause may lie in the
  // others.
  bool is_last_try = false;
};
CountedEnd count_end(const EndToCount& end, const RestartLimits& limits, int64_t now_seconds, RestartCounts& counts);

// A new checkpoint clears what max_restarts and kOutOfMemoryMax bound.
void clear_counts_at(int64_t checkpoint_step, RestartCounts& counts);

}  // namespace lockstep
