// AgentLink: the training loop's side of the link to this node's agent (link/agent_session).
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>

#include "runner/contract/messages.h"

namespace lockstep {

class AgentLink {
 public:
  virtual ~AgentLink() = default;

  [[nodiscard]] virtual bool was_cut(uint64_t generation) const = 0;
  // Set when the ranks of `generation` are to leave the group together at the end of a step: the exit code with which
  // this worker then ends, or 0 when it is to wait for the next assignment.
  [[nodiscard]] virtual std::optional<int> leave_together(uint64_t generation) const = 0;
  virtual void send(const WorkerMessage& message) = 0;
};

}  // namespace lockstep
