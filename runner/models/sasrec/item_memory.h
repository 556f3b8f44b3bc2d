// Checks, before anything is allocated, whether the memory that grows with the number of items will be enough: the
// dense item embedding, the copies of it that training keeps (gradients, moments, averages), and the scores of an
// evaluation. Threads: any.
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
  int64_t ranks = 1;            // ranks that share the available memory
  int64_t available_bytes = 0;  // total memory, including what is in use now
  bool keeps_ids = false;       // the items' ids are their numbers: num_items is the largest id
};

// Pure. Returns a line for the start table with the needed and the available memory. Error (kInvalid): more memory is
// needed than available.
Result<std::string> item_memory_text(const ItemMemory& memory);

// The total memory of the device, in bytes; for the CPU, the machine's memory or the limit of its control group.
int64_t memory_of(at::Device device);

}  // namespace lockstep
