#include "tests/runner/support/asynchronous_device.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <latch>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "runner/dist/store_handle.h"
#include "tests/runner/support/ranks_as_threads.h"

namespace lockstep {

class DeviceWires {
 public:
  explicit DeviceWires(int world_size) : world_size_(static_cast<size_t>(world_size)) {}

  // Called by the ranks' streams. Returns the inputs of all ranks to collective `number`, by rank; nothing if
  // `given_up` becomes true first. Who makes it true must call wake().
  std::optional<std::vector<at::Tensor>> exchange(int64_t number, int rank, at::Tensor mine,
                                                  const std::function<bool()>& given_up) {
    std::unique_lock lock(mutex_);
    std::map<int, at::Tensor>& brought = brought_[number];
    if (!given_up()) brought[rank] = std::move(mine);
    changed_.notify_all();
    changed_.wait(lock, [&] { return given_up() || brought.size() == world_size_; });
    if (given_up()) return std::nullopt;
    std::vector<at::Tensor> all;
    for (const auto& [from, tensor] : brought) all.push_back(tensor);
    return all;
  }
  void wake() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

 private:
  const size_t world_size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, std::map<int, at::Tensor>> brought_;  // by number of the collective, and rank
};

// The queue of a device. launch() by one thread, the rest from any.
class AsynchronousDevice::Stream {
 public:
  static constexpr int kSum = -1;
  static constexpr int kNothing = -2;
  struct Operation {
    int64_t number = 0;
    at::Tensor tensor;  // the caller's
    at::Tensor input;   // as it was when the operation was queued: what the host writes later is queued behind it
    int source = -1;    // whose input it gets; kSum: the sum of all; kNothing
    bool done = false;
  };

  Stream(std::shared_ptr<DeviceWires> wires, int rank, HostWaits waits)
      : wires_(std::move(wires)), rank_(rank), waits_(waits) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  ~Stream() {
    abort();
    thread_.request_stop();
    thread_.join();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  std::shared_ptr<Operation> launch(const at::Tensor& tensor, int source) { return launch(tensor, tensor, source); }
  std::shared_ptr<Operation> launch(const at::Tensor& tensor, const at::Tensor& input, int source) {
    const int64_t number = ++launched_;
    if (before_launch_) before_launch_(number);
    auto operation = std::make_shared<Operation>();
    operation->number = number;
    operation->tensor = tensor.detach();
    operation->input = input.detach().clone();
    operation->source = source;
    const std::lock_guard lock(mutex_);
    queue_.push_back(operation);
    changed_.notify_all();
    return operation;
  }
  void before_launch(std::function<void(int64_t)> action) { before_launch_ = std::move(action); }

  void abort() {
    is_aborted_.store(true);
    wires_->wake();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty(); });
  }
  // As the host waits for a work.
  void wait_for(const Operation& operation) {
    if (waits_ == HostWaits::kForNothing) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return operation.done; });
  }

 private:
  void run(const std::stop_token& stop) {
    const torch::NoGradGuard no_grad;
    for (;;) {
      std::shared_ptr<Operation> next;
      {
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
        next = queue_.front();
      }
      perform(*next);
      const std::lock_guard lock(mutex_);
      next->done = true;
      queue_.pop_front();
      changed_.notify_all();
    }
  }

  void perform(Operation& operation) {
    const auto all = wires_->exchange(operation.number, rank_, operation.input, [this] { return is_aborted_.load(); });
    if (!all) {
      const double garbage = operation.tensor.is_floating_point() ? std::numeric_limits<double>::quiet_NaN() : 255.0;
      operation.tensor.fill_(garbage);
    } else if (operation.source >= 0) {
      operation.tensor.copy_((*all)[static_cast<size_t>(operation.source)]);
    } else if (operation.source == kSum) {
      at::Tensor sum = all->front().clone();
      for (size_t i = 1; i < all->size(); ++i) sum += (*all)[i];
      operation.tensor.copy_(sum);
    }
  }

  const std::shared_ptr<DeviceWires> wires_;
  const int rank_;
  const HostWaits waits_;
  int64_t launched_ = 0;
  std::function<void(int64_t)> before_launch_;
  std::atomic<bool> is_aborted_{false};
  std::mutex mutex_;
  std::condition_variable_any changed_;
  // State below is protected by mutex_.
  std::deque<std::shared_ptr<Operation>> queue_;  // the front is under way
  std::jthread thread_;
};

class AsynchronousDevice::Backend final : public c10d::Backend {
 public:
  Backend(c10::intrusive_ptr<c10d::Backend> host, std::shared_ptr<Stream> stream)
      : c10d::Backend(host->getRank(), host->getSize()), host_(std::move(host)), stream_(std::move(stream)) {}

  [[nodiscard]] const std::string getBackendName() const override { return "asynchronous"; }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return c10::make_intrusive<Queued>(stream_, stream_->launch(tensors.at(0), static_cast<int>(options.rootRank)));
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    if (tensors.at(0).scalar_type() == torch::kFloat64) return host_->allreduce(tensors, options);
    return c10::make_intrusive<Queued>(stream_, stream_->launch(tensors.at(0), Stream::kSum));
  }
  // Figures go over the host, and are parts of equal size; a transfer has parts with counts, of which each rank sends
  // and receives at most one.
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_counts, std::vector<int64_t>& input_counts,
                                               const c10d::AllToAllOptions& options) override {
    if (output_counts.empty()) return host_->alltoall_base(output, input, output_counts, input_counts, options);
    const auto from = std::find_if(output_counts.begin(), output_counts.end(), [](int64_t count) { return count > 0; });
    const auto source = static_cast<int>(from - output_counts.begin());
    const bool receives = from != output_counts.end();
    return c10::make_intrusive<Queued>(stream_, stream_->launch(output, input, receives ? source : Stream::kNothing));
  }

 private:
  class Queued final : public c10d::Work {
   public:
    Queued(std::shared_ptr<Stream> stream, std::shared_ptr<Stream::Operation> operation)
        : stream_(std::move(stream)), operation_(std::move(operation)) {}
    bool isCompleted() override { return true; }
    [[nodiscard]] bool isSuccess() const override { return true; }
    void synchronize() override {}
    bool wait(std::chrono::milliseconds /*timeout*/) override {
      stream_->wait_for(*operation_);
      return true;
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
      auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      future->markCompleted(c10::IValue(std::vector<at::Tensor>{operation_->tensor}));
      return future;
    }

   private:
    const std::shared_ptr<Stream> stream_;
    const std::shared_ptr<Stream::Operation> operation_;
  };

  const c10::intrusive_ptr<c10d::Backend> host_;
  const std::shared_ptr<Stream> stream_;
};

namespace {

thread_local AsynchronousDevice* in_use = nullptr;

// Runs every operator of a thread that uses a device. c10d's own operators only queue something and do not wait.
void behind_the_stream(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (in_use != nullptr && !op.schema().name().starts_with("c10d::")) in_use->wait();
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::TESTING_ONLY_GenericMode);
  op.callBoxed(stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&behind_the_stream>());
}

class AsynchronousDevice::InUse::Guard {
  const c10::impl::IncludeDispatchKeyGuard mode_{c10::DispatchKey::TESTING_ONLY_GenericMode};
};

AsynchronousDevice::InUse::InUse(AsynchronousDevice& device) : guard_(std::make_unique<Guard>()) { in_use = &device; }
AsynchronousDevice::InUse::~InUse() { in_use = nullptr; }

AsynchronousDevice::AsynchronousDevice(std::shared_ptr<DeviceWires> wires, int rank, HostWaits waits)
    : stream_(std::make_shared<Stream>(std::move(wires), rank, waits)) {}
AsynchronousDevice::~AsynchronousDevice() = default;

void AsynchronousDevice::carry(ProcessGroup& group) {
  using c10d::ProcessGroup;
  group.handle()->setBackend(at::kCPU, ProcessGroup::BackendType::CUSTOM,
                             c10::make_intrusive<Backend>(group.handle()->getBackend(at::kCPU), stream_));
  if (const auto& abort = group.options().abort) abort->add_action([stream = stream_] { stream->abort(); });
}

void AsynchronousDevice::before_launch(std::function<void(int64_t)> action) {
  stream_->before_launch(std::move(action));
}
void AsynchronousDevice::abort() { stream_->abort(); }
void AsynchronousDevice::wait() { stream_->wait(); }

DeviceStream::Reading AsynchronousDevice::read_later(const at::Tensor& tensor) {
  return [stream = stream_, host = tensor.clone()] {
    stream->wait();
    return host;
  };
}

void on_device_ranks(int world_size, HostWaits waits,
                     const std::function<void(ProcessGroup&, AsynchronousDevice&)>& body) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  const auto wires = std::make_shared<DeviceWires>(world_size);
  std::latch formed(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      AsynchronousDevice device(wires, rank, waits);
      auto group = ProcessGroup::form(store, {.assignment = assigned(rank, world_size),
                                              .timeout = std::chrono::seconds(30),
                                              .network_interface = "",
                                              .abort = std::make_shared<GroupAbort>()});
      formed.arrive_and_wait();
      ASSERT_TRUE(group.ok()) << group.error().message;
      device.carry(**group);
      const AsynchronousDevice::InUse queued(device);
      body(**group, device);
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace lockstep
