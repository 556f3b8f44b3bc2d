#include "runner/dist/abandonable_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <csignal>
#include <future>
#include <latch>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "runner/dist/collectives.h"
#include "runner/dist/fault.h"
#include "tests/runner/support/ranks_as_threads.h"

namespace lockstep {
namespace {

// A collective that ends when the test says so: gloo's own cannot be made to hang at will.
class HeldWork final : public c10d::Work {
 public:
  HeldWork() : future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    future_->waitAndThrow();
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  void end() { future_->markCompleted(c10::IValue(std::vector<at::Tensor>{})); }
  void fail() { future_->setError(std::make_exception_ptr(std::runtime_error("Connection reset by peer"))); }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class HeldBackend final : public c10d::Backend {
 public:
  explicit HeldBackend(std::promise<std::thread::id>& destroyed_by) : Backend(0, 2), destroyed_by_(destroyed_by) {}
  // Waits for its collectives, as the destructor of gloo's backend does.
  ~HeldBackend() override {
    for (const auto& work : begun_) work->getFuture()->wait();
    destroyed_by_.set_value(std::this_thread::get_id());
  }
  HeldBackend(const HeldBackend&) = delete;
  HeldBackend& operator=(const HeldBackend&) = delete;

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& /*tensors*/,
                                           const c10d::AllreduceOptions& /*options*/) override {
    begun_.push_back(c10::make_intrusive<HeldWork>());
    return begun_.back();
  }
  HeldWork& work(size_t index) { return *begun_.at(index); }

 private:
  std::promise<std::thread::id>& destroyed_by_;
  std::vector<c10::intrusive_ptr<HeldWork>> begun_;
};

class AbandonableBackendTest : public testing::Test {
 protected:
  c10::intrusive_ptr<c10d::Work> begin() { return backend_->allreduce(tensors_, {}); }
  std::thread::id destroyed_by() { return destroyed_by_.get_future().get(); }

  std::promise<std::thread::id> destroyed_by_;
  c10::intrusive_ptr<HeldBackend> held_ = c10::make_intrusive<HeldBackend>(destroyed_by_);
  HeldBackend& inner_ = *held_;
  std::shared_ptr<GroupAbort> abort_ = std::make_shared<GroupAbort>();
  c10::intrusive_ptr<AbandonableBackend> backend_ = c10::make_intrusive<AbandonableBackend>(std::move(held_), abort_);
  std::vector<at::Tensor> tensors_{torch::ones({2})};
};

// Of the gradients by an all-reduce, of figures on the host by an all-to-all.
void sum_many_figures(ProcessGroup& group, bool on_host) {
  if (on_host) {
    sum_over_ranks(group, std::vector<double>(1 << 12, 1.0));
    return;
  }
  std::vector<at::Tensor> tensors{torch::ones({1 << 14})};
  group.handle()->allreduce(tensors)->wait();
}

TEST_F(AbandonableBackendTest, a_collective_ends_as_its_own_does) {
  const auto good = begin();
  const auto bad = begin();
  EXPECT_FALSE(good->isCompleted());
  inner_.work(0).end();
  inner_.work(1).fail();
  EXPECT_TRUE(good->wait());
  EXPECT_THROW(bad->wait(), std::runtime_error);
  backend_.reset();
  EXPECT_EQ(destroyed_by(), std::this_thread::get_id());
}

TEST_F(AbandonableBackendTest, one_that_hangs_after_a_cut_is_given_up_and_counts_as_a_lost_peer) {
  const auto hangs = begin();
  abort_->fire();
  try {
    hangs->wait();
    FAIL() << "it has ended";
  } catch (const std::exception& e) {
    EXPECT_EQ(classify_fault(e).code, ExitCode::kPeerLost);
    EXPECT_THAT(classify_fault(e).message, testing::HasSubstr("cut"));
  }
  const auto later = begin();
  EXPECT_THROW(later->wait(), std::exception);
  // Dropping the group does not wait for what hangs; the rest of it ends when that does.
  HeldBackend& inner = inner_;
  backend_.reset();
  inner.work(0).fail();
  inner.work(1).end();
  EXPECT_NE(destroyed_by(), std::this_thread::get_id());
}

TEST_F(AbandonableBackendTest, a_cut_leaves_alone_what_ends_by_itself) {
  const auto work = begin();
  abort_->add_action([this] { inner_.work(0).fail(); });  // before this thread may be left without the CPU
  abort_->fire();
  try {
    work->wait();
    FAIL() << "it was not told";
  } catch (const std::exception& e) {
    EXPECT_STREQ(e.what(), "Connection reset by peer");
  }
  backend_.reset();
  EXPECT_EQ(destroyed_by(), std::this_thread::get_id());
}

TEST_F(AbandonableBackendTest, dropping_a_group_with_a_collective_that_hangs_does_not_wait_for_it) {
  const auto hangs = begin();
  HeldBackend& inner = inner_;
  backend_.reset();
  inner.work(0).end();
  EXPECT_NE(destroyed_by(), std::this_thread::get_id());
  EXPECT_TRUE(hangs->wait());
}

// Gloo itself, cut at different places of a transfer: about one group in seven had a collective that hung.
TEST(Gloo, that_is_cut_in_the_middle_of_a_transfer_ends_and_not_by_its_timeout) {
  std::signal(SIGPIPE, SIG_IGN);  // as the worker does
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  constexpr int kRanks = 4;
  for (int round = 0; round < 40; ++round) {
    std::vector<std::shared_ptr<GroupAbort>> aborts;
    for (int rank = 0; rank < kRanks; ++rank) aborts.push_back(std::make_shared<GroupAbort>());
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    std::latch under_way(kRanks);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        auto group = ProcessGroup::form(store, {.assignment = assigned(rank, kRanks),
                                                .timeout = std::chrono::seconds(60),
                                                .network_interface = "",
                                                .abort = aborts.at(static_cast<size_t>(rank))});
        ASSERT_TRUE(group.ok()) << group.error().message;
        sum_many_figures(**group, round % 2 == 1);
        under_way.count_down();
        try {
          for (;;) sum_many_figures(**group, round % 2 == 1);
        } catch (const std::exception& e) {
          EXPECT_EQ(classify_fault(e).code, ExitCode::kPeerLost) << e.what();
        }
      });
    }
    under_way.wait();
    for (const auto& abort : aborts) abort->fire();
    for (std::thread& rank : ranks) rank.join();
  }
}

}  // namespace
}  // namespace lockstep
