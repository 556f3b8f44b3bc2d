// What a training step does for its agent, and nothing else: coordination_cost STEPS.
// bench_coordination.py counts the instructions of `steps_for_the_agent` with callgrind.
#include <sys/socket.h>

#include <cstdlib>

#include "runner/link/agent_session.h"
#include "runner/loop/reporter.h"

namespace lockstep {
namespace {

// The phases of one step on one rank, in the order of TrainStep::run.
constexpr Phase kPhases[] = {Phase::kDataWait, Phase::kForward,   Phase::kWaiting, Phase::kForward,
                             Phase::kBackward, Phase::kOptimizer, Phase::kOther};

}  // namespace

__attribute__((noinline)) int64_t steps_for_the_agent(int64_t steps, PhaseClock& clock, Reporter& reporter,
                                                      const AgentSession& agent) {
  int64_t asked_to_leave = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    asked_to_leave += agent.leave_together(1).has_value() ? 1 : 0;
    for (const Phase phase : kPhases) clock.enter(phase);
    clock.move(Phase::kBackward, Phase::kGradSync, std::chrono::nanoseconds(0));
    reporter.beat(step, Activity::kTraining);
  }
  return asked_to_leave;
}

}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  int fds[2];
  if (argc != 2 || ::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return 2;
  RunConfig config;
  BeatPage page;
  AgentSession agent(fds[0], 0, page, [] { return false; });
  PhaseClock clock(Phase::kStartup, std::chrono::steady_clock::now());
  clock.show_on(page);
  Reporter reporter({.config = &config, .agent = &agent, .clock = &clock, .page = &page});
  return static_cast<int>(steps_for_the_agent(std::strtoll(argv[1], nullptr, 10), clock, reporter, agent));
}
