// What a big job costs: Members of 100, 1,000 and 10,000 nodes against one Coordinator, without a network between.
// Messages per agent are asserted; times are only printed, because they depend on the machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/recovery/coordinator.h"
#include "runner/recovery/member.h"

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
    for (int node = 0; node < nodes; ++node) members_.emplace_back(MemberOptions{.nproc = kWorkersPerNode});
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
    feed_member(0, NodeDone{});
    for (const MemberState& member : members_) EXPECT_TRUE(member.ended);
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

  void feed_coordinator(const CoordinatorEvent& event) {
    for (CoordinatorOutput& output : step(coordinator_, event, now_)) {
      auto* send = std::get_if<Send>(&output);
      if (send == nullptr) continue;
      const size_t node = send->connection - kConnectionsBegin;
      ++costs_.messages[node];
      if (const auto* welcome = std::get_if<Welcome>(&send->message)) {
        feed_member(node, CoordinatorFound{*welcome});
      } else {
        feed_member(node, CoordinatorSaid{std::move(send->message)});
      }
    }
  }

  void feed_member(size_t node, const MemberEvent& event) {
    for (MemberOutput& output : step(members_[node], event, now_)) {
      if (auto* tell = std::get_if<Tell>(&output)) {
        say(node, std::move(tell->message));
      } else if (const auto* place = std::get_if<Assignment>(&output)) {
        placed_[node] = place->generation;
      } else if (std::holds_alternative<CutGroup>(output)) {
        were_cut_.push_back(node);
      }
    }
  }

  void say(size_t node, MemberMessage message) {
    ++costs_.messages[node];
    feed_coordinator(NodeSaid{node + kConnectionsBegin, std::move(message)});
  }

  void form() {
    feed_coordinator(CoordinatorTick{});
    for (size_t node = 0; node < members_.size(); ++node) {
      feed_member(node, MemberTick{});
      Greet greet;
      greet.node_rank = static_cast<int>(node);
      say(node, greet);
    }
    for (size_t node = 0; node < members_.size(); ++node) feed_member(node, WorkersReady{true});
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
      for (size_t node = 0; node < members_.size(); ++node) say(node, Heartbeat{beat_});
      feed_coordinator(CoordinatorTick{});
    }
  }

  // A worker of the last node. Its agent sees it first; the workers of the other nodes lose their peer.
  void lose_a_worker() {
    const size_t victim = members_.size() - 1;
    feed_member(victim, Broken{placed_[victim], 0, "SignalKILL", "killed"});
    const std::vector<size_t> cut = std::exchange(were_cut_, {});
    for (const size_t node : cut) feed_member(node, WorkersReady{true});
  }

  CoordinatorState coordinator_;
  std::vector<MemberState> members_;
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
