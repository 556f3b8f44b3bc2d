#include "operator/control/cache.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/operator/control/test_clock.h"
#include "tests/operator/control/test_objects.h"

namespace lockstep::control {
namespace {

using std::chrono::seconds;

const api::ObjectKey kA{"ns", "a"};
const api::ObjectKey kB{"ns", "b"};

std::vector<std::string> by_owner(const Json& object) {
  const std::string owner = object["metadata"]["labels"]["owner"];
  return owner.empty() ? std::vector<std::string>{} : std::vector<std::string>{owner};
}

class CacheTest : public ::testing::Test {
 protected:
  // "a@3 b@4", what a reader sees.
  std::string seen() const { return text(cache_.list()); }
  std::string found(const std::string& owner) const { return text(cache_.find(owner)); }
  static std::string text(const std::vector<ObjectPtr>& objects) {
    std::string result;
    for (const ObjectPtr& object : objects) {
      result.append(result.empty() ? "" : " ").append((*object)["metadata"]["name"]).append("@");
      result.append(version_of(*object));
    }
    return result;
  }
  // "1->2", "->2", "1->"; "=" when the cache knew.
  static std::string text(const Cache<Json>::Change& change) {
    if (change.before == change.after) return "=";
    return (change.before ? version_of(*change.before) : "") + "->" + (change.after ? version_of(*change.after) : "");
  }

  TestClock clock_;
  Cache<Json> cache_{{}, by_owner, clock_.source()};
};

TEST_F(CacheTest, is_synced_once_a_list_has_arrived) {
  EXPECT_FALSE(cache_.synced());
  cache_.put(widget({}));
  EXPECT_FALSE(cache_.synced());
  replace(cache_, {}, "1");
  EXPECT_TRUE(cache_.synced());
  EXPECT_EQ(cache_.size(), 0U);
}

TEST_F(CacheTest, keeps_a_view_and_still_knows_the_versions) {
  Cache<std::string> cache(
      [](const Json& object) { return "view of " + object["metadata"]["name"].get<std::string>(); });
  cache.put(widget({.version = "5"}));
  EXPECT_EQ(*cache.get(kA), "view of a");
  const Cache<std::string>::Change older = cache.put(widget({.version = "4"}));
  EXPECT_EQ(older.before, older.after);
}

TEST_F(CacheTest, follows_the_watch) {
  EXPECT_EQ(text(cache_.put(widget({.version = "5"}))), "->5");
  EXPECT_EQ(text(cache_.put(widget({.version = "7"}))), "5->7");
  EXPECT_EQ(seen(), "a@7");
  EXPECT_EQ(text(cache_.erase(widget({.version = "9"}))), "7->");
  EXPECT_EQ(seen(), "");
  EXPECT_EQ(cache_.get(kA), nullptr);
}

TEST_F(CacheTest, events_that_are_told_again_change_nothing) {
  cache_.put(widget({.version = "5"}));
  cache_.put(widget({.version = "10"}));
  EXPECT_EQ(text(cache_.put(widget({.version = "5"}))), "=");
  EXPECT_EQ(text(cache_.put(widget({.version = "10"}))), "=");
  cache_.erase(widget({.version = "11"}));
  EXPECT_EQ(text(cache_.put(widget({.version = "10"}))), "=") << "the watch knows that it was deleted";
  EXPECT_EQ(seen(), "");
}

TEST_F(CacheTest, the_end_of_an_earlier_object_does_not_end_its_successor) {
  cache_.put(widget({.version = "5", .uid = "u1"}));
  cache_.put(widget({.version = "9", .uid = "u2"}));
  EXPECT_EQ(text(cache_.erase(widget({.version = "8", .uid = "u1"}))), "=");
  EXPECT_EQ(seen(), "a@9");
}

TEST_F(CacheTest, versions_are_compared_as_numbers) {
  cache_.put(widget({.version = "9"}));
  EXPECT_EQ(text(cache_.put(widget({.version = "10"}))), "9->10");
  EXPECT_EQ(text(cache_.put(widget({.version = "9"}))), "=");
}

TEST_F(CacheTest, a_list_says_what_differs) {
  cache_.put(widget({.name = "a", .version = "1"}));
  cache_.put(widget({.name = "b", .version = "2"}));
  cache_.put(widget({.name = "c", .version = "3"}));
  const auto changes = replace(cache_,
                               {widget({.name = "a", .version = "1"}), widget({.name = "b", .version = "5"}),
                                widget({.name = "d", .version = "6"})},
                               "7");
  std::string told;
  for (const auto& change : changes) told.append(text(change)).append(" ");
  EXPECT_EQ(told, "3-> 2->5 ->6 ");
  EXPECT_EQ(seen(), "a@1 b@5 d@6");
}

TEST_F(CacheTest, a_list_of_a_restored_server_is_believed_although_it_is_older) {
  replace(cache_, {widget({.version = "100"})}, "100");
  replace(cache_, {widget({.version = "50"})}, "60");
  EXPECT_EQ(seen(), "a@50");
  EXPECT_EQ(text(cache_.put(widget({.version = "61"}))), "50->61");
}

TEST_F(CacheTest, what_was_assumed_of_a_server_before_it_was_restored_is_forgotten) {
  replace(cache_, {widget({.version = "100"})}, "100");
  cache_.assume(widget({.version = "105"}));
  replace(cache_, {widget({.version = "50"})}, "60");
  EXPECT_EQ(seen(), "a@50");
}

TEST_F(CacheTest, finds_objects_by_their_index_through_every_change) {
  replace(cache_,
          {widget({.name = "a", .version = "1", .owner = "x"}), widget({.name = "b", .version = "2", .owner = "x"})},
          "2");
  EXPECT_EQ(found("x"), "a@1 b@2");
  cache_.put(widget({.name = "a", .version = "3", .owner = "y"}));
  EXPECT_EQ(found("x"), "b@2");
  EXPECT_EQ(found("y"), "a@3");
  cache_.erase(widget({.name = "b", .version = "4", .owner = "x"}));
  EXPECT_EQ(found("x"), "");
  cache_.assume(widget({.name = "a", .version = "6", .owner = "z"}));
  EXPECT_EQ(found("y"), "") << "what is not seen is not found";
  EXPECT_EQ(found("z"), "a@6");
  replace(cache_, {}, "9");
  EXPECT_EQ(found("y") + found("z"), "");
}

TEST_F(CacheTest, an_assumed_object_is_seen_at_once_and_announced_when_the_watch_brings_it) {
  replace(cache_, {}, "5");
  cache_.assume(widget({.version = "7"}));
  EXPECT_EQ(seen(), "a@7");
  EXPECT_EQ(text(cache_.put(widget({.version = "7"}))), "->7");
  EXPECT_EQ(seen(), "a@7");
}

TEST_F(CacheTest, a_change_that_readers_have_seen_says_so) {
  replace(cache_, {}, "5");
  cache_.assume(widget({.version = "7"}));
  EXPECT_FALSE(cache_.put(widget({.name = "b", .version = "6"})).was_assumed);
  EXPECT_TRUE(cache_.put(widget({.version = "7"})).was_assumed);
  EXPECT_FALSE(cache_.put(widget({.version = "8"})).was_assumed) << "somebody else's";
  cache_.assume(widget({.version = "12"}));
  EXPECT_TRUE(cache_.put(widget({.version = "10"})).was_assumed) << "readers see a newer one";
  EXPECT_FALSE(cache_.put(widget({.version = "11", .uid = "u2"})).was_assumed) << "another object of the name";
}

TEST_F(CacheTest, an_older_event_does_not_replace_what_was_assumed) {
  cache_.put(widget({.version = "5"}));
  cache_.assume(widget({.version = "9"}));
  EXPECT_EQ(text(cache_.put(widget({.version = "8"}))), "5->8") << "handlers hear what the watch says";
  EXPECT_EQ(seen(), "a@9") << "readers see their own write";
  cache_.put(widget({.version = "12"}));
  EXPECT_EQ(seen(), "a@12");
}

TEST_F(CacheTest, a_list_that_was_on_its_way_does_not_hide_what_was_assumed_meanwhile) {
  cache_.assume(widget({.version = "9"}));
  replace(cache_, {widget({.name = "b", .version = "3"})}, "8");
  EXPECT_EQ(seen(), "a@9 b@3");
  replace(cache_, {widget({.name = "b", .version = "3"})}, "10");
  EXPECT_EQ(seen(), "b@3") << "this list is newer: the object is gone again";
}

TEST_F(CacheTest, what_was_only_assumed_and_is_gone_in_a_list_is_told_as_gone) {
  replace(cache_, {}, "5");
  cache_.assume(widget({.version = "9"}));
  EXPECT_TRUE(replace(cache_, {}, "8").empty()) << "this list was on its way";
  const auto changes = replace(cache_, {}, "10");
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(text(changes[0]), "9->");
  EXPECT_TRUE(replace(cache_, {}, "11").empty()) << "once";

  cache_.assume(widget({.version = "12"}));
  const auto restored = replace(cache_, {}, "6");
  ASSERT_EQ(restored.size(), 1U) << "the server has forgotten it";
  EXPECT_EQ(text(restored[0]), "12->");
}

TEST_F(CacheTest, what_was_assumed_and_is_listed_is_told_once) {
  replace(cache_, {}, "5");
  cache_.assume(widget({.version = "7"}));
  const auto changes = replace(cache_, {widget({.version = "7"})}, "8");
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(text(changes[0]), "->7");
}

TEST_F(CacheTest, a_late_answer_does_not_revive_what_the_watch_knows_to_be_deleted) {
  cache_.put(widget({.version = "5"}));
  cache_.erase(widget({.version = "8"}));
  cache_.assume(widget({.version = "7"}));
  EXPECT_EQ(seen(), "");
}

TEST_F(CacheTest, a_bookmark_settles_assumptions_too) {
  replace(cache_, {}, "5");
  cache_.assume(widget({.version = "7"}));
  cache_.advance("8");
  EXPECT_EQ(seen(), "") << "the watch is past 7 and never brought it: it does not match the selector, or is gone";
}

TEST_F(CacheTest, of_two_assumptions_the_newer_version_stays) {
  cache_.assume(widget({.version = "9"}));
  cache_.assume(widget({.version = "7"}));
  EXPECT_EQ(seen(), "a@9");
  cache_.assume(widget({.version = "11"}));
  EXPECT_EQ(seen(), "a@11");
}

TEST_F(CacheTest, an_assumption_outlives_a_watch_that_is_cut_for_long) {
  replace(cache_, {widget({.version = "5"})}, "5");
  cache_.assume(widget({.version = "9"}));
  clock_.turn(std::chrono::hours(24));
  cache_.assume(widget({.name = "b", .version = "10"}));
  EXPECT_EQ(seen(), "a@9 b@10");
  replace(cache_, {widget({.version = "9"})}, "11");
  EXPECT_EQ(seen(), "a@9");
}

TEST_F(CacheTest, an_assumption_with_an_opaque_version_expires) {
  cache_.put(widget({.version = "x5"}));
  cache_.assume(widget({.version = "x9"}));
  clock_.turn(kAssumptionLife - seconds(1));
  EXPECT_EQ(seen(), "a@x9");
  clock_.turn(seconds(1));
  EXPECT_EQ(seen(), "a@x5");
  EXPECT_EQ(cache_.size(), 1U);
}

TEST_F(CacheTest, an_assumed_deletion_hides_the_object_until_the_watch_says_the_same) {
  cache_.put(widget({.version = "5", .owner = "x"}));
  cache_.assume_deleted(kA, "u1");
  EXPECT_EQ(cache_.get(kA), nullptr);
  EXPECT_EQ(seen() + found("x"), "");
  EXPECT_EQ(cache_.size(), 0U);
  cache_.put(widget({.version = "6", .owner = "x"}));
  EXPECT_EQ(seen(), "") << "an event from before the deletion";
  EXPECT_EQ(text(cache_.erase(widget({.version = "7"}))), "6->");
  EXPECT_EQ(seen(), "");
}

TEST_F(CacheTest, an_object_that_is_only_marked_is_seen_again_with_its_mark) {
  cache_.put(widget({.version = "5"}));
  cache_.assume_deleted(kA, "u1");
  cache_.put(widget({.version = "6", .deleting = true}));
  EXPECT_EQ(seen(), "a@6");
}

TEST_F(CacheTest, a_mark_is_seen_also_when_it_is_assumed) {
  cache_.put(widget({.version = "5"}));
  cache_.assume_deleted(kA, "u1");
  cache_.assume(widget({.version = "6", .deleting = true}));
  EXPECT_EQ(seen(), "a@6");
}

TEST_F(CacheTest, another_object_of_the_name_is_not_hidden) {
  cache_.put(widget({.version = "5", .uid = "u1"}));
  cache_.assume_deleted(kA, "u1");
  cache_.assume(widget({.version = "8", .uid = "u2"}));
  EXPECT_EQ(seen(), "a@8");
  cache_.erase(widget({.version = "7", .uid = "u1"}));
  EXPECT_EQ(seen(), "a@8");
  cache_.put(widget({.version = "8", .uid = "u2"}));
  EXPECT_EQ(seen(), "a@8");
}

TEST_F(CacheTest, a_deletion_is_assumed_even_before_the_watch_brings_the_object) {
  cache_.assume_deleted(kA, "u1");
  cache_.put(widget({.version = "5", .uid = "u1"}));
  EXPECT_EQ(seen(), "");
  cache_.put(widget({.name = "b", .version = "6", .uid = "u2"}));
  EXPECT_EQ(seen(), "b@6");
}

TEST_F(CacheTest, an_assumed_deletion_expires) {
  cache_.put(widget({.version = "5"}));
  cache_.assume_deleted(kA, "u1");
  clock_.turn(kAssumptionLife);
  EXPECT_EQ(seen(), "a@5") << "the watch would have said so by now";
}

TEST_F(CacheTest, an_assumed_deletion_hides_what_was_assumed_before_it) {
  cache_.assume(widget({.version = "7", .uid = "u1"}));
  cache_.assume_deleted(kA, "u1");
  EXPECT_EQ(seen(), "");
}

TEST_F(CacheTest, opaque_versions_are_taken_as_they_come) {
  replace(cache_, {widget({.version = "x1"})}, "l1");
  cache_.assume(widget({.version = "x2"}));
  EXPECT_EQ(seen(), "a@x2");
  EXPECT_EQ(text(cache_.put(widget({.version = "x3"}))), "x1->x3");
  EXPECT_EQ(seen(), "a@x3") << "the watch's word ends the assumption";
  EXPECT_EQ(text(cache_.put(widget({.version = "x3"}))), "=");
}

TEST_F(CacheTest, readers_and_the_writer_work_at_the_same_time) {
  std::jthread writer([&] {
    for (int i = 1; i <= 3000; ++i) {
      const auto name = std::to_string(i % 17);
      cache_.put(widget({.name = name, .version = std::to_string(i), .owner = "o" + std::to_string(i % 3)}));
      if (i % 50 == 0) cache_.erase(widget({.name = name, .version = std::to_string(i)}));
    }
  });
  std::vector<std::jthread> readers;
  for (int reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        for (const ObjectPtr& object : cache_.find("o1")) EXPECT_EQ((*object)["metadata"]["labels"]["owner"], "o1");
        cache_.assume(widget({.name = std::to_string(i % 17), .version = std::to_string(i * 3), .owner = "o1"}));
        cache_.assume_deleted({"ns", std::to_string(i % 5)}, "u1");
        EXPECT_LE(cache_.list().size(), 17U);
      }
    });
  }
}

}  // namespace
}  // namespace lockstep::control
