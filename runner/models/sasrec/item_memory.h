// The memory that grows with the number of items: their embedding, which is dense, with all that training keeps beside
// it, and the scores of an evaluation. Said before anything of it is made. Threads: any.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "runner/base/result.h"

namespace lockstep {

struct ItemMemory {
  int64_t num_items = 0;
  int64_t hidden_units = 0;
  size_t averages = 0;          // moving averages of the weights
  int64_t ranks = 1;            // that share what there is
  int64_t available_bytes = 0;  // in all, whoever uses it now
};

// Pure. A line for the start table: what is needed, and what there is. Error (kInvalid): more is needed than there is.
Result<std::string> item_memory_text(const ItemMemory& memory);

// All memory of the device; of the CPU, what the machine has and control groups allow. Bytes.
int64_t memory_of(at::Device device);

}  // namespace lockstep
