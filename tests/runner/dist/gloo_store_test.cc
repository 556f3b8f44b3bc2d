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

}  // namespace
}  // namespace lockstep
