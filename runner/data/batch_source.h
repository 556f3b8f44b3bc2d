// BatchSource: which samples make up which global batch of a run.
//
// Role: gives the loop the order of the data. Its results depend only on how it was made, so they are the same on every
// rank, for every world size and in every generation, and a checkpoint only needs the position (epoch, index).
// Threads: the training thread; a source may cache the order of the last epoch.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

// A position in the data: the next batch.
struct DataPosition {
  int64_t epoch = 0;  // from 0
  int64_t index = 0;  // of the batch in its epoch
  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Global batches, and so optimizer steps, in `epoch` (from 0): at least 1. Epochs may differ.
  [[nodiscard]] virtual int64_t steps(int64_t epoch) = 0;
  // The samples of batch `index` in [0, steps(epoch)), in slot order: at least one.
  [[nodiscard]] virtual std::vector<int64_t> batch(int64_t epoch, int64_t index) = 0;
  // The cost of a sample in a forward, at least 1, in a unit of the source (tokens, residues). A batch is divided into
  // shares of about equal cost for the ranks and micro-batches.
  [[nodiscard]] virtual int64_t cost(int64_t /*sample*/) const { return 1; }
};

// The position after `steps` more batches.
inline DataPosition position_after(DataPosition position, int64_t steps, BatchSource& source) {
  position.index += steps;
  for (int64_t of_epoch = source.steps(position.epoch); position.index >= of_epoch;
       of_epoch = source.steps(position.epoch)) {
    position.index -= of_epoch;
    ++position.epoch;
  }
  return position;
}

// The number of batches in all epochs before `epoch`.
inline int64_t steps_before(int64_t epoch, BatchSource& source) {
  int64_t steps = 0;
  for (int64_t earlier = 0; earlier < epoch; ++earlier) steps += source.steps(earlier);
  return steps;
}

}  // namespace lockstep
