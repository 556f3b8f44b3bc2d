#include "runner/loop/batch_queue.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "runner/base/mutex.h"
#include "runner/dist/device_stream.h"
#include "runner/dist/fault.h"
#include "runner/loop/device.h"
#include "runner/loop/stop_token.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kCutPollInterval{50};

// Turns an exception into a Failure, because an exception in a fetch thread would end the process before the step that
// needs the batch.
FetchedBatch fetch(const Workload& workload, const BatchShare& share) {
  try {
    Result<HostBatch> batch = workload.fetch(share);
    if (!batch.ok()) return data_failure(batch.error().message);
    return std::move(*batch);
  } catch (const std::exception& e) {
    const Failure fault = classify_fault(e);
    return Failure{fault.code, "fetching a batch: " + fault.message};
  }
}

}  // namespace

BatchQueue::BatchQueue(const Workload& workload, int64_t num_threads, at::Device device) : workload_(workload) {
  for (int64_t i = 0; i < num_threads; ++i) threads_.emplace_back([this, device] { run(device); });
}

BatchQueue::~BatchQueue() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

BatchQueue::Entries::iterator BatchQueue::find(const BatchShare& share) {
  return std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) { return entry->share == share; });
}

void BatchQueue::want(const std::vector<BatchShare>& shares) {
  if (threads_.empty()) return;
  {
    const MutexLock lock(mutex_);
    Entries wanted;
    for (const BatchShare& share : shares) {
      const auto known = find(share);
      wanted.push_back(
          known != entries_.end() ? *known : std::make_shared<Entry>(Entry{.share = share, .fetched = std::nullopt}));
    }
    entries_ = std::move(wanted);
  }
  changed_.notify_all();
}

FetchedBatch BatchQueue::take(const BatchShare& share, const std::function<bool()>& is_cut) {
  MutexLock lock(mutex_);
  const auto found = find(share);
  if (found == entries_.end() || !(*found)->has_begun) {
    if (found != entries_.end()) entries_.erase(found);
    lock.unlock();
    return fetch(workload_, share);
  }
  const std::shared_ptr<Entry> entry = *found;
  while (!changed_.wait_for(lock, kCutPollInterval, [&] { return entry->fetched.has_value(); })) {
    lock.unlock();
    if (is_cut()) leave_group("the group was cut while a batch was being fetched");
    lock.lock();
  }
  entries_.erase(find(share));
  return std::move(*entry->fetched);
}

void BatchQueue::run(at::Device device) {
  pthread_setname_np(pthread_self(), "fetch");
  use_device(device);
  MutexLock lock(mutex_);
  while (true) {
    const auto next = [this]() REQUIRES(mutex_) {
      return std::find_if(entries_.begin(), entries_.end(), [](const auto& entry) { return !entry->has_begun; });
    };
    changed_.wait(lock, [&]() REQUIRES(mutex_) { return closing_ || next() != entries_.end(); });
    if (closing_) return;
    const std::shared_ptr<Entry> entry = *next();
    entry->has_begun = true;
    lock.unlock();
    FetchedBatch fetched = fetch(workload_, entry->share);
    lock.lock();
    entry->fetched = std::move(fetched);
    changed_.notify_all();
  }
}

}  // namespace lockstep
