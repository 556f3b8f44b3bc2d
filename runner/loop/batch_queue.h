// BatchQueue: fetches the shares of coming steps on threads of its own, so that a step finds its batch made.
//
// Role: between the workload's `fetch` and the training step. It lives as long as the process: a new group asks for
// other shares, and never waits for a fetch that the old group began. Threads: the training thread calls; `num_threads`
// threads ("fetch") live as long as the queue. Limits: holds what was wanted last, and as many more shares as there are
// threads, which are dropped when they are made.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runner/base/result.h"
#include "runner/models/workload.h"

namespace lockstep {

class BatchQueue {
 public:
  // `workload` outlives the queue. Without threads each share is fetched when it is taken. `device`: whose memory the
  // batches are pinned for.
  BatchQueue(const Workload& workload, int64_t num_threads, at::Device device);
  ~BatchQueue();
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  // From now on these are wanted, in this order. What is not among them is dropped; what is, and was wanted before, is
  // not fetched again.
  void want(const std::vector<BatchShare>& shares);

  // The data of a share; waits until it is there, or fetches it where no thread has begun. `is_cut` is asked several
  // times a second: leaves the group (leave_group) when it says so. Errors: the workload's.
  Result<HostBatch> take(const BatchShare& share, const std::function<bool()>& is_cut);

 private:
  struct Entry {
    BatchShare share;
    bool has_begun = false;
    std::optional<Result<HostBatch>> made;
  };
  using Entries = std::deque<std::shared_ptr<Entry>>;

  [[nodiscard]] Entries::iterator find(const BatchShare& share);
  void run(at::Device device);

  const Workload& workload_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // State below is protected by mutex_.
  bool closing_ = false;
  Entries entries_;

  std::vector<std::thread> threads_;
};

}  // namespace lockstep
