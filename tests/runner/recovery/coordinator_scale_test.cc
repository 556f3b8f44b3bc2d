// What a big job costs: NodeMachines of 100, 1,000 and 10,000 nodes against one Coordinator, without a network between.
// Messages per agent are asserted; times are only printed, because they depend on the machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/recovery/coordinator.h"
#include "runner/recovery/node_machine.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr int kWorkersPerNode = 8;
constexpr int kSecondsOfTraining = 30;
constexpr size_t kConnectionsBegin = 1;

struct Costs {
  std::vector<int> messages;  // of each agent, both directions
  double form_seconds = 0;    // from the first greeting to the last placement
  double reform_seconds = 0;  // from a worker's death to the last placement
  double beat_seconds = 0;    // of one second of training
};

// Every message arrives at once, in order.
class BigJob {
 public:
  explicit BigJob(int nodes) : coordinator_(options_of(nodes)) {
    for (int node = 0; node < nodes; ++node) nodes_.emplace_back(NodeOptions{.nproc = kWorkersPerNode});
    costs_.messages.assign(static_cast<size_t>(nodes), 0);
    placed_.assign(static_cast<size_t>(nodes), 0);
    beat_.resize(kWorkersPerNode);
    for (int local = 0; local < kWorkersPerNode; ++local) beat_[static_cast<size_t>(local)].local_rank = local;
  }

  Costs run() {
    costs_.form_seconds = timed([&] { form(); });
    expect_all_placed(1);
    costs_.beat_seconds = timed([&] { train(); }) / kSecondsOfTraining;
    costs_.reform_seconds = timed([&] { lose_a_worker(); });
    expect_all_placed(2);
    for_workers([&](int local) { handle(0, WorkerEnded{.local_rank = local, .code = 0}); });
    for (const NodeState& node : nodes_) EXPECT_TRUE(node.job_ended);
    return costs_;
  }

 private:
  static CoordinatorOptions options_of(int nodes) {
    CoordinatorOptions options;
    options.attempt = 1;
    options.min_nodes = nodes;
    options.max_nodes = nodes;
    options.wanted_nodes = nodes;
    return options;
  }

  template <typename Work>
  static double timed(const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  void expect_all_placed(uint64_t counter) const {
    const auto is_placed = [&](uint64_t generation) { return generation == ((uint64_t{1} << 32U) | counter); };
    EXPECT_TRUE(std::all_of(placed_.begin(), placed_.end(), is_placed));
  }

  void step_coordinator(const CoordinatorEvent& event) {
    for (CoordinatorOutput& output : step(coordinator_, event, now_)) {
      auto* send = std::get_if<Send>(&output);
      if (send == nullptr) continue;
      const size_t node = send->connection - kConnectionsBegin;
      ++costs_.messages[node];
      if (const auto* welcome = std::get_if<Welcome>(&send->message)) {
        handle(node, CoordinatorFound{*welcome});
      } else {
        handle(node, CoordinatorSent{std::move(send->message)});
      }
    }
  }

  static void for_workers(const std::function<void(int local)>& work) {
    for (int local = 0; local < kWorkersPerNode; ++local) work(local);
  }

  void handle(size_t node, const NodeEvent& event) {
    for (NodeOutput& output : step(nodes_[node], event, now_)) {
      if (auto* send = std::get_if<SendToCoordinator>(&output)) {
        send_up(node, std::move(send->message));
      } else if (const auto* place = std::get_if<Assignment>(&output)) {
        placed_[node] = place->generation;
      } else if (std::holds_alternative<CutGroup>(output)) {
        were_cut_.push_back(node);
      }
    }
  }

  void send_up(size_t node, NodeMessage message) {
    ++costs_.messages[node];
    step_coordinator(NodeSent{node + kConnectionsBegin, std::move(message)});
  }

  void form() {
    step_coordinator(CoordinatorTick{});
    for (size_t node = 0; node < nodes_.size(); ++node) {
      handle(node, Started{});
      Greet greet;
      greet.node_rank = static_cast<int>(node);
      send_up(node, greet);
    }
    for (size_t node = 0; node < nodes_.size(); ++node) {
      for_workers([&](int local) { handle(node, WorkerHello{local}); });
    }
  }

  void train() {
    for (int second = 0; second < kSecondsOfTraining; ++second) {
      now_ += 1s;
      for (WorkerBeat& worker : beat_) {
        worker.step += 10;
        worker.busy_seconds += 0.5;
        worker.activity = Activity::kTraining;
        worker.phase = Phase::kForward;
        worker.generation = placed_[0];
      }
      for (size_t node = 0; node < nodes_.size(); ++node) send_up(node, Heartbeat{beat_});
      step_coordinator(CoordinatorTick{});
    }
  }

  // A worker of the last node. Its agent sees it first; the workers of the other nodes lose their peer.
  void lose_a_worker() {
    const size_t victim = nodes_.size() - 1;
    const uint64_t generation = placed_[victim];
    handle(victim, WorkerEnded{.local_rank = 0, .code = 137});
    handle(victim, WorkerHello{0});
    for (const size_t node : std::exchange(were_cut_, {})) {
      for_workers([&](int local) { handle(node, WorkerLeft{local, generation, kLeftCut, ""}); });
    }
  }

  CoordinatorState coordinator_;
  std::vector<NodeState> nodes_;
  std::vector<uint64_t> placed_;
  std::vector<size_t> were_cut_;
  std::vector<WorkerBeat> beat_;
  TimePoint now_{1000s};
  Costs costs_;
};

TEST(CoordinatorScale, messages_per_agent_do_not_depend_on_the_number_of_agents) {
  std::optional<int> per_agent;
  for (const int nodes : {100, 1'000, 10'000}) {
    const Costs costs = BigJob(nodes).run();
    // The first one says that it is done, the last one that its worker has died.
    const int usual = costs.messages[1];
    EXPECT_EQ(costs.messages.front(), usual + 1);
    EXPECT_EQ(costs.messages.back(), usual + 1);
    for (size_t node = 1; node + 1 < costs.messages.size(); ++node) {
      ASSERT_EQ(costs.messages[node], usual) << "node " << node << " of " << nodes;
    }
    EXPECT_EQ(usual, per_agent.value_or(usual)) << nodes << " agents";
    per_agent = usual;
    const int beats = 2 * kSecondsOfTraining;
    std::printf(
        "%6d agents of %d workers: %d messages per agent and %d beats; formed in %.3f s, formed again in %.3f s, "
        "%.3f ms of each second for beats\n",
        nodes, kWorkersPerNode, usual - beats, beats, costs.form_seconds, costs.reform_seconds,
        1000 * costs.beat_seconds);
  }
}

}  // namespace
}  // namespace lockstep
