// Synthetic interactions: a generated data set with something to learn, free of copyright.
//
// Role: users walk a planted chain (every item has one successor, taken with probability `follow`) and otherwise pick
// by popularity (Zipf), so that a sequence model beats popularity and popularity beats chance.
// Threads: pure; the same text for the same options everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct SyntheticOptions {
  uint64_t seed = 42;
  int64_t users = 200;
  int64_t items = 100;      // at least 2
  int64_t events_min = 10;  // per user
  int64_t events_max = 40;
  double follow = 0.7;  // probability of the planted successor
};

// planted[i] is the successor of item i, for i in 1 … items; one cycle through all items; planted[0] is 0.
std::vector<int32_t> synthetic_successors(const SyntheticOptions& options);

// Lines `user item rating timestamp`, separated by tabs, in the order of user and time.
std::string synthetic_ratings(const SyntheticOptions& options);

}  // namespace lockstep
