// What a Gloo group asks a LinkStore while it forms, with the switches that the agent sets. A program of its own,
// because gloo reads the switches only once.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "runner/contract/env_names.h"
#include "runner/dist/link_store.h"
#include "runner/dist/process_group.h"
#include "runner/dist/rendezvous.h"
#include "runner/recovery/node_machine.h"
#include "runner/recovery/store.h"
#include "tests/runner/support/ranks_as_threads.h"

namespace lockstep {
namespace {

constexpr uint64_t kGeneration = 5;
constexpr std::chrono::milliseconds kTimeout{30'000};

// The coordinator's store without a connection in between; counts the requests.
class CountingStore final : public StoreTransport {
 public:
  CountingStore() { store_.begin_generation(kGeneration); }

  Result<StoreReply> call(StoreRequest request) override {
    std::unique_lock lock(mutex_);
    const StoreClient client{.connection = ++last_connection_, .local_rank = 0};
    ++counts[request.op];
    most_keys = std::max(most_keys, request.keys.size());
    for (const std::string& value : request.values) most_bytes = std::max(most_bytes, value.size());
    for (const StoreAnswer& answer : store_.apply(client, request, std::chrono::steady_clock::now())) {
      answers_[answer.client] = answer.reply;
    }
    changed_.notify_all();
    if (!changed_.wait_for(lock, kTimeout, [&] { return answers_.contains(client); })) {
      return Error{ErrorCode::kUnavailable, "nobody answers"};
    }
    return answers_.at(client);
  }

  std::map<StoreOp, int> counts;
  size_t most_keys = 0;
  size_t most_bytes = 0;  // of a value

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  KeyValueStore store_;
  std::map<StoreClient, StoreReply> answers_;
  uint64_t last_connection_ = 0;
};

// The rank of this transport is lost when it has said its address, before it connects.
class LostAfterItsAddress final : public StoreTransport {
 public:
  explicit LostAfterItsAddress(StoreTransport& inner) : inner_(inner) {}

  Result<StoreReply> call(StoreRequest request) override {
    const bool asks = request.op == StoreOp::kGet || request.op == StoreOp::kWait;
    if (has_met && asks) return Error{ErrorCode::kUnavailable, "this rank is lost"};
    return inner_.call(std::move(request));
  }

  std::atomic<bool> has_met = false;

 private:
  StoreTransport& inner_;
};

// The number of requests to form a group grows with the number of ranks, not with its square.
TEST(GlooOverALinkStore, forms_with_a_few_requests_of_each_rank) {
  for (const std::string_view name : {env::kGlooStoreV2, env::kGlooRankAsSequenceNumber}) {
    setenv(std::string(name).c_str(), "1", /*overwrite=*/1);
  }
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  constexpr int kRanks = 8;
  CountingStore store;
  std::atomic<int> formed = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const StoreHandle handle = make_link_store(store, kGeneration, kTimeout);
      const Assignment mine = assigned(rank, kRanks);
      const Status met = meet(handle, mine, kTimeout);
      EXPECT_TRUE(met.ok()) << met.error().message;
      const auto group = ProcessGroup::form(handle, {.assignment = mine, .timeout = kTimeout, .network_interface = ""});
      EXPECT_TRUE(group.ok()) << group.error().message;
      EXPECT_EQ(handle.get()->getTimeout(), kTimeout);  // as it was
      ++formed;
      while (formed < kRanks) std::this_thread::yield();  // nobody leaves while others still connect
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(store.counts[StoreOp::kSet], 2 * kRanks + 1);  // "here", its address; and once that all are here
  EXPECT_EQ(store.counts[StoreOp::kAdd], kRanks);
  EXPECT_EQ(store.counts[StoreOp::kWait], kRanks);
  EXPECT_EQ(store.counts[StoreOp::kGet], kRanks);
  EXPECT_EQ(store.most_keys, kRanks);  // Gloo's, 128 at most
  EXPECT_NEAR(static_cast<double>(store.most_bytes), 154,
              32);  // an address, with the host's name; tests/tools/coordinator_load.cc has 154
}

// Its agent would kill it after kCutGrace, and with it the state that it holds.
TEST(GlooOverALinkStore, gives_up_a_lost_rank_before_an_agent_would_kill_the_one_that_waits) {
  CountingStore store;
  LostAfterItsAddress lost(store);
  const auto form = [&](int rank, StoreTransport& transport) {
    const StoreHandle handle = make_link_store(transport, kGeneration, kTimeout);
    Assignment mine = assigned(rank, 2);
    mine.address = rank == 0 ? "127.0.0.1" : "127.0.0.2";  // Gloo lets the rank with the lower address listen
    const Status met = meet(handle, mine, kTimeout);
    EXPECT_TRUE(met.ok()) << met.error().message;
    if (rank == 1) lost.has_met = true;
    return ProcessGroup::form(handle, {.assignment = mine, .timeout = kTimeout, .network_interface = ""});
  };
  const auto began = std::chrono::steady_clock::now();
  std::thread one([&] { EXPECT_FALSE(form(1, lost).ok()); });
  const auto group = form(0, store);
  EXPECT_LT(std::chrono::steady_clock::now() - began, kCutGrace);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.error().code, ErrorCode::kUnavailable) << group.error().message;
  one.join();
}

}  // namespace
}  // namespace lockstep
