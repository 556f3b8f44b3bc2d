// Which bad end of a program ends the whole job. Pure. (The table in docs/failure-handling.md.)
//
// One rule for all who restart something: the agent (supervisor.h, a process), the coordinator (a node),
// `lockstep run --local_nodes` (node_ladder.h, a node) and the operator (operator/train/failure_policy.h, a pod).
// Before the first commit an error of the user's input (2, 3) is final: the next process would find it, too. After it
// the same input has worked, so such an error is news about one machine or one moment, like every other end but 5. It
// goes up the levels process, pod, another Kubernetes node, gang; the budgets of each level bound it.
// What only one level knows (restartPolicy.rules, budgets, deadlines) is decided there. So is what bounds a restart:
//   process  the supervisor gives its node up after max_restarts, in a crash loop, or at the second end in a row that
//            avoids_machine. All ends count there. Its own word is never final for the job.
//   node     the coordinator ends the job (agents then report jobEnded), or goes on without the node, which ends with
//            the code of its worker and without jobEnded.
//   pod      the operator and node_ladder.h: max_restarts, ends without progress, then the gang.
// An agent that finds its own pod lacking GPUs, or a worker fewer GPUs than its agent, ends with 12; a node that the
// coordinator refuses, because it differs from nodes that have trained, with 2.
#pragma once

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

}  // namespace lockstep
