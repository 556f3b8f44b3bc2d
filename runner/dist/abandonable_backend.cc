#include "runner/dist/abandonable_backend.h"

#include <c10/util/Exception.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <set>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

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

struct CollectivesInFlight::Impl {
  std::mutex mutex;
  std::condition_variable_any changed;
  // State below is protected by `mutex`.
  std::set<c10::intrusive_ptr<Future>> open;
  bool gave_up = false;       // at least one
  bool gives_up_all = false;  // what begins now
  std::jthread after_cut;     // last: it uses what stands above

  // True for the one caller that may end it.
  bool take(const c10::intrusive_ptr<Future>& future) {
    const std::lock_guard lock(mutex);
    if (open.erase(future) == 0) return false;
    changed.notify_all();
    return true;
  }

  void give_up_later(const std::stop_token& stop) {
    std::set<c10::intrusive_ptr<Future>> left;
    {
      std::unique_lock lock(mutex);
      // Not "all have ended": another may begin, and hang as well.
      changed.wait_for(lock, stop, kAbandonAfter, [] { return false; });
      if (stop.stop_requested()) return;
      left = std::exchange(open, {});
      changed.notify_all();
      gave_up = gave_up || !left.empty();
      gives_up_all = true;
    }
    if (left.empty()) return;
    std::fprintf(stderr, "worker: gave up %zu collectives that hung after their group was cut\n", left.size());
    for (const auto& future : left) future->setError(given_up());
  }
};

CollectivesInFlight::CollectivesInFlight() : impl_(std::make_unique<Impl>()) {}
CollectivesInFlight::~CollectivesInFlight() = default;

c10::intrusive_ptr<Future> CollectivesInFlight::stand_in(const std::shared_ptr<CollectivesInFlight>& self,
                                                         const c10::intrusive_ptr<Future>& inner) {
  auto future = inner->createInstance(inner->elementType());
  bool too_late = false;
  {
    const std::lock_guard lock(self->impl_->mutex);
    too_late = self->impl_->gives_up_all;
    if (too_late) {
      self->impl_->gave_up = true;
    } else {
      self->impl_->open.insert(future);
    }
  }
  if (too_late) {
    future->setError(given_up());
    return future;
  }
  inner->addCallback([self, future](Future& ended) {
    if (!self->impl_->take(future)) return;
    if (ended.hasError()) {
      future->setError(ended.exception_ptr());
    } else {
      future->markCompleted(ended.value(), ended.storages());
    }
  });
  return future;
}

void CollectivesInFlight::cut() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->after_cut.joinable()) return;
  impl_->after_cut = std::jthread([this](const std::stop_token& stop) { impl_->give_up_later(stop); });
}

bool CollectivesInFlight::all_end_within(std::chrono::milliseconds limit) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, limit, [this] { return impl_->open.empty(); }) && !impl_->gave_up;
}

AbandonableBackend::AbandonableBackend(c10::intrusive_ptr<c10d::Backend> inner)
    : Backend(inner->getRank(), inner->getSize()),
      inner_(std::move(inner)),
      in_flight_(std::make_shared<CollectivesInFlight>()) {}

AbandonableBackend::~AbandonableBackend() {
  if (in_flight_->all_end_within(kAbandonAfter)) return;
  // Raw, so that it is only lost where no thread can be had: the destructor would wait here.
  c10d::Backend* const inner = inner_.release();
  try {
    std::thread([inner] { c10::intrusive_ptr<c10d::Backend>::reclaim(inner).reset(); }).detach();
  } catch (const std::system_error& e) {
    std::fprintf(stderr, "worker: a group that hangs is left as it is: no thread for its end (%s)\n", e.what());
  }
}

namespace {

c10::intrusive_ptr<c10d::Work> stand_in(const std::shared_ptr<CollectivesInFlight>& in_flight,
                                        c10::intrusive_ptr<c10d::Work> inner) {
  auto future = CollectivesInFlight::stand_in(in_flight, inner->getFuture());
  return c10::make_intrusive<StandIn>(std::move(inner), std::move(future));
}

}  // namespace

c10::intrusive_ptr<c10d::Work> AbandonableBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                             const c10d::BroadcastOptions& options) {
  return stand_in(in_flight_, inner_->broadcast(tensors, options));
}

c10::intrusive_ptr<c10d::Work> AbandonableBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                             const c10d::AllreduceOptions& options) {
  return stand_in(in_flight_, inner_->allreduce(tensors, options));
}

c10::intrusive_ptr<c10d::Work> AbandonableBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                             std::vector<at::Tensor>& inputs,
                                                             const c10d::AllgatherOptions& options) {
  return stand_in(in_flight_, inner_->allgather(outputs, inputs, options));
}

}  // namespace lockstep
