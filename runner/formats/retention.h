// Which checkpoints of a run may be removed. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runner/contract/checkpoint_layout.h"

namespace lockstep {

struct Retention {
  int64_t keep_last = 3;   // newest n; at least 1 is always kept
  int64_t keep_every = 0;  // checkpoints of steps divisible by this are never removed; 0 = none
  bool keep_best = true;
};

struct RetentionItem {
  CheckpointStamp stamp;
  int64_t step = 0;
  bool is_best = false;  // was the best so far when it was written, so the newest of these is the best of the run
};

// Indices of the items to remove, oldest first, in the order of (stamp, step). Items may come in any order.
std::vector<size_t> select_for_removal(const std::vector<RetentionItem>& items, const Retention& retention);

}  // namespace lockstep
