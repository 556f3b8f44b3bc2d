// The small all-reduce that every step of several ranks begins with, alone: flags_cost RANKS CALLS
// Ranks are threads with a Gloo group of their own, over loopback. Prints one JSON object: microseconds of a call on
// rank 0, back to back. In a step it runs while the forward pass does.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runner/dist/collectives.h"
#include "tests/runner/support/ranks_as_threads.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  using Clock = std::chrono::steady_clock;
  const int ranks = argc == 3 ? std::atoi(argv[1]) : 0;
  const int calls = argc == 3 ? std::atoi(argv[2]) : 0;
  if (ranks < 1 || calls < 1) {
    std::fprintf(stderr, "usage: flags_cost RANKS CALLS\n");
    return 2;
  }
  std::vector<double> microseconds(static_cast<size_t>(calls));
  on_ranks(ranks, [&](ProcessGroup& group) {
    for (double& took : microseconds) {
      const auto begin = Clock::now();
      sum_over_ranks(group, std::array{1.0, 0.0, 0.0, 0.0});  // as many as TrainStep's
      if (group.rank() == 0) took = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    }
  });
  std::sort(microseconds.begin(), microseconds.end());
  const auto quantile = [&](double q) { return microseconds[static_cast<size_t>(q * (calls - 1))]; };
  std::printf("{\"ranks\": %d, \"median\": %.1f, \"p10\": %.1f, \"p90\": %.1f}\n", ranks, quantile(0.5), quantile(0.1),
              quantile(0.9));
  return 0;
}
