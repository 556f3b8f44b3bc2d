// BatchQueue: fetches the batches of coming steps on its own threads, so that a step finds its batch ready.
//
// Role: between the workload's `fetch` and the training step. It lives as long as the process: a new group asks for
// other shares, and never waits for a fetch that the old group began.
// Threads: the training thread calls; `num_threads` threads ("fetch") live as long as the queue.
// Limits: holds the shares of the last want(), and for each thread at most one older share, which is dropped as soon as
// it has been fetched.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "runner/base/mutex.h"
#include "runner/contract/exit_code.h"
#include "runner/models/workload.h"

namespace lockstep {

// A share's data, or how the rank ends at the step that needs it: kData for an Error that the workload returned, the
// code of classify_fault for an exception.
using FetchedBatch = std::variant<HostBatch, Failure>;

class BatchQueue {
 public:
  // `workload` outlives the queue. Without threads each share is fetched when it is taken. `device`: the device that
  // the batches are pinned for.
  BatchQueue(const Workload& workload, int64_t num_threads, at::Device device);
  ~BatchQueue();
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  // Replaces the list of wanted shares, which are fetched in this order. Shares that are no longer wanted are dropped;
  // those that were wanted before are not fetched again.
  void want(const std::vector<BatchShare>& shares);

  // Returns the data of a share: waits for the thread that is fetching it, or fetches it here if no thread has begun.
  // While it waits, it polls `is_cut` several times a second and leaves the group (leave_group) once that returns true.
  FetchedBatch take(const BatchShare& share, const std::function<bool()>& is_cut);

 private:
  struct Entry {
    BatchShare share;
    bool has_begun = false;
    std::optional<FetchedBatch> fetched;  // nullopt until the fetch has ended
  };
  using Entries = std::deque<std::shared_ptr<Entry>>;

  [[nodiscard]] Entries::iterator find(const BatchShare& share) REQUIRES(mutex_);
  void run(at::Device device);

  const Workload& workload_;
  Mutex mutex_;
  ConditionVariable changed_;
  bool closing_ GUARDED_BY(mutex_) = false;
  Entries entries_ GUARDED_BY(mutex_);

  std::vector<std::thread> threads_;
};

}  // namespace lockstep
