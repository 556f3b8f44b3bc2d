// A NodeMachine with a clock that the test moves.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/recovery/node_machine.h"
#include "tests/runner/recovery/outputs.h"

namespace lockstep {

using NodeOutputs = std::vector<NodeOutput>;

// The messages of one type to the coordinator.
template <typename T>
std::vector<T> all_sent(const NodeOutputs& outputs) {
  std::vector<T> found;
  for (const NodeOutput& output : outputs) {
    const auto* const send = std::get_if<SendToCoordinator>(&output);
    if (send == nullptr) continue;
    if (const T* message = std::get_if<T>(&send->message)) found.push_back(*message);
  }
  return found;
}

template <typename T>
std::optional<T> sent(const NodeOutputs& outputs) {
  const std::vector<T> found = all_sent<T>(outputs);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

// The first one. If there is none, the test fails and goes on with an empty one.
template <typename T>
T get_sent(const NodeOutputs& outputs) {
  EXPECT_TRUE(sent<T>(outputs));
  return sent<T>(outputs).value_or(T{});
}

// A node that has joined a coordinator, and a clock that the test moves. Rank `first_rank` of `world_size` is the
// node's first.
class NodeScenario {
 public:
  explicit NodeScenario(int nproc = 2, int max_restarts = 10)
      : state(NodeOptions{.nproc = nproc, .max_restarts = max_restarts}), world_size(nproc) {}

  NodeOutputs handle(const NodeEvent& event) {
    NodeOutputs outputs = step(state, event, now);
    const std::optional<NodeFailed> failed = sent<NodeFailed>(outputs);
    if (!failed || !failed->ends_job || !coordinator_answers) return outputs;
    for (NodeOutput& output : receive(EndJob{failed->code, failed->message})) outputs.push_back(std::move(output));
    return outputs;
  }
  NodeOutputs receive(const CoordinatorMessage& message) { return handle(CoordinatorSent{message}); }

  NodeOutputs begin() {
    NodeOutputs outputs = handle(Started{});
    handle(CoordinatorFound{Welcome{generation}});
    return outputs;
  }
  NodeOutputs hello() {
    NodeOutputs last;
    for (int rank = 0; rank < state.options.nproc; ++rank) last = handle(WorkerHello{rank});
    return last;
  }
  NodeOutputs place(int first_rank = 0, int nnodes = 1) {
    return receive(Assignment{
        .generation = ++generation, .rank = first_rank, .world_size = world_size, .nnodes = nnodes, .address = ""});
  }
  // From nothing to a placed group.
  void train() {
    begin();
    hello();
    place();
  }
  NodeOutputs end(int rank, int code, const std::string& message = "") {
    return handle(WorkerEnded{.local_rank = rank, .pid = 100 + rank, .code = code, .message = message});
  }
  NodeOutputs leave(int rank, const std::string& cause = "PeerLost") {
    return handle(WorkerLeft{rank, generation, cause, "it saw " + cause});
  }
  // Rank 1 of a placed group ends at step `at`, the others leave.
  NodeOutputs crash_at(int64_t at) {
    for (int rank = 0; rank < state.options.nproc; ++rank) handle(WorkerAtStep{rank, at});
    NodeOutputs outputs = end(1, 139);
    if (find<StartWorker>(outputs) != nullptr) leave(0);
    return outputs;
  }
  // After crash_at: the new process joins and the group is placed again.
  void recover() {
    if (state.workers[1].phase == WorkerPhase::kBackoff) pass_to_deadline();
    if (state.workers[0].phase == WorkerPhase::kPlaced) leave(0);
    handle(WorkerHello{1});
    place();
  }
  // When something is due about the workers or the end of the node. (Ticks come more often.)
  [[nodiscard]] std::optional<TimePoint> deadline() const {
    std::optional<TimePoint> next = state.stop_deadline;
    const auto consider = [&](const std::optional<TimePoint>& at) {
      if (at && (!next || *at < *next)) next = at;
    };
    for (const WorkerState& w : state.workers) consider(w.deadline);
    if (!state.complete && !state.gave_up && !state.job_ended) consider(state.answer_deadline);
    return state.finished ? std::nullopt : next;
  }
  // Time passes, the coordinator beats, and the machine gets its ticks. What the last tick led to.
  NodeOutputs pass(std::chrono::steady_clock::duration time) {
    NodeOutputs last;
    const TimePoint until = now + time;
    while (now < until && !state.finished) {
      now = std::min(until, std::max(now + std::chrono::milliseconds(1), state.deadline.value_or(until)));
      step(state, CoordinatorSent{CoordinatorBeat{}}, now);
      last = handle(NodeTick{});
    }
    return last;
  }
  NodeOutputs pass_to_deadline() {
    EXPECT_TRUE(deadline().has_value());
    return pass(deadline().value_or(now) - now);
  }

  NodeState state;
  TimePoint now{std::chrono::seconds(1000)};
  uint64_t generation = uint64_t{3} << 32U;
  int world_size;
  bool coordinator_answers = true;
};

}  // namespace lockstep
