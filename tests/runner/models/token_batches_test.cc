#include "runner/models/protein/token_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "runner/models/protein/sequence_groups.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Sample i of 40 has 10 + 7i % 90 residues, and is alike with one neighbour: clusters of two.
std::vector<PackedSample> samples() {
  std::vector<PackedSample> all;
  for (int64_t i = 0; i < 40; ++i) all.push_back({.sample = 100 + i, .length = 10 + 7 * i % 90, .cluster = i / 2});
  return all;
}

TokenBatches batches(int64_t tokens_max, int64_t samples_max = 1000) {
  return TokenBatches({.seed = 5, .tokens_max = tokens_max, .samples_max = samples_max}, samples());
}

std::vector<int64_t> all_of(TokenBatches& source, int64_t epoch) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < source.steps(epoch); ++i) {
    const std::vector<int64_t> batch = source.batch(epoch, i);
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

TEST(PackByLength, puts_samples_of_about_the_same_length_together_and_leaves_those_that_are_too_long_alone) {
  const std::vector<PackedSample> of_any_length = {{.sample = 0, .length = 50},
                                                   {.sample = 1, .length = 10},
                                                   {.sample = 2, .length = 300},
                                                   {.sample = 3, .length = 45},
                                                   {.sample = 4, .length = 12}};
  EXPECT_THAT(pack_by_length(of_any_length, {.tokens_max = 100}),
              ElementsAre(ElementsAre(1, 4), ElementsAre(3, 0), ElementsAre(2)));
  EXPECT_THAT(pack_by_length(of_any_length, {.tokens_max = 1000, .samples_max = 3}),
              ElementsAre(ElementsAre(1, 4, 3), ElementsAre(0, 2)));
  EXPECT_THAT(pack_by_length({}, {.tokens_max = 100}), IsEmpty());
}

TEST(TokenBatches, no_batch_has_more_padded_tokens_than_it_may) {
  TokenBatches source = batches(200);
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    for (int64_t i = 0; i < source.steps(epoch); ++i) {
      const std::vector<int64_t> batch = source.batch(epoch, i);
      int64_t longest = 0;
      for (const int64_t sample : batch) longest = std::max(longest, source.cost(sample));
      EXPECT_LE(longest * static_cast<int64_t>(batch.size()), 200);
    }
  }
}

TEST(TokenBatches, a_sample_that_is_too_long_is_a_batch_by_itself) {
  TokenBatches source = batches(5);
  EXPECT_EQ(source.steps(0), 20);
  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(source.batch(0, i).size(), 1U);
}

TEST(TokenBatches, an_epoch_takes_one_member_of_each_cluster_and_over_time_all) {
  TokenBatches source = batches(300);
  std::set<int64_t> seen;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    std::map<int64_t, int> by_cluster;
    for (const int64_t sample : all_of(source, epoch)) {
      ++by_cluster[(sample - 100) / 2];
      seen.insert(sample);
    }
    EXPECT_EQ(by_cluster.size(), 20U);
    for (const auto& [cluster, times] : by_cluster) EXPECT_EQ(times, 1) << cluster;
  }
  EXPECT_EQ(seen.size(), 40U);
}

// A monomer and a capsid of sixty copies are two members of one cluster.
TEST(TokenBatches, each_member_has_the_same_chance_however_many_samples_it_has) {
  std::vector<PackedSample> samples = {{.sample = 0, .length = 20, .cluster = 0, .member = 0}};
  for (int64_t i = 1; i <= 10; ++i) samples.push_back({.sample = i, .length = 20, .cluster = 0, .member = 1});
  TokenBatches source({.seed = 5, .tokens_max = 100, .samples_max = 10}, samples);
  constexpr int kEpochs = 10'000;
  std::map<int64_t, int> times;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) ++times[source.batch(epoch, 0).at(0)];
  EXPECT_NEAR(times[0], kEpochs / 2, 200);  // four standard deviations
  for (int64_t i = 1; i <= 10; ++i) EXPECT_NEAR(times[i], kEpochs / 20, 90) << i;
}

TEST(TokenBatches, the_steps_of_an_epoch_are_counted_as_they_are_packed) {
  std::vector<PackedSample> samples;
  for (int64_t i = 0; i < 300; ++i) {
    samples.push_back({.sample = i, .length = 1 + i * i % 97, .cluster = i / 3, .member = i % 3 / 2});
  }
  for (const int64_t tokens_max : {1, 50, 97, 200, 1000, 100'000}) {
    for (const int64_t samples_max : {7, 1000}) {
      TokenBatches counted({.seed = 5, .tokens_max = tokens_max, .samples_max = samples_max}, samples);
      for (int64_t epoch = 0; epoch < 5; ++epoch) {
        const int64_t steps = counted.steps(epoch);
        TokenBatches packed({.seed = 5, .tokens_max = tokens_max, .samples_max = samples_max}, samples);
        EXPECT_FALSE(packed.batch(epoch, steps - 1).empty());
        EXPECT_THROW((void)packed.batch(epoch, steps), std::out_of_range) << tokens_max << " " << epoch;
      }
    }
  }
}

TEST(SequenceGroups, structures_with_similar_proteins_are_one_group) {
  const std::string a =
      "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQFEVVHSLAKWKRQTLGQHDFSAGEGLYTHMKALRPDED";
  std::string mutated = a;
  mutated[10] = 'W';
  mutated[60] = 'W';
  const std::string other =
      "GSHMASMTGGQQMGRGSEFELRRQACGRTDDEPWNNVYCLKSTIPAHMKKWQRDGYVEPLNATCFIHSWKQMEDYRLPVGNATICFHSWKQ";
  EXPECT_EQ(sequence_groups({{a}, {other}, {mutated}, {"ACDEFG"}, {"ACDEFG", other}, {}}),
            (std::vector<int64_t>{0, 1, 0, 1, 1, 2}));
  EXPECT_EQ(sequence_groups({{"HHHHHHHHHHHHACD"}, {"HHHHHHHHHHHHWYE"}}), (std::vector<int64_t>{0, 1}));
  EXPECT_TRUE(sequence_groups({}).empty());
}

TEST(TokenBatches, an_epoch_has_as_many_samples_as_it_may) {
  TokenBatches source = batches(300, 7);
  EXPECT_EQ(all_of(source, 0).size(), 7U);
  EXPECT_NE(all_of(source, 0), all_of(source, 1));
}

TEST(TokenBatches, the_order_follows_from_seed_and_epoch_alone) {
  TokenBatches first = batches(200);
  TokenBatches second = batches(200);
  (void)second.batch(3, 0);
  EXPECT_EQ(all_of(first, 1), all_of(second, 1));
  EXPECT_NE(all_of(first, 1), all_of(first, 2));
  TokenBatches other({.seed = 6, .tokens_max = 200, .samples_max = 1000}, samples());
  EXPECT_NE(all_of(first, 1), all_of(other, 1));
}

TEST(TokenBatches, one_sample_is_enough) {
  TokenBatches source({.seed = 1, .tokens_max = 10, .samples_max = 1}, {{.sample = 3, .length = 0, .cluster = 0}});
  EXPECT_EQ(source.steps(0), 1);
  EXPECT_THAT(source.batch(0, 0), ElementsAre(3));
  EXPECT_EQ(source.cost(3), 1);
}

}  // namespace
}  // namespace lockstep
