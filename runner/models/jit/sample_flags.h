// Flags of `lockstep jit sample`. Links no torch. Threads: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

struct SampleOptions {
  uint64_t seed = 0;
  int64_t count = 16;
  std::string classes;  // names or numbers with commas between them, taken in turn; empty: all classes
  int64_t steps = 50;
  double guidance = 2.9;
  int64_t batch_size = 64;  // images that each rank makes at once
  int64_t nproc = 1;        // ranks
  std::string ema;          // the decay of the average to sample from; "0": the trained weights; empty: the first
  std::string grid;         // path of the contact sheet; empty: none
  std::string folder;       // folder for one file per image; empty: none
  bool distance = false;    // --distance; see also wants_distance
  std::string fid_features;
  std::string fid_stats;

  [[nodiscard]] bool wants_distance() const { return distance || !fid_features.empty(); }
};

WorkloadTask sample_task();

}  // namespace lockstep
