#include "runner/data/synthetic.h"

#include <gtest/gtest.h>

#include <set>

#include "runner/data/interactions.h"

namespace lockstep {
namespace {

Dataset generate(const SyntheticOptions& options) {
  Result<Dataset> dataset = parse_interactions(synthetic_ratings(options), "synthetic", {.min_count = 0});
  EXPECT_TRUE(dataset.ok()) << dataset.error().message;
  return std::move(dataset).value();
}

TEST(Synthetic, is_read_back_whole) {
  const SyntheticOptions options{.users = 50, .items = 30, .events_min = 5, .events_max = 9};
  const Dataset dataset = generate(options);
  EXPECT_EQ(dataset.report.format, InteractionsFormat::kUserItemRatingTime);
  EXPECT_EQ(dataset.report.bad_lines, 0);
  EXPECT_EQ(dataset.interactions.num_users, 50);
  for (int64_t user = 1; user <= 50; ++user) {
    EXPECT_GE(dataset.interactions.items_of(user).size(), 5U);
    EXPECT_LE(dataset.interactions.items_of(user).size(), 9U);
  }
}

TEST(Synthetic, is_the_same_for_the_same_seed_and_another_for_another) {
  EXPECT_EQ(synthetic_ratings({}), synthetic_ratings({}));
  EXPECT_NE(synthetic_ratings({.seed = 1}), synthetic_ratings({.seed = 2}));
}

TEST(Synthetic, plants_one_cycle_through_all_items) {
  const std::vector<int32_t> successors = synthetic_successors({.items = 20});
  std::set<int32_t> seen;
  int32_t item = 1;
  for (int i = 0; i < 20; ++i) seen.insert(item = successors[static_cast<size_t>(item)]);
  EXPECT_EQ(seen.size(), 20U);
  EXPECT_EQ(item, 1);
}

// Counts transitions in the text itself, whose items are the planted ids.
TEST(Synthetic, follows_the_planted_chain_as_often_as_asked) {
  const SyntheticOptions options{.users = 100, .items = 50, .events_min = 30, .events_max = 30, .follow = 0.7};
  const std::vector<int32_t> successors = synthetic_successors(options);
  // As `user item` the ids are kept.
  std::string pairs;
  const std::string text = synthetic_ratings(options);
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    const size_t second_tab = text.find('\t', text.find('\t', at) + 1);
    pairs += text.substr(at, second_tab - at) + "\n";
  }
  Result<Dataset> dataset = parse_interactions(pairs, "pairs", {});
  ASSERT_TRUE(dataset.ok()) << dataset.error().message;
  int64_t followed = 0;
  int64_t transitions = 0;
  for (int64_t user = 1; user <= options.users; ++user) {
    const auto items = dataset->interactions.items_of(user);
    for (size_t i = 1; i < items.size(); ++i) {
      ++transitions;
      followed += successors[static_cast<size_t>(items[i - 1])] == items[i] ? 1 : 0;
    }
  }
  const double share = static_cast<double>(followed) / static_cast<double>(transitions);
  EXPECT_GT(share, 0.67);
  EXPECT_LT(share, 0.80);  // a popular item may be the successor by chance
}

}  // namespace
}  // namespace lockstep
