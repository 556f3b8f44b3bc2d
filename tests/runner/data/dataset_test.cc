#include "runner/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

Dataset generated() {
  Result<Dataset> dataset = load_dataset(disk(), "generated", "/no/such/folder", {});
  EXPECT_TRUE(dataset.ok()) << dataset.error().message;
  return std::move(dataset).value();
}

TEST(GeneratedDataset, is_the_same_each_time_and_needs_no_folder) {
  const Dataset first = generated();
  EXPECT_EQ(first.interactions.items, generated().interactions.items);
  EXPECT_EQ(first.interactions.num_users, generated_dataset_options().users);
  EXPECT_EQ(first.interactions.num_items, generated_dataset_options().items);
  EXPECT_EQ(first.report.dropped_events, 0);
}

// The baselines that training is compared with (tests/python/test_datasets.py): popularity finds little; the item that
// most often follows the last one in other sequences finds most.
TEST(GeneratedDataset, can_be_learnt_by_transitions_and_not_by_popularity) {
  const Interactions data = generated().interactions;
  const auto items = static_cast<size_t>(data.num_items) + 1;
  std::vector<int64_t> seen(items, 0);
  std::vector<std::vector<int64_t>> follows(items, std::vector<int64_t>(items, 0));
  for (int64_t user = 1; user <= data.num_users; ++user) {
    const auto train = leave_one_out(data, user).train;
    for (size_t i = 0; i < train.size(); ++i) {
      ++seen[static_cast<size_t>(train[i])];
      if (i > 0) ++follows[static_cast<size_t>(train[i - 1])][static_cast<size_t>(train[i])];
    }
  }
  std::vector<int32_t> popular(items - 1);
  std::iota(popular.begin(), popular.end(), 1);
  std::stable_sort(popular.begin(), popular.end(),
                   [&](int32_t a, int32_t b) { return seen[static_cast<size_t>(a)] > seen[static_cast<size_t>(b)]; });
  double popularity_hits = 0;
  double popularity_ndcg = 0;
  double successor_hits = 0;
  for (int64_t user = 1; user <= data.num_users; ++user) {
    const UserSplit split = leave_one_out(data, user);
    const auto rank = std::find(popular.begin(), popular.end(), split.test) - popular.begin();
    if (rank < 10) ++popularity_hits;
    if (rank < 10) popularity_ndcg += 1.0 / std::log2(static_cast<double>(rank) + 2.0);
    const auto& next = follows[static_cast<size_t>(split.valid)];
    if (std::max_element(next.begin(), next.end()) - next.begin() == split.test) ++successor_hits;
  }
  const auto users = static_cast<double>(data.num_users);
  RecordProperty("popularity_hr10", std::to_string(popularity_hits / users));
  RecordProperty("popularity_ndcg10", std::to_string(popularity_ndcg / users));
  EXPECT_LT(popularity_hits / users, 0.35);
  EXPECT_LT(popularity_ndcg / users, 0.2);
  EXPECT_GT(successor_hits / users, 0.65);
}

class AutoDataset : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text = "1 2\n2 2\n") {
    return temporary_.write(name, text);
  }
  [[nodiscard]] std::string chosen() const {
    const Result<DatasetChoice> choice = choose_dataset(disk(), folder_);
    EXPECT_TRUE(choice.ok()) << choice.error().message;
    return choice.ok() ? choice->dataset : "";
  }
  [[nodiscard]] Error refusal() const {
    const Result<DatasetChoice> choice = choose_dataset(disk(), folder_);
    EXPECT_FALSE(choice.ok()) << choice->dataset;
    return choice.ok() ? Error{} : choice.error();
  }

  TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
};

TEST_F(AutoDataset, is_the_generated_one_where_there_is_none) {
  for (const std::string& folder : {folder_, folder_ + "/", folder_ + "/missing"}) {
    const Result<DatasetChoice> choice = choose_dataset(disk(), folder);
    ASSERT_TRUE(choice.ok()) << choice.error().message;
    EXPECT_EQ(choice->dataset, "generated");
    EXPECT_THAT(choice->remark, HasSubstr("no data set in " + folder_));
    EXPECT_THAT(choice->remark, HasSubstr("500 users"));
    EXPECT_THAT(choice->remark, HasSubstr("docker run -v \"$PWD/data:" + folder_));
    EXPECT_THAT(choice->remark, HasSubstr("TrainJob"));
  }
  EXPECT_THAT(choose_dataset(disk(), "./no-such-folder")->remark, Not(HasSubstr("docker")));
}

TEST_F(AutoDataset, does_not_count_what_a_volume_brings_along) {
  write("lost+found/x.txt");
  write(".hidden.txt");
  EXPECT_EQ(chosen(), "generated");
}

TEST_F(AutoDataset, is_the_only_one_there_in_each_form) {
  for (const char* name : {"one.txt", "two.inter", "ratings.dat", "three/ratings.dat", "four/four.inter", "ratings.csv",
                           "five/ratings.csv", "six/u.data", "seven.txt.gz"}) {
    const std::string path = write(name);
    EXPECT_EQ(chosen(), path);
    EXPECT_TRUE(load_dataset(disk(), chosen(), folder_, {.min_count = 0}).ok());
    std::filesystem::remove_all(std::filesystem::path(path).parent_path() == folder_
                                    ? std::filesystem::path(path)
                                    : std::filesystem::path(path).parent_path());
  }
}

TEST_F(AutoDataset, is_not_what_only_has_the_name_of_one) {
  const std::string path = write("ml-100k.inter");
  write("README.txt", "What these files are\n");
  write("ml-100k.item", "item_id:token\n1\n");
  write("notes/old.inter");
  EXPECT_EQ(chosen(), path);
}

// The reader says what is wrong with it, and where.
TEST_F(AutoDataset, is_the_only_candidate_even_when_it_cannot_be_read) {
  const std::string path = write("ratings.txt", "\x1F\x8B packed");
  EXPECT_EQ(chosen(), path);
  EXPECT_THAT(load_dataset(disk(), path, folder_, {}).error().message, HasSubstr("compressed with gzip and damaged"));
}

TEST_F(AutoDataset, is_refused_where_there_are_several) {
  write("a.inter");
  write("b.txt");
  EXPECT_EQ(refusal().code, ErrorCode::kConflict);
  for (const char* word : {"2 data sets", "/a.inter", "/b.txt", "--dataset"}) {
    EXPECT_THAT(refusal().message, HasSubstr(word));
  }
}

TEST_F(AutoDataset, is_refused_where_there_is_something_else) {
  write("movie.csv");
  for (const char* name : {"1.jpg", "2.jpg", "3.jpg", "4.jpg", "photos/5.jpg"}) write(name);
  EXPECT_EQ(refusal().code, ErrorCode::kNotFound);
  for (const char* word : {"1.jpg, 2.jpg, 3.jpg, 4.jpg, movie.csv and 1 more", "NAME.inter", "--dataset generated"}) {
    EXPECT_THAT(refusal().message, HasSubstr(word));
  }
}

TEST_F(AutoDataset, is_refused_where_nobody_can_look) {
  const std::string file = write("data.inter");
  EXPECT_THAT(choose_dataset(disk(), file).error().message, HasSubstr("is a file"));
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
  const uid_t self = ::geteuid();
  if (self != 0) GTEST_SKIP() << "needs root, who may be somebody else";
  ASSERT_EQ(::seteuid(kNobody), 0);
  const Error error = refusal();
  ASSERT_EQ(::seteuid(self), 0);
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_THAT(error.message, HasSubstr(folder_ + " cannot be read: Permission denied"));
}

}  // namespace
}  // namespace lockstep
