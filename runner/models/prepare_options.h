// How a rank prepares data that is converted once. Threads: the progress is called from the thread that prepares.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

#include "runner/data/prepare_cache.h"
#include "runner/models/registry.h"

namespace lockstep {

// The ranks of a node prepare the data together, each starting at another part of it. Each rank uses as many threads as
// ATen gives its operators, which the worker has set to its share of the node's cores. Borrows on_progress.
inline PrepareOptions prepare_options(const OnDataProgress& on_progress) {
  return {.threads = at::get_num_threads(), .progress = [&](int64_t done, int64_t total) {
            on_progress(done, total);
            return true;
          }};
}

}  // namespace lockstep
