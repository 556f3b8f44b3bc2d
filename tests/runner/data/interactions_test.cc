#include "runner/data/interactions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>

#include "runner/data/dataset.h"
#include "runner/data/synthetic.h"
#include "runner/formats/zip_archive.h"
#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr ReadOptions kKeepAll{.min_count = 0};

Dataset parse(std::string_view text, const ReadOptions& options = kKeepAll) {
  Result<Dataset> dataset = parse_interactions(text, "file", options);
  EXPECT_TRUE(dataset.ok()) << dataset.error().message;
  return dataset.ok() ? std::move(dataset).value() : Dataset{};
}

std::string refused(std::string_view text, const ReadOptions& options = kKeepAll) {
  const Result<Dataset> dataset = parse_interactions(text, "file", options);
  EXPECT_FALSE(dataset.ok());
  if (dataset.ok()) return "";
  EXPECT_EQ(dataset.error().code, ErrorCode::kInvalid);
  return dataset.error().message;
}

std::vector<int32_t> items_of(const Dataset& dataset, int64_t user) {
  const auto items = dataset.interactions.items_of(user);
  return {items.begin(), items.end()};
}

TEST(Interactions, of_user_item_keep_their_ids_and_the_order_of_the_file) {
  const Dataset dataset = parse("1 5\n1 2\n3 2\n1 5\n");
  EXPECT_EQ(dataset.report.format, InteractionsFormat::kUserItem);
  EXPECT_EQ(dataset.report.lines, 4);
  EXPECT_EQ(dataset.interactions.num_users, 3);
  EXPECT_EQ(dataset.interactions.num_items, 5);
  EXPECT_THAT(items_of(dataset, 1), ElementsAre(5, 2, 5));
  EXPECT_THAT(items_of(dataset, 2), IsEmpty());
  EXPECT_THAT(items_of(dataset, 3), ElementsAre(2));
  EXPECT_THAT(items_of(dataset, 0), IsEmpty());
  EXPECT_THAT(dataset.interactions.timestamps, IsEmpty());
  EXPECT_EQ(dataset.interactions.offsets.size(), 5U);
}

TEST(Interactions, with_times_are_sorted_by_time_then_by_line) {
  for (const char* text : {"7\t10\t3\t200\n7\t11\t3\t100\n8\t10\t1\t5\n7\t12\t3\t100\n7\t13\t3\t100\n",
                           "7 10 3 200\r\n7 11 3 100\r\n8 10 1 5\r\n7 12 3 100\r\n7  13 3 100",
                           "7::10::3::200\n7::11::3::100\n8::10::1::5\n7::12::3::100\n7::13::3::100\n"}) {
    const Dataset dataset = parse(text);
    // Items in the order of first appearance: 10 → 1, 11 → 2, 12 → 3, 13 → 4.
    EXPECT_THAT(items_of(dataset, 1), ElementsAre(2, 3, 4, 1)) << text;
    EXPECT_THAT(items_of(dataset, 2), ElementsAre(1)) << text;
    EXPECT_THAT(dataset.interactions.timestamps, ElementsAre(100, 100, 100, 200, 5)) << text;
  }
}

TEST(Interactions, know_ratings_dat_by_its_separator) {
  EXPECT_EQ(parse("1::2::5::9\n2::2::4::9\n").report.format, InteractionsFormat::kRatingsDat);
}

TEST(Interactions, read_recbole_columns_in_any_order_with_any_token) {
  const Dataset dataset = parse(
      "timestamp:float\titem_id:token\trating:float\tuser_id:token\n"
      "881250949.0\tB00X\t3\talice\n"
      "100\t0\t\talice\n"
      "7\tB00X\t1\tbob\n");
  EXPECT_EQ(dataset.report.format, InteractionsFormat::kInter);
  EXPECT_EQ(dataset.report.lines, 3);
  EXPECT_THAT(items_of(dataset, 1), ElementsAre(2, 1));
  EXPECT_THAT(items_of(dataset, 2), ElementsAre(1));
  EXPECT_THAT(dataset.interactions.timestamps, ElementsAre(100, 881250949, 7));
}

TEST(Interactions, read_recbole_without_times_in_the_order_of_the_file) {
  const Dataset dataset = parse("user_id:token\titem_id:token\n1\t9\n2\t8\n1\t8\n");
  EXPECT_THAT(items_of(dataset, 1), ElementsAre(1, 2));
  EXPECT_THAT(dataset.interactions.timestamps, IsEmpty());
}

TEST(Interactions, refuse_a_recbole_header_without_user_or_item) {
  EXPECT_THAT(refused("user_id:token\trating:float\n1\t2\n"), AllOf(HasSubstr("file:1"), HasSubstr("item_id")));
  EXPECT_THAT(refused("item_id:token\n1\n"), HasSubstr("user_id"));
  EXPECT_THAT(refused("user_id:token\tuser_id:token\titem_id:token\n"),
              HasSubstr("file:1: the header has the column user_id twice"));
}

TEST(Interactions, drop_rare_users_and_items_counted_once_and_at_the_same_time) {
  // User 1 has 3 lines, item 10 too; user 2 has 2, item 11 has 2. Dropping item 11 leaves user 1 with two lines: kept.
  const std::string text = "1 10 1 1\n1 10 1 2\n1 11 1 3\n2 10 1 4\n2 11 1 5\n3 12 1 1\n3 12 1 2\n3 12 1 3\n";
  const Dataset dataset = parse(text, {.min_count = 3});
  EXPECT_THAT(items_of(dataset, 1), ElementsAre(1, 1));
  EXPECT_THAT(items_of(dataset, 2), ElementsAre(2, 2, 2));
  EXPECT_EQ(dataset.report.dropped_users, 1);
  EXPECT_EQ(dataset.report.dropped_items, 1);
  EXPECT_EQ(dataset.report.dropped_events, 3);
  EXPECT_EQ(dataset.report.events, 5);
}

TEST(Interactions, have_a_min_count_of_five_with_ratings_and_none_for_user_item) {
  std::string ratings;
  std::string pairs;
  for (int user = 1; user <= 2; ++user) {
    for (int i = 0; i < 5; ++i) {
      ratings += std::to_string(user) + " 1 1 " + std::to_string(i) + "\n";
      pairs += std::to_string(user) + " 1\n";
    }
  }
  const Dataset with_rare = parse(ratings + "3 2 1 1\n", {});
  EXPECT_EQ(with_rare.report.min_count, 5);
  EXPECT_EQ(with_rare.interactions.num_users, 2);
  const Dataset kept = parse(pairs + "3 2\n", {});
  EXPECT_EQ(kept.report.min_count, 0);
  EXPECT_EQ(kept.interactions.num_users, 3);
}

TEST(Interactions, count_and_name_malformed_lines_below_the_limit) {
  std::string text = "junk line here\n\n";
  for (int i = 0; i < 200; ++i) text += "1 2\n2 3\n";
  text += "7\n1 x\n\xE9 1\n";
  const Dataset dataset = parse(text);
  EXPECT_EQ(dataset.report.lines, 404);
  EXPECT_EQ(dataset.report.bad_lines, 4);
  ASSERT_EQ(dataset.report.bad_samples.size(), 3U);
  EXPECT_EQ(dataset.report.bad_samples[0].line, 1);
  EXPECT_EQ(dataset.report.bad_samples[0].text, "junk line here");
  EXPECT_EQ(dataset.report.bad_samples[1].line, 403);
  EXPECT_THAT(dataset.report.bad_samples[1].reason, HasSubstr("1 columns"));
  EXPECT_THAT(dataset.report.bad_samples[2].reason, HasSubstr("item id"));
  EXPECT_EQ(dataset.report.events, 400);
}

TEST(Interactions, refuse_more_malformed_lines_than_allowed_naming_three) {
  const std::string text = "1 2\n2 x\n2 3\n3 \xFF\n4\n5\n";
  const std::string message = refused(text);
  EXPECT_THAT(message, AllOf(HasSubstr("4 of 6"), HasSubstr("--max_bad_lines"), HasSubstr("file:2"),
                             HasSubstr("file:4"), HasSubstr("\\xff"), HasSubstr("file:5")));
  EXPECT_THAT(message, Not(HasSubstr("file:6")));
  EXPECT_EQ(parse(text, {.min_count = 0, .max_bad_lines = 0.7}).report.bad_lines, 4);
}

TEST(Interactions, shorten_and_escape_what_they_quote) {
  const Dataset dataset = parse(std::string(500, 'x') + "\n1 2\n2 2\n", {.max_bad_lines = 1.0});
  EXPECT_EQ(dataset.report.bad_samples[0].text.size(), 80U);
}

TEST(Interactions, refuse_ids_below_one_and_too_large_naming_the_line) {
  EXPECT_THAT(refused("1 2\n-1 2\n2 2\n"), AllOf(HasSubstr("file:2"), HasSubstr("user id is -1")));
  EXPECT_THAT(refused("1 2\n2 -5\n"), AllOf(HasSubstr("file:2"), HasSubstr("item id is -5")));
  EXPECT_THAT(refused("-3 4\n2 5\n"), HasSubstr("file:1"));
  EXPECT_THAT(refused("1 0\n2 5\n"), HasSubstr("item id is 0"));
  EXPECT_THAT(refused("0::1::5::9\n2::-1::5::9\n"), HasSubstr("item id is -1, expected 0 to "));
  EXPECT_THAT(refused("1 1 5 9\n2 -1 5 9\n"), HasSubstr("file:2"));
  EXPECT_THAT(refused("1 2\n99999999999999999999 2\n"), HasSubstr("99999999999999999999"));
  EXPECT_THAT(refused("1 2\n2 4000000000\n"), HasSubstr("item id is 4000000000"));
}

// RecBole's tokens are text: two spellings of a number are two labels.
TEST(Interactions, take_recbole_labels_as_they_are_written) {
  const Dataset dataset = parse(
      "user_id:token\titem_id:token\n"
      "7\t-1\n007\t0\n99999999999999999999\t00\n7\t-1\n-7\t1\n-7\t-0\n");
  EXPECT_EQ(dataset.interactions.num_users, 4) << "7, 007, the long one and -7";
  EXPECT_EQ(dataset.interactions.num_items, 5) << "-1, 0, 00, 1 and -0";
}

TEST(Interactions, accept_zero_and_large_ids_where_they_are_renumbered) {
  const Dataset dataset = parse("9000000000 4000000000 1 1\n0 4000000000 1 1\n0 0 1 2\n");
  EXPECT_EQ(dataset.interactions.num_users, 2);
  EXPECT_EQ(dataset.interactions.num_items, 2);
}

TEST(Interactions, refuse_kept_ids_with_large_gaps_and_say_how_to_bring_them) {
  EXPECT_THAT(refused("1 2\n2 1000000000\n"),
              AllOf(HasSubstr("file:2"), HasSubstr("item id is 1000000000"), HasSubstr("kept as they are"),
                    HasSubstr("number them"), HasSubstr(".inter")));
}

TEST(Interactions, close_gaps_between_ids_up_to_ten_to_the_eighteenth) {
  std::string dat;
  std::string inter = "user_id:token\titem_id:token\ttimestamp:float\n";
  for (int64_t user = 0; user < 6; ++user) {
    for (int64_t item = 0; item < 6; ++item) {
      const std::string u = std::to_string(1'000'000'000'000'000'000 - user * 1'000'000'000);
      const std::string i = std::to_string(1 + item * 200'000'000'000'000'000);
      dat.append(u).append("::").append(i).append("::5::").append(std::to_string(item)).append("\n");
      inter.append(u).append("\t").append(i).append("\t").append(std::to_string(item)).append("\n");
    }
  }
  for (const std::string& text : {dat, inter}) {
    const Interactions found = parse(text, {}).interactions;
    EXPECT_EQ(found.num_users, 6);
    EXPECT_EQ(found.num_items, 6);
    for (int64_t user = 1; user <= 6; ++user) EXPECT_THAT(found.items_of(user), ElementsAre(1, 2, 3, 4, 5, 6));
  }
}

TEST(Interactions, keep_thousands_of_large_ids_and_labels_apart) {
  constexpr int kUsers = 3000;
  for (const std::string& prefix : {std::string("9"), std::string("user-")}) {
    std::string text = "user_id:token\titem_id:token\n";
    for (int round = 0; round < 2; ++round) {
      for (int user = 0; user < kUsers; ++user) {
        text.append(prefix).append(std::to_string(1'000'000'000 + user * 4096)).append("\t");
        text.append("item-").append(std::to_string(user)).append("\n");
      }
    }
    const Interactions found = parse(text).interactions;
    ASSERT_EQ(found.num_users, kUsers);
    ASSERT_EQ(found.num_items, kUsers);
    for (int user = 1; user <= kUsers; ++user) EXPECT_THAT(found.items_of(user), ElementsAre(user, user));
  }
}

TEST(Interactions, name_the_file_of_movielens_that_is_wanted) {
  EXPECT_THAT(refused("1::F::1::10::48067\n2::M::56::16::70072\n"), HasSubstr("only ratings.dat holds interactions"));
  EXPECT_THAT(refused("1::Am\xE9lie (2001)::Comedy|Romance\n"),
              AllOf(HasSubstr("Am\\xe9lie"), HasSubstr("only ratings.dat holds interactions")));
  EXPECT_THAT(refused("1 2 3\n"), Not(HasSubstr("MovieLens'")));
}

TEST(Interactions, of_movielens_are_sorted_by_user_time_and_line) {
  const Interactions found =
      parse("2::30::5::100\n1::10::5::200\n1::20::4::100\n1::30::3::200\n2::10::1::100\n1::40::2::50\n").interactions;
  // Renumbered in the order of first appearance: users 2, 1; items 30, 10, 20, 40.
  EXPECT_THAT(found.items_of(1), ElementsAre(1, 2));
  EXPECT_THAT(found.items_of(2), ElementsAre(4, 3, 2, 1));
}

TEST(Interactions, refuse_a_data_set_with_one_user) {
  EXPECT_THAT(refused("7 1\n7 2\n7 3\n"), HasSubstr("only one user"));
  EXPECT_THAT(refused("1 1 1 1\n1 1 1 2\n1 1 1 3\n2 1 1 1\n", {.min_count = 2}),
              AllOf(HasSubstr("only one user"), HasSubstr("--min_count 2")));
}

TEST(Interactions, say_when_min_count_leaves_nothing) {
  EXPECT_THAT(refused("1 1 1 1\n2 1 1 1\n", {}), HasSubstr("--min_count 5"));
}

TEST(Interactions, refuse_empty_files) {
  EXPECT_THAT(refused(""), HasSubstr("empty"));
  EXPECT_THAT(refused("\n \r\n\n"), HasSubstr("empty"));
  EXPECT_THAT(refused("user_id:token\titem_id:token\n"),
              HasSubstr("no interactions: expected interactions of at least two users"));
}

TEST(Interactions, refuse_formats_they_do_not_know) {
  EXPECT_THAT(refused("1,2,3,4\n"),
              AllOf(HasSubstr("file:1"), HasSubstr("1,2,3,4"), HasSubstr("user::item"), HasSubstr(".inter")));
  EXPECT_THAT(refused("1 2 3\n"), HasSubstr("user item rating timestamp"));
}

TEST(Interactions, read_a_time_column_of_another_name_and_say_which) {
  const std::string lines = "\n1\t10\t1300000300\n1\t11\t1300000100\n2\t10\t1300000200\n";
  for (const char* name : {"timestamp:float", "time:float", "Timestamp:float", "date:token", "unix_timestamp:float",
                           "review_time:float", "created_at:token"}) {
    const Dataset dataset = parse("user_id:token\titem_id:token\t" + std::string(name) + lines);
    EXPECT_THAT(items_of(dataset, 1), ElementsAre(2, 1)) << name;
    EXPECT_EQ(dataset.report.times, "column " + std::string(name));
  }
  const Dataset both = parse(
      "date:token\tuser_id:token\titem_id:token\ttimestamp:float\n"
      "2015-01-01\t1\t10\t300\n2015-01-02\t1\t11\t100\n2015-01-01\t2\t11\t200\n");
  EXPECT_THAT(items_of(both, 1), ElementsAre(2, 1));
  EXPECT_EQ(both.report.times, "column timestamp:float; not used: date:token");
}

TEST(Interactions, say_that_a_file_has_no_times_and_what_its_columns_are) {
  EXPECT_EQ(parse("user_id:token\titem_id:token\trating:float\n1\t2\t5\n2\t2\t5\n").report.times,
            "none: the order of the lines counts as the order of time; the columns are user_id:token, item_id:token, "
            "rating:float");
  EXPECT_EQ(
      parse("user_id:token\titem_id:token\tdate:token\n1\t2\tMonday\n2\t2\tMonday\n").report.times,
      "none: the order of the lines counts as the order of time; what is in the column date:token is no number and "
      "no date");
  EXPECT_EQ(parse("1 2\n2 2\n").report.times, "none: the order of the lines counts as the order of time");
  EXPECT_EQ(parse("1 2 5 9\n2 2 5 9\n").report.times, "in the file");
}

TEST(Interactions, read_dates) {
  const Dataset dataset = parse(
      "user_id:token\titem_id:token\ttime:token\n"
      "1\ta\t2015-03-02\n1\tb\t2015-03-01T23:59:59.5Z\n1\tc\t2015-03-02 01:00+02:00\n2\ta\t1970-01-01\n");
  EXPECT_THAT(items_of(dataset, 1), ElementsAre(3, 2, 1));
  EXPECT_THAT(dataset.interactions.timestamps, ElementsAre(1425250800, 1425254400, 1425254400, 0));
  EXPECT_EQ(dataset.report.rounded_times, 1);
}

// The events of one second are sorted by their fractions, which are rounded afterwards.
TEST(Interactions, are_sorted_by_the_times_as_they_are_written) {
  const Dataset dataset = parse(
      "user_id:token\titem_id:token\ttimestamp:float\n1\tb\t1000.4\n1\ta\t1000.123456789\n1\td\t1000.6\n"
      "1\tc\t1000.400000001\n2\ta\t-0.5\n2\tb\t1e3\n");
  EXPECT_THAT(items_of(dataset, 1), ElementsAre(2, 1, 4, 3));
  EXPECT_THAT(dataset.interactions.timestamps, ElementsAre(1000, 1000, 1000, 1001, -1, 1000));
  EXPECT_EQ(dataset.report.rounded_times, 5);
}

TEST(Interactions, ignore_white_space_after_the_last_column_of_a_recbole_header) {
  for (const char* end : {" ", "\t", "\t\t", " \t ", ""}) {
    const Dataset dataset = parse("user_id:token\titem_id:token\ttimestamp:float" + std::string(end) +
                                  "\n7\t10\t200\n7\t11\t100 \n8\t10\t5\t\n");
    EXPECT_EQ(dataset.report.format, InteractionsFormat::kInter);
    EXPECT_EQ(dataset.report.bad_lines, 0);
    EXPECT_THAT(items_of(dataset, 1), ElementsAre(2, 1));
  }
}

TEST(Interactions, say_that_a_recbole_header_needs_tabs) {
  EXPECT_THAT(refused("user_id:token,item_id:token,timestamp:float\n1,2,3\n"),
              AllOf(HasSubstr("file:1: found the header \"user_id:token,item_id"),
                    HasSubstr("with commas between its columns"), HasSubstr("expected tabs")));
  EXPECT_THAT(refused("user_id:token item_id:token rating:float timestamp:float\n1 2 3 4\n5 6 7 8\n"),
              AllOf(HasSubstr("with spaces between its columns"), HasSubstr("expected tabs")));
}

TEST(Interactions, read_recboles_lists_of_items) {
  const Dataset dataset = parse(
      "session_id:token\titem_id_list:token_seq\titem_id:token\n"
      "s1\ta b  c\td\ns2\tb\ta\ns3\t\ta\n");
  EXPECT_EQ(dataset.report.columns, "user session_id:token, items item_id_list:token_seq, item item_id:token");
  EXPECT_THAT(items_of(dataset, 1), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(items_of(dataset, 2), ElementsAre(2, 1));
  EXPECT_THAT(items_of(dataset, 3), ElementsAre(1));
  EXPECT_THAT(dataset.report.times, HasSubstr("none: the order of the lines"));
  const Dataset timed =
      parse("user_id:token\titem_id:token_seq\ttimestamp:float_seq\n1\ta b\t200 100\n2\tc\t1\n2\tc d\t1 2\n");
  EXPECT_THAT(items_of(timed, 1), ElementsAre(2, 1));
  EXPECT_THAT(items_of(timed, 2), ElementsAre(3, 4));
  EXPECT_EQ(timed.report.equal_events, 1);
  EXPECT_THAT(refused("user_id:token\titem_id:token_seq\ttimestamp:float_seq\n1\ta b\t1\n2\ta\t1 2\n"),
              AllOf(HasSubstr("the timestamp is not a number"), HasSubstr("there are more times than items")));
}

TEST(Interactions, read_csv_with_a_header) {
  const Dataset movielens = parse("userId,movieId,rating,timestamp\n7,10,3.5,200\n7,\"11\",3,100\n8,10,1,5\n");
  EXPECT_EQ(movielens.report.format, InteractionsFormat::kCsv);
  EXPECT_EQ(movielens.report.columns, "user userId, item movieId");
  EXPECT_EQ(movielens.report.times, "column timestamp");
  EXPECT_EQ(movielens.report.bad_lines, 0);
  EXPECT_THAT(items_of(movielens, 1), ElementsAre(2, 1));
  const Dataset amazon = parse(
      "user_id,parent_asin,rating,timestamp,history\n"
      "AFKZENTNBQ7A7V7UXW5JJI6UGRYQ,B0088SWDGK,5.0,1449606157000,\n"
      "AFKZENTNBQ7A7V7UXW5JJI6UGRYQ,B00CZC5F0G,5.0,1449606158000,B0088SWDGK\n"
      "AGKASBHYZPGTEPO6LWZPVJWB2BVA,B00CZC5F0G,4.0,1452634000000,B0088SWDGK B00CZC5F0G\n");
  EXPECT_EQ(amazon.report.columns, "user user_id, item parent_asin");
  EXPECT_THAT(items_of(amazon, 1), ElementsAre(1, 2));
}

TEST(Interactions, read_amazons_csv_without_a_header_in_both_orders) {
  const Dataset of_2014 = parse(
      "AKM1MP6P0OYPR,0132793040,5.0,1365811200\nA2CX7LUOHB2NDG,0321732944,5.0,1341100800\n"
      "AKM1MP6P0OYPR,0321732944,1.0,1341100800\n");
  EXPECT_THAT(items_of(of_2014, 1), ElementsAre(2, 1));
  EXPECT_EQ(of_2014.report.columns, "user,item,rating,time, without a header");
  const Dataset of_2018 = parse(
      "B00005N5PF,A3AF8FFZAZYNE5,5.0,1365811200\nB000062XHI,A2CX7LUOHB2NDG,5.0,1341100800\n"
      "B000062XHI,A3AF8FFZAZYNE5,1.0,1341100800\n");
  EXPECT_THAT(items_of(of_2018, 1), ElementsAre(2, 1));
  EXPECT_EQ(of_2018.report.columns, "item,user,rating,time, without a header, by the form of Amazon's ids");
}

TEST(Interactions, read_user_item_time) {
  for (const char* text : {"7 10 1300000200\n7 11 1300000100\n8 10 1300000005\n",
                           "7\t10\t2011-03-13T07:10:00\n7\t11\t2011-03-12\n8\t10\t2011-03-11\n"}) {
    const Dataset dataset = parse(text);
    EXPECT_EQ(dataset.report.format, InteractionsFormat::kUserItemTime) << text;
    EXPECT_THAT(items_of(dataset, 1), ElementsAre(2, 1)) << text;
  }
  EXPECT_THAT(refused("1 2 3\n"), HasSubstr("the third column is no time")) << "it may be a rating";
}

TEST(Interactions, of_a_user_that_are_equal_with_their_time_count_once) {
  const std::string once = "1 10 5 1\n1 11 4 2\n1 12 3 2\n2 10 1 9\n1 11 4 3\n";
  const Dataset single = parse(once);
  const Dataset twice = parse(once + once + "1 12 1 2\n");
  EXPECT_EQ(single.report.equal_events, 0);
  EXPECT_EQ(twice.report.equal_events, 6);
  EXPECT_EQ(twice.report.events, single.report.events);
  EXPECT_EQ(twice.interactions.items, single.interactions.items);
  EXPECT_EQ(twice.interactions.timestamps, single.interactions.timestamps);
  EXPECT_EQ(twice.items_sha256, single.items_sha256);
  const std::string more = once + "3 10 1 1\n3 10 1 2\n";
  const Dataset rare = parse(more + more, {.min_count = 2});
  EXPECT_EQ(rare.report.dropped_users, 1) << "lines that are equal count once for --min_count";
  EXPECT_EQ(rare.report.dropped_items, 1);
  EXPECT_EQ(rare.report.dropped_events, 2);
  EXPECT_EQ(rare.report.events, 5);
}

TEST(Interactions, that_repeat_an_item_are_counted_in_files_without_times) {
  const Dataset dataset = parse("1 5\n1 2\n3 2\n1 5\n1 5\n");
  EXPECT_EQ(dataset.report.repeated_events, 2);
  EXPECT_EQ(dataset.report.equal_events, 0);
  EXPECT_THAT(items_of(dataset, 1), ElementsAre(5, 2, 5, 5));
}

TEST(Interactions, name_the_first_users_and_items_that_are_dropped) {
  const std::string text =
      "user_id:token\titem_id:token\nanna\tx\nanna\tx\nbob\tx\nbob\tx\ncarl\ty\ndora\tz\nemil\tv\nfee\tw\n";
  const InteractionsReport report = parse(text, {.min_count = 2}).report;
  EXPECT_EQ(report.dropped_users, 4);
  EXPECT_THAT(report.dropped_user_names, ElementsAre("carl", "dora", "emil"));
  EXPECT_THAT(report.dropped_item_names, ElementsAre("y", "z", "v"));
  EXPECT_EQ(parse(text, {.min_count = 2, .names_max = 9}).report.dropped_item_names.size(), 4U);
}

TEST(LeaveOneOut, takes_the_last_two_events_of_users_with_at_least_four) {
  const Dataset dataset = parse("1 10\n1 11\n1 12\n1 13\n2 20\n2 21\n2 22\n");
  const UserSplit long_user = leave_one_out(dataset.interactions, 1);
  EXPECT_THAT(long_user.train, ElementsAre(10, 11));
  EXPECT_EQ(long_user.valid, 12);
  EXPECT_EQ(long_user.test, 13);
  EXPECT_TRUE(long_user.evaluated());
  const UserSplit short_user = leave_one_out(dataset.interactions, 2);
  EXPECT_THAT(short_user.train, ElementsAre(20, 21, 22));
  EXPECT_FALSE(short_user.evaluated());
}

// An archive of these files, stored and not deflated.
std::string zip_of(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string bytes;
  const ByteSink sink = [&bytes](const void* data, size_t count) -> Status {
    bytes.append(static_cast<const char*>(data), count);
    return {};
  };
  ZipWriter writer(sink, uint64_t{1} << 32);
  for (const auto& [name, text] : entries) EXPECT_TRUE(writer.add(name, text.data(), text.size()).ok());
  EXPECT_TRUE(writer.finish().ok());
  return bytes;
}

class Files : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text = "1 2\n2 2\n") {
    return temporary_.write(name, text);
  }
  std::string resolve(const std::string& dataset) {
    Result<std::string> path = resolve_dataset(dataset, folder_);
    EXPECT_TRUE(path.ok()) << path.error().message;
    return path.ok() ? *path : "";
  }

  TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
};

TEST_F(Files, are_found_by_name_in_each_form) {
  const std::string txt = write("one.txt");
  const std::string inter = write("two.inter");
  const std::string ratings = write("three/ratings.dat");
  const std::string nested = write("four/four.inter");
  EXPECT_EQ(resolve("one"), txt);
  EXPECT_EQ(resolve("two"), inter);
  EXPECT_EQ(resolve("three"), ratings);
  for (const char* name : {"five/ratings.csv", "six/u.data", "seven.csv"}) {
    const std::string path = write(name);
    EXPECT_EQ(resolve(dataset_name(path)), path);
  }
  EXPECT_EQ(resolve("four"), nested);
  EXPECT_EQ(resolve("two.inter"), inter);
}

TEST_F(Files, are_found_in_a_folder_of_their_name_where_the_program_was_started) {
  write("started/ml-1m/ratings.dat");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_ + "/started");
  EXPECT_EQ(resolve("ml-1m"), "./ml-1m/ratings.dat");
  const std::string data = write("ml-1m/ratings.dat");
  EXPECT_EQ(resolve("ml-1m"), data) << "what lies under --data_dir comes first";
  std::filesystem::current_path(before);
}

TEST_F(Files, are_found_by_path_of_file_or_folder) {
  const std::string ratings = write("ml-1m/ratings.dat");
  EXPECT_EQ(resolve(ratings), ratings);
  EXPECT_EQ(resolve(folder_ + "/ml-1m"), ratings);
  EXPECT_EQ(resolve(folder_ + "/ml-1m/"), folder_ + "/ml-1m/ratings.dat");
}

TEST_F(Files, that_are_missing_are_named_with_the_places_tried) {
  const Result<std::string> missing = resolve_dataset("nowhere", folder_);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  for (const char* place : {"/nowhere.txt", "/nowhere.inter", "/nowhere/ratings.dat"}) {
    EXPECT_THAT(missing.error().message, HasSubstr(folder_ + place));
  }
  const Result<Dataset> unread = read_interactions(disk(), folder_ + "/nowhere.txt", {});
  ASSERT_FALSE(unread.ok());
  EXPECT_EQ(unread.error().code, ErrorCode::kNotFound);
}

TEST_F(Files, that_lack_in_their_folder_are_said_to) {
  write("bare/readme.md");
  for (const std::string& name : {std::string("bare"), folder_ + "/bare"}) {
    const Result<std::string> found = resolve_dataset(name, folder_);
    ASSERT_FALSE(found.ok());
    EXPECT_THAT(found.error().message, HasSubstr("is a folder without ratings.dat; tried "));
  }
}

TEST_F(Files, are_read_from_zips_of_movielens_and_recbole) {
  const std::string dat = "1::10::5::2\n1::11::4::1\n2::10::3::3\n";
  const std::string csv = "userId,movieId,rating,timestamp\n1,10,5,2\n1,11,4,1\n2,10,3,3\n";
  const std::string data = "1\t10\t5\t2\n1\t11\t4\t1\n2\t10\t3\t3\n";
  const std::string inter = "user_id:token\titem_id:token\ttime:float\n1\t10\t2\n1\t11\t1\n2\t10\t3\n";
  const struct {
    const char* name;
    std::vector<std::pair<std::string, std::string>> entries;
  } zips[] = {{"ml-1m.zip", {{"ml-1m/README", "About"}, {"ml-1m/movies.dat", "1::A::B\n"}, {"ml-1m/ratings.dat", dat}}},
              {"ml-20m.zip", {{"ml-20m/tags.csv", "x"}, {"ml-20m/ratings.csv", csv}, {"__MACOSX/ml-20m/._r", "x"}}},
              {"ml-100k.zip", {{"ml-100k/u.data", data}, {"ml-100k/u1.base", data}}},
              {"recbole.zip", {{"some.inter", inter}}}};
  for (const auto& zip : zips) {
    const std::string path = write(zip.name, zip_of(zip.entries));
    const Result<Dataset> dataset = read_interactions(disk(), path, kKeepAll);
    ASSERT_TRUE(dataset.ok()) << dataset.error().message;
    EXPECT_THAT(items_of(*dataset, 1), ElementsAre(2, 1)) << zip.name;
    EXPECT_TRUE(has_known_format(disk(), path));
  }
  EXPECT_EQ(resolve("ml-20m"), folder_ + "/ml-20m.zip");
  const std::string other = write("other.zip", zip_of({{"a.txt", "1 2\n"}, {"b.txt", "1 2\n"}}));
  EXPECT_THAT(read_interactions(disk(), other, {}).error().message,
              HasSubstr("other.zip holds a.txt, b.txt: expected one of"));
  EXPECT_FALSE(has_known_format(disk(), other));
  EXPECT_FALSE(has_known_format(disk(), write("cut.zip", "PK\x03\x04junk")));
}

TEST_F(Files, are_opened_whatever_their_encoding) {
  const std::string path =
      write("marked.inter", "\xEF\xBB\xBFuser_id:token\titem_id:token\r1\tAm\xE9lie\r2\tAm\xC3\xA9lie\r");
  const Result<Dataset> dataset = read_interactions(disk(), path, kKeepAll);
  ASSERT_TRUE(dataset.ok()) << dataset.error().message;
  EXPECT_EQ(dataset->interactions.num_items, 1);
  EXPECT_EQ(dataset->report.encoding, "line 2 is not UTF-8, read as Windows-1252");
  EXPECT_THAT(read_interactions(disk(), write("page.txt", "<!DOCTYPE html>"), {}).error().message,
              HasSubstr("is a web page"));
  EXPECT_THAT(read_interactions(disk(), write("packed.txt", "\x1F\x8B\x08junk"), {}).error().message,
              HasSubstr("gzip"));
}

TEST_F(Files, that_are_no_files_are_refused) {
  EXPECT_THAT(read_interactions(disk(), folder_, {}).error().message, HasSubstr("not a regular file"));
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(read_interactions(disk(), pipe, {}).error().message, HasSubstr("not a regular file"));
}

TEST_F(Files, without_permission_are_refused_with_the_reason) {
  constexpr uid_t kNobody = 65534;
  const std::string path = write("secret.txt");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const uid_t self = ::geteuid();
  if (self == 0) {  // root reads everything
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  const Result<Dataset> dataset = read_interactions(disk(), path, {});
  ASSERT_EQ(::seteuid(self), 0);
  ASSERT_FALSE(dataset.ok());
  EXPECT_EQ(dataset.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(dataset.error().message, HasSubstr("Permission denied"));
}

TEST_F(Files, are_read_through_symbolic_links) {
  write("real.txt");
  std::filesystem::create_symlink("real.txt", folder_ + "/link.txt");
  EXPECT_TRUE(read_interactions(disk(), resolve("link"), {}).ok());
}

// A million lines, the size of MovieLens-1M. The bound is far above the normal time (see the report of a run) so that
// only a change of order, such as a quadratic sort, can fail it. CPU time: what others take of the machine does not
// count.
TEST_F(Files, of_a_million_lines_take_a_moment) {
  const std::string path =
      write("large.txt", synthetic_ratings({.users = 6000, .items = 3700, .events_min = 140, .events_max = 190}));
  const std::clock_t start = std::clock();
  int signs = 0;
  const Result<Dataset> dataset = read_interactions(disk(), path, {}, [&signs] { ++signs; });
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(dataset.ok()) << dataset.error().message;
  EXPECT_GT(dataset->report.lines, 900'000);
  EXPECT_GE(signs, 9 + 2) << "of progress: for every 100,000 lines, and while the file is read";
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_LT(seconds, 10.0);
}

std::vector<std::string> all_of(const OriginalIds& ids) {
  std::vector<std::string> all;
  for (int64_t number = 1; number <= ids.size(); ++number) all.emplace_back(ids.id(number));
  return all;
}

TEST(OriginalIds, are_kept_by_number_when_asked_for) {
  const ReadOptions options{.min_count = 0, .original_ids = true};
  const Dataset words =
      parse("item_id:token\tuser_id:token\nx y\tanna\n007\tbob\n7\tanna\n1000000000000000000\tbob\n", options);
  EXPECT_THAT(all_of(words.users), ElementsAre("anna", "bob"));
  EXPECT_THAT(all_of(words.items), ElementsAre("x y", "007", "7", "1000000000000000000"));
  const Dataset numbers = parse("9000000000::5::3::1\n2::5::3::1\n2::2000000::3::2\n", options);
  EXPECT_THAT(all_of(numbers.users), ElementsAre("9000000000", "2"));
  EXPECT_THAT(all_of(numbers.items), ElementsAre("5", "2000000"));
  const Dataset kept = parse("1 2\n3 1\n", options);
  EXPECT_THAT(all_of(kept.users), ElementsAre("1", "2", "3"));
  EXPECT_THAT(all_of(kept.items), ElementsAre("1", "2"));
  EXPECT_EQ(parse("1 2\n3 1\n").users.size(), 0);
}

TEST(ItemDigest, tells_whether_the_same_items_have_the_same_numbers) {
  const auto digest = [](const std::string& text) { return parse(text).items_sha256; };
  const std::string first = digest("1 7 5 1\n2 8 5 1\n");
  EXPECT_EQ(first.size(), 64U);
  EXPECT_EQ(digest("1 7 5 1\n2 8 5 1\n1 8 5 9\n3 7 5 9\n"), first) << "lines were appended";
  EXPECT_NE(digest("1 8 5 9\n1 7 5 1\n2 8 5 1\n"), first) << "8 is number 1 now";
  EXPECT_NE(digest("1 7 5 1\n2 9 5 1\n"), first);
  const std::string header = "user_id:token\titem_id:token\n";
  EXPECT_NE(digest(header + "1\t12\n2\t3\n"), digest(header + "1\t1\n2\t23\n"));
  EXPECT_NE(digest(header + "1\t07\n2\t8\n"), first);
  EXPECT_EQ(digest(header + "1\t7\n2\t8\n"), first);
  EXPECT_EQ(digest("1 7\n2 8\n"), "") << "ids are kept";
}

TEST(OriginalIds, are_those_of_what_min_count_left) {
  const Dataset dataset =
      parse("9 50 1 1\n8 60 1 1\n7 60 1 1\n8 40 1 2\n7 40 1 2\n7 50 1 3\n", {.min_count = 2, .original_ids = true});
  EXPECT_THAT(all_of(dataset.users), ElementsAre("8", "7"));
  EXPECT_THAT(all_of(dataset.items), ElementsAre("60", "40", "50"));
}

}  // namespace
}  // namespace lockstep
