// KeptProgress: whether a start of a user's program has found more than the starts before it: progress that restarts do
// not lose. Threads: one. Reads the checkpoint folder.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace lockstep {

// Files that are looked at in a checkpoint folder.
inline constexpr int kCheckpointFilesLookedAt = 1000;
inline constexpr int64_t kNoFile = std::numeric_limits<int64_t>::min();

class KeptProgress {
 public:
  // `checkpoint_folder`: empty when it is not known.
  explicit KeptProgress(std::string checkpoint_folder) : folder_(std::move(checkpoint_folder)) {}

  // At the first step of a start, as the optimizer's state counts it (1: from the beginning). True when it goes on from
  // a later step than all starts before it, or when there is a newer file in the checkpoint folder; false for the first
  // start.
  bool on_first_step(int64_t first_step);

 private:
  std::string folder_;
  int64_t furthest_ = 0;           // first step of a start; 0: none was started
  int64_t newest_file_ = kNoFile;  // its time, when it was looked for last
};

}  // namespace lockstep
