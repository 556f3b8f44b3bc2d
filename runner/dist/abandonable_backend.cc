#include "runner/dist/abandonable_backend.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdio>
#include <set>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

#include "runner/base/mutex.h"

namespace lockstep {
namespace {

using Future = c10::ivalue::Future;

std::exception_ptr given_up() {
  try {
    TORCH_CHECK_WITH(DistBackendError, false,
                     "Connection closed by peer: the group was cut, and this collective did not end");
  } catch (...) {
    return std::current_exception();
  }
}

// A collective as its caller sees it.
class StandIn final : public c10d::Work {
 public:
  StandIn(c10::intrusive_ptr<c10d::Work> inner, c10::intrusive_ptr<Future> future)
      : inner_(std::move(inner)), future_(std::move(future)) {}

  bool isCompleted() override { return future_->completed(); }
  [[nodiscard]] bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override {
    future_->waitAndThrow();
    return inner_->wait(timeout);  // has ended; puts the device's streams in order
  }
  c10::intrusive_ptr<Future> getFuture() override { return future_; }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  const c10::intrusive_ptr<Future> future_;
};

}  // namespace

// The collectives that have begun and not ended. All functions may be called from any thread.
class AbandonableBackend::InFlight : public std::enable_shared_from_this<InFlight> {
 public:
  c10::intrusive_ptr<Future> stand_in(const c10::intrusive_ptr<Future>& inner) {
    auto future = inner->createInstance(inner->elementType());
    if (!add(future)) {
      future->setError(given_up());
      return future;
    }
    inner->addCallback([self = shared_from_this(), future](Future& ended) {
      if (!self->take(future)) return;
      if (ended.hasError()) {
        future->setError(ended.exception_ptr());
      } else {
        future->markCompleted(ended.value(), ended.storages());
      }
    });
    return future;
  }

  // Called when the group's connections are shut down. Collectives that have not ended kAbandonAfter later are
  // abandoned, and so are those that begin after that. Returns at once.
  void cut() {
    const MutexLock lock(mutex_);
    if (after_cut_.joinable()) return;
    after_cut_ = std::jthread([this](const std::stop_token& stop) { give_up_later(stop); });
  }

  // False when a collective was abandoned, or has not ended within `limit`.
  bool all_end_within(std::chrono::milliseconds limit) {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, limit, [this]() REQUIRES(mutex_) { return open_.empty(); }) && !gave_up_;
  }

 private:
  // False when kAbandonAfter has passed since the cut: then new collectives are abandoned at once.
  bool add(const c10::intrusive_ptr<Future>& future) {
    const MutexLock lock(mutex_);
    if (gives_up_all_) {
      gave_up_ = true;
      return false;
    }
    open_.insert(future);
    return true;
  }

  // True for exactly one caller, which then ends the future.
  bool take(const c10::intrusive_ptr<Future>& future) {
    const MutexLock lock(mutex_);
    if (open_.erase(future) == 0) return false;
    changed_.notify_all();
    return true;
  }

  void give_up_later(const std::stop_token& stop) {
    std::set<c10::intrusive_ptr<Future>> left;
    {
      MutexLock lock(mutex_);
      // Waits for the whole time even if all have ended, because another collective may begin and hang, too.
      changed_.wait_for(lock, stop, kAbandonAfter, [] { return false; });
      if (stop.stop_requested()) return;
      left = std::exchange(open_, {});
      changed_.notify_all();
      gave_up_ = gave_up_ || !left.empty();
      gives_up_all_ = true;
    }
    if (left.empty()) return;
    std::fprintf(stderr, "worker (pid %d): abandoned %zu collectives that hung after their group was cut\n", ::getpid(),
                 left.size());
    for (const auto& future : left) future->setError(given_up());
  }

  Mutex mutex_;
  ConditionVariable changed_;
  std::set<c10::intrusive_ptr<Future>> open_ GUARDED_BY(mutex_);
  bool gave_up_ GUARDED_BY(mutex_) = false;       // at least one collective was abandoned
  bool gives_up_all_ GUARDED_BY(mutex_) = false;  // collectives that begin now are abandoned at once
  std::jthread after_cut_;  // the last member: it uses those above, so it is destroyed (joined) first
};

AbandonableBackend::AbandonableBackend(c10::intrusive_ptr<c10d::Backend> inner,
                                       const std::shared_ptr<GroupAbort>& abort)
    : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), in_flight_(std::make_shared<InFlight>()) {
  if (abort) abort->add_action([in_flight = in_flight_] { in_flight->cut(); });
}

AbandonableBackend::~AbandonableBackend() {
  if (in_flight_->all_end_within(kAbandonAfter)) return;
  // A raw pointer, so that the backend is leaked if no thread can be started; a smart pointer's destructor would block
  // here.
  c10d::Backend* const inner = inner_.release();
  try {
    std::thread([inner] { c10::intrusive_ptr<c10d::Backend>::reclaim(inner).reset(); }).detach();
  } catch (const std::system_error& e) {
    std::fprintf(stderr, "worker: a hung group is not destroyed, because no thread can be started (%s)\n", e.what());
  }
}

c10::intrusive_ptr<c10d::Work> AbandonableBackend::stand_in(c10::intrusive_ptr<c10d::Work> inner) const {
  auto future = in_flight_->stand_in(inner->getFuture());
  return c10::make_intrusive<StandIn>(std::move(inner), std::move(future));
}

c10::intrusive_ptr<c10d::Work> AbandonableBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                             const c10d::BroadcastOptions& options) {
  return stand_in(inner_->broadcast(tensors, options));
}

c10::intrusive_ptr<c10d::Work> AbandonableBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                             const c10d::AllreduceOptions& options) {
  return stand_in(inner_->allreduce(tensors, options));
}

c10::intrusive_ptr<c10d::Work> AbandonableBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                                 std::vector<int64_t>& output_counts,
                                                                 std::vector<int64_t>& input_counts,
                                                                 const c10d::AllToAllOptions& options) {
  return stand_in(inner_->alltoall_base(output, input, output_counts, input_counts, options));
}

}  // namespace lockstep
