#include "runner/models/sasrec/item_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runner/models/sasrec_fixture.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30U;

TEST(ItemMemory, of_five_million_items_is_said_with_what_there_is) {
  const Result<std::string> text =
      item_memory_text({.num_items = 5'000'000, .hidden_units = 50, .available_bytes = 16 * kGiB});
  ASSERT_TRUE(text.ok()) << text.error().message;
  // 5,000,001 x 50 x 4 bytes = 0.93 GiB; four of them; 64 users' scores.
  EXPECT_EQ(*text, "4.9 GiB of 16 GiB (embedding 954 MiB x 4, scores 1.2 GiB)");
}

TEST(ItemMemory, that_there_is_not_is_refused_with_what_to_do) {
  const ItemMemory small{.num_items = 5'000'000, .hidden_units = 50, .available_bytes = 4 * kGiB};
  const Result<std::string> text = item_memory_text(small);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(text.error().message,
              AllOf(HasSubstr("5000000 items"), HasSubstr("--hidden_units 50"), HasSubstr("4.9 GiB of 4.0 GiB"),
                    HasSubstr("gradients, and Adam's two moments"), HasSubstr("--min_count"), Not(HasSubstr("ranks"))));
}

// To drop rare items makes no other item's number smaller.
TEST(ItemMemory, of_ids_that_are_kept_is_saved_by_numbering_them) {
  const Result<std::string> text =
      item_memory_text({.num_items = 5'000'000, .hidden_units = 50, .available_bytes = 4 * kGiB, .keeps_ids = true});
  ASSERT_FALSE(text.ok());
  EXPECT_THAT(text.error().message,
              AllOf(HasSubstr("they go up to 5000000: number them 1, 2, 3 …"), Not(HasSubstr("--min_count"))));
}

TEST(ItemMemory, is_shared_by_ranks_and_more_with_a_moving_average) {
  ItemMemory memory{.num_items = 5'000'000, .hidden_units = 50, .available_bytes = 8 * kGiB};
  EXPECT_TRUE(item_memory_text(memory).ok());
  memory.ranks = 2;
  const Result<std::string> shared = item_memory_text(memory);
  ASSERT_FALSE(shared.ok());
  EXPECT_THAT(shared.error().message, AllOf(HasSubstr("(2 ranks: embedding"), HasSubstr("fewer ranks")));
  memory = {.num_items = 5'000'000, .hidden_units = 50, .averages = 1, .available_bytes = 8 * kGiB};
  EXPECT_THAT(*item_memory_text(memory), HasSubstr("5.8 GiB of 8.0 GiB (embedding 954 MiB x 5, "));
}

TEST(ItemMemory, is_looked_at_before_the_model_is_made) {
  RunConfig config = small_config();
  options_of<SasrecOptions>(config).hidden_units = 65'536;
  Dataset dataset = small_dataset();
  dataset.interactions.num_items = 50'000'000;
  const auto workload = SasrecWorkload::create(config, std::move(dataset), at::Device(at::kCPU));
  ASSERT_FALSE(workload.ok());
  EXPECT_THAT(workload.error().message, AllOf(HasSubstr("test data: 50000000 items"), HasSubstr("TiB of ")));
}

TEST(ItemMemory, of_this_machine_is_some) { EXPECT_GT(memory_of(at::Device(at::kCPU)), kGiB / 4); }

}  // namespace
}  // namespace lockstep
