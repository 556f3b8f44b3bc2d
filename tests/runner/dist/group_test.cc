#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "runner/dist/collectives.h"
#include "runner/dist/device_stream.h"
#include "runner/dist/grad_reducer.h"
#include "runner/dist/process_group.h"
#include "runner/dist/rendezvous.h"
#include "runner/dist/state_transfer.h"
#include "runner/dist/store_handle.h"
#include "tests/runner/support/ranks_as_threads.h"

namespace lockstep {
namespace {

TEST(Group, sums_host_figures_over_ranks) {
  on_ranks(3, [](ProcessGroup& group) {
    const double rank = group.rank();
    const std::vector<double> sums = sum_over_ranks(group, std::array{rank, 1.0});
    EXPECT_EQ(sums, (std::vector<double>{3.0, 3.0}));
  });
}

TEST(Group, of_one_rank_alone_changes_nothing) {
  auto group = ProcessGroup::solo({.assignment = assigned(0, 1), .network_interface = ""});
  EXPECT_EQ(sum_over_ranks(*group, std::array{2.5}), std::vector<double>{2.5});
  EXPECT_EQ(gather_over_ranks(*group, std::array<int64_t, 2>{4, 5}), (std::vector<std::vector<int64_t>>{{4, 5}}));
}

TEST(Group, adds_host_figures_in_the_order_of_the_ranks) {
  // 1 is lost beside 1e16 unless the two large figures are added first: only one order of three ranks gives 1.
  on_ranks(3, [](ProcessGroup& group) {
    const std::array figures{1e16, -1e16, 1.0};
    const std::array others{1.0, 1e16, -1e16};
    const auto rank = static_cast<size_t>(group.rank());
    const std::vector<double> sums = sum_over_ranks(group, std::array{figures[rank], others[rank]});
    EXPECT_EQ(sums, (std::vector<double>{1.0, 0.0}));
  });
}

TEST(Group, sends_bytes_to_rank_zero_only) {
  constexpr size_t kLong = (size_t{1} << 20) + 7;  // more than a piece
  on_ranks(3, [](ProcessGroup& group) {
    const std::vector<std::string> texts{"zero", std::string(kLong, 'a') + "end", ""};
    int pieces = 0;
    const auto all = bytes_to_rank_zero(group, texts[static_cast<size_t>(group.rank())], [&] { ++pieces; });
    EXPECT_EQ(pieces, 2);
    EXPECT_TRUE(all == (group.rank() == 0 ? texts : std::vector<std::string>{}));
  });
}

// Three tensors of several dtypes, one of them a view: several messages.
NamedTensors three_tensors(double value) {
  return {{"w", torch::full({2, 2}, value)},
          {"n", torch::full({3}, static_cast<int64_t>(value), torch::kInt64)},
          {"t", torch::full({4, 3}, value, torch::kFloat64).t()}};
}

bool is_all(const NamedTensors& state, double value) {
  return std::all_of(state.begin(), state.end(),
                     [&](const NamedTensor& t) { return t.tensor.eq(value).all().item<bool>(); });
}

TEST(Group, transfers_the_sources_state_to_those_who_lack_it_only) {
  for (const std::vector<bool>& receives : {std::vector<bool>{true, false, false, false},
                                            {true, false, false, true},
                                            {false, false, false, true},
                                            {true, false, true, true}}) {
    on_ranks(4, [&](ProcessGroup& group) {
      const NamedTensors state = three_tensors(group.rank() + 1);
      transfer_state(group, *make_device_stream(at::kCPU), state, /*source=*/1, receives);
      EXPECT_TRUE(is_all(state, receives[static_cast<size_t>(group.rank())] ? 2 : group.rank() + 1));
    });
  }
}

// Counts what comes to a rank over any backend.
class CountingBackend final : public c10d::Backend {
 public:
  explicit CountingBackend(c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}
  [[nodiscard]] const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    bytes_ += static_cast<int64_t>(tensors.at(0).nbytes());
    return inner_->broadcast(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_counts, std::vector<int64_t>& input_counts,
                                               const c10d::AllToAllOptions& options) override {
    bytes_ += static_cast<int64_t>(output.nbytes() + input.nbytes());
    return inner_->alltoall_base(output, input, output_counts, input_counts, options);
  }
  [[nodiscard]] int64_t bytes() const { return bytes_; }

 private:
  c10::intrusive_ptr<c10d::Backend> inner_;
  std::atomic<int64_t> bytes_ = 0;
};

TEST(Group, a_transfer_to_one_rank_carries_no_bytes_over_the_others) {
  constexpr int64_t kNumbers = 1 << 16;
  on_ranks(4, [&](ProcessGroup& group) {
    const auto counting = c10::make_intrusive<CountingBackend>(group.handle()->getBackend(at::kCPU));
    group.handle()->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, counting);
    const NamedTensors state{{"w", torch::full({kNumbers}, group.rank())}};
    transfer_state(group, *make_device_stream(at::kCPU), state, /*source=*/1, {false, false, false, true});
    EXPECT_TRUE(is_all(state, group.rank() == 3 ? 1 : group.rank()));
    const auto size = static_cast<int64_t>(state[0].tensor.nbytes());
    if (group.rank() == 1 || group.rank() == 3) {
      EXPECT_GE(counting->bytes(), size);
    } else {
      EXPECT_LT(counting->bytes(), 1024);  // the barrier's
    }
  });
}

// Wherever a transfer breaks off, the receivers have the whole state or nothing, and can never pass on a part of it.
// Even the whole state does not count before the source has confirmed that it was all. `ranks` 2: all others receive.
void break_off_a_transfer(int ranks, const std::vector<bool>& receives) {
  constexpr int kMessages = 4;  // one for each change of dtype
  const auto receivers = static_cast<int>(std::count(receives.begin(), receives.end(), true));
  const int rounds = receivers + 1 == ranks ? kMessages : kMessages + receivers - 1;
  for (int last = 1; last <= rounds + 1; ++last) {
    const bool breaks = last <= rounds;
    on_ranks(ranks, [&](ProcessGroup& group) {
      const bool is_source = group.rank() == 0;
      NamedTensors state;
      for (int i = 0; i < kMessages; ++i) {
        const auto dtype = i % 2 == 0 ? torch::kFloat32 : torch::kInt64;
        state.push_back({std::to_string(i), torch::full({3}, is_source ? 1 : 2, dtype)});
      }
      int messages = 0;
      const auto dies_after_the_last = [&] {
        if (++messages == last && is_source) throw std::runtime_error("the source dies");
      };
      bool broke_off = false;
      try {
        transfer_state(group, *make_device_stream(at::kCPU), state, /*source=*/0, receives, dies_after_the_last);
      } catch (const std::exception&) {
        broke_off = true;
      }
      EXPECT_EQ(broke_off, breaks);
      const bool has_it = is_source || (!breaks && receives[static_cast<size_t>(group.rank())]);
      for (const NamedTensor& t : state) {
        EXPECT_TRUE(t.tensor.eq(has_it ? 1 : 2).all().item<bool>()) << last << " " << t.name;
      }
    });
  }
}

TEST(Group, a_transfer_to_all_that_breaks_off_changes_nothing) { break_off_a_transfer(2, {false, true}); }
TEST(Group, a_transfer_to_some_that_breaks_off_changes_nothing) {
  break_off_a_transfer(3, {false, false, true});
  break_off_a_transfer(4, {false, true, false, true});
}

TEST(Group, waits_for_an_interface_that_was_there_when_an_earlier_group_formed) {
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  GroupOptions options{
      .assignment = assigned(0, 1), .timeout = std::chrono::seconds(5), .network_interface = "nosuch0"};
  const auto never = ProcessGroup::form(store, options);
  ASSERT_FALSE(never.ok());
  EXPECT_EQ(never.error().code, ErrorCode::kInvalid);
  EXPECT_NE(never.error().message.find("nosuch0"), std::string::npos) << never.error().message;
  options.has_formed_before = true;
  const auto now = ProcessGroup::form(store, options);
  ASSERT_FALSE(now.ok());
  EXPECT_EQ(now.error().code, ErrorCode::kRetry);
}

// As PyTorch takes GLOO_SOCKET_IFNAME.
TEST(Group, listens_on_the_first_interface_of_a_list_that_is_there) {
  const auto form = [](const std::string& interfaces) {
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    return ProcessGroup::form(
        store, {.assignment = assigned(0, 1), .timeout = std::chrono::seconds(5), .network_interface = interfaces});
  };
  EXPECT_TRUE(form("nosuch0,lo").ok());
  EXPECT_TRUE(form("lo, nosuch0").ok());
  for (const std::string none : {"nosuch0,nosuch1", ",", "^lo,docker"}) {
    const auto group = form(none);
    ASSERT_FALSE(group.ok()) << none;
    EXPECT_EQ(group.error().code, ErrorCode::kInvalid);
    EXPECT_NE(group.error().message.find(none), std::string::npos) << group.error().message;
  }
  EXPECT_NE(form("^lo").error().message.find("NCCL's syntax"), std::string::npos);
}

TEST(Group, names_a_full_table_of_open_files) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  const int lowest_free = ::dup(STDERR_FILENO);
  ASSERT_GE(lowest_free, 0);
  ::close(lowest_free);
  rlimit full = before;
  full.rlim_cur = static_cast<rlim_t>(lowest_free);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &full), 0);
  const auto group = ProcessGroup::form(store, {.assignment = assigned(0, 1), .timeout = std::chrono::seconds(5)});
  ::setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.error().code, ErrorCode::kRetry);
  EXPECT_NE(group.error().message.find("ulimit"), std::string::npos) << group.error().message;
}

TEST(Group, reduces_gradients_to_their_mean_and_can_be_dropped_and_made_again) {
  on_ranks(2, [](ProcessGroup& group) {
    const NamedTensors parameters{{"w", torch::ones({3}, torch::requires_grad())}};
    const at::Tensor& w = parameters[0].tensor;
    for (int generation = 0; generation < 2; ++generation) {
      GradReducer reducer(parameters, group);
      EXPECT_FALSE(w.grad().defined());
      for (int step = 0; step < 2; ++step) {
        if (w.grad().defined()) w.mutable_grad().zero_();
        // Accumulation: the first micro-batch is not reduced, the sum of both is.
        (w * 1.0).sum().backward();
        const at::Tensor loss = (w * static_cast<double>(group.rank())).sum();
        reducer.prepare(loss);
        loss.backward();
        EXPECT_TRUE(w.grad().eq(1.5).all().item<bool>()) << w.grad();
      }
    }
  });
}

TEST(Group, names_the_parameters_that_a_backward_does_not_reach) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [](ProcessGroup& group) {
      const NamedTensors parameters{{"w", torch::ones({3}, torch::requires_grad())},
                                    {"v", torch::ones({3}, torch::requires_grad())}};
      GradReducer reducer(parameters, group);
      const at::Tensor whole = parameters[0].tensor.sum() + parameters[1].tensor.sum();
      reducer.prepare(whole);
      whole.backward();
      EXPECT_TRUE(reducer.unreached().empty());
      for (const NamedTensor& p : parameters) {
        if (group.is_solo()) p.tensor.mutable_grad().reset();
      }
      const at::Tensor part = parameters[0].tensor.sum();
      reducer.prepare(part);
      part.backward();
      EXPECT_EQ(reducer.unreached(), std::vector<std::string>{"v"});
    });
  }
}

// 1/3 is not exact in floating point, so the order of scaling and adding shows in the last bit. The first backward of a
// reducer is the first step of a new group, and must give what the group before it would have given.
TEST(Group, rounds_in_a_reducers_first_backward_as_in_every_later_one) {
  on_ranks(3, [](ProcessGroup& group) {
    const NamedTensors parameters{{"w", torch::ones({1000}, torch::requires_grad())}};
    const at::Tensor& w = parameters[0].tensor;
    const at::Tensor factors = torch::arange(1, 1001, torch::kFloat32).mul(0.1 * (group.rank() + 1)).sin();
    std::vector<at::Tensor> gradients;
    for (int generation = 0; generation < 2; ++generation) {
      GradReducer reducer(parameters, group);
      for (int step = 0; step < 2; ++step) {
        if (w.grad().defined()) w.mutable_grad().zero_();
        const at::Tensor loss = (w * factors).sum();
        reducer.prepare(loss);
        loss.backward();
        gradients.push_back(w.grad().clone());
        EXPECT_TRUE(gradients.back().equal(gradients.front())) << "generation " << generation << ", step " << step;
      }
    }
  });
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return pages * ::getpagesize();
}

// A run has millions of steps: 16 bytes for each parameter in each of them are a leak.
TEST(Group, a_reducer_does_not_grow_with_its_steps) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps memory that was freed";
#endif
  constexpr int kParameters = 400;
  constexpr int kSteps = 800;  // 5 MiB a rank, were they kept
  on_ranks(2, [](ProcessGroup& group) {
    NamedTensors parameters;
    for (int i = 0; i < kParameters; ++i) parameters.push_back({std::to_string(i), torch::ones({1}).requires_grad_()});
    GradReducer reducer(parameters, group);
    const auto step = [&] {
      at::Tensor loss = torch::zeros({1});
      for (const NamedTensor& p : parameters) loss = loss + p.tensor;
      reducer.prepare(loss);
      loss.backward();
    };
    for (int i = 0; i < kSteps / 4; ++i) step();
    const int64_t before = resident_bytes();
    for (int i = 0; i < kSteps; ++i) step();
    EXPECT_LT(resident_bytes() - before, int64_t{3} << 20);  // of both ranks, which are threads
  });
}

TEST(Group, a_reducer_leaves_no_hook_behind) {
  on_ranks(2, [](ProcessGroup& group) {
    const NamedTensors parameters{{"w", torch::ones({3}, torch::requires_grad())}};
    const auto node = torch::autograd::impl::grad_accumulator(parameters[0].tensor);
    { const GradReducer reducer(parameters, group); }
    EXPECT_TRUE(node->post_hooks().empty());
  });
}

TEST(Group, finds_the_rank_whose_parameters_have_drifted) {
  on_ranks(3, [](ProcessGroup& group) {
    const at::Tensor w = torch::ones({5});
    const auto device = make_device_stream(at::kCPU);
    EXPECT_TRUE(drifted_ranks(group, *device, {{"w", w}}).empty());
    if (group.rank() == 2) w[3] += 1e-6;
    EXPECT_EQ(drifted_ranks(group, *device, {{"w", w}}), std::vector<int>{2});
  });
}

TEST(Group, that_nccl_cannot_start_names_rank_device_and_the_ways_out) {
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  const auto group = ProcessGroup::form(store, {.assignment = assigned(0, 1),
                                                .backend = GroupBackend::kNccl,
                                                .timeout = std::chrono::seconds(5),
                                                .network_interface = ""});
  if (group.ok()) GTEST_SKIP() << "NCCL works here";
  for (const char* word : {"nccl", "rank 0", "cpu", "NCCL_DEBUG=INFO", "--backend gloo", "--master_port"}) {
    EXPECT_NE(group.error().message.find(word), std::string::npos) << word << ": " << group.error().message;
  }
}

TEST(Meet, names_the_ranks_that_did_not_come) {
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  const Status met = meet(store, assigned(1, 4), std::chrono::milliseconds(50));
  ASSERT_FALSE(met.ok());
  EXPECT_EQ(met.error().code, ErrorCode::kRetry);
  EXPECT_NE(met.error().message.find("0, 2, 3"), std::string::npos) << met.error().message;
}

TEST(Agree, refuses_different_flags_on_every_rank_with_the_same_sentence) {
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  std::array<std::string, 2> said;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const Json flags{{"lr", rank == 0 ? "0.1" : "0.2"}, {"seed", "1"}};
      const Status agreed = agree(store, assigned(rank, 2), dump_line(flags));
      ASSERT_FALSE(agreed.ok());
      EXPECT_EQ(agreed.error().code, ErrorCode::kInvalid);
      said[static_cast<size_t>(rank)] = agreed.error().message;
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(said[0], said[1]);
  for (const char* word : {"--lr", "0.1", "0.2", "rank 1"}) {
    EXPECT_NE(said[0].find(word), std::string::npos) << said[0];
  }
}

}  // namespace
}  // namespace lockstep
