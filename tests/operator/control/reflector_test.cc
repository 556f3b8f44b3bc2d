#include "operator/control/reflector.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/operator/control/test_objects.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Outputs as words: "list", "watch 5", "replace 5", "put a@7", "erase a", "advance 9", "wait 0.8", "problem Gone".
std::string in_words(const ReflectorOutput& output, Clock::time_point now) {
  const auto name = [](const Json& object) { return object["metadata"]["name"].get<std::string>(); };
  if (std::holds_alternative<ListAll>(output)) return "list";
  if (const auto* watch = std::get_if<WatchFrom>(&output)) return "watch " + watch->version;
  if (const auto* replace = std::get_if<ReplaceCache>(&output)) return "replace " + replace->version;
  if (const auto* put = std::get_if<PutIntoCache>(&output)) return "put " + name(put->object);
  if (const auto* erase = std::get_if<EraseFromCache>(&output)) return "erase " + name(erase->object);
  if (const auto* advance = std::get_if<AdvanceCache>(&output)) return "advance " + advance->version;
  if (const auto* problem = std::get_if<ReflectorProblem>(&output)) return "problem " + problem->reason;
  char text[32];
  std::snprintf(text, sizeof text, "wait %.1f",
                std::chrono::duration<double>(std::get<WaitUntil>(output).at - now).count());
  return text;
}

class ReflectorTest : public ::testing::Test {
 protected:
  std::string send(ReflectorEvent event) {
    std::string words;
    for (const ReflectorOutput& output : step(state_, std::move(event), now_)) {
      if (const auto* wait = std::get_if<WaitUntil>(&output)) wake_ = wait->at;
      words.append(words.empty() ? "" : "; ").append(in_words(output, now_));
    }
    return words;
  }
  std::string brought(kube::WatchEvent::Type type, const Json& object) { return send(WatchBrought{{type, object}}); }
  std::string failed(ErrorCode code) { return send(WatchEnded{Error{code, "said so"}}); }
  std::string ring() {
    now_ = wake_;
    return send(ReflectorTimer{});
  }
  void start_watching(const std::string& version = "5") {
    ASSERT_EQ(send(ReflectorStarted{}), "list");
    ASSERT_EQ(send(Listed{version}), "replace " + version + "; watch " + version);
  }

  double jitter_ = 0.0;
  ReflectorState state_{[this] { return jitter_; }};
  Clock::time_point now_{std::chrono::hours(1)};
  Clock::time_point wake_;
};

using Type = kube::WatchEvent::Type;

TEST_F(ReflectorTest, lists_then_watches_from_the_lists_version) {
  EXPECT_EQ(send(ReflectorStarted{}), "list");
  EXPECT_EQ(send(Listed{"5"}), "replace 5; watch 5");
}

TEST_F(ReflectorTest, events_go_to_the_cache_and_move_the_version) {
  start_watching();
  EXPECT_EQ(brought(Type::kAdded, widget({.name = "a", .version = "7"})), "put a");
  EXPECT_EQ(brought(Type::kModified, widget({.name = "a", .version = "8"})), "put a");
  EXPECT_EQ(brought(Type::kDeleted, widget({.name = "a", .version = "9"})), "erase a");
  EXPECT_EQ(send(WatchEnded{}), "watch 9");
}

TEST_F(ReflectorTest, bookmarks_move_the_version) {
  start_watching();
  EXPECT_EQ(brought(Type::kBookmark, {{"metadata", {{"resourceVersion", "40"}}}}), "advance 40");
  now_ += seconds(2);
  EXPECT_EQ(send(WatchEnded{}), "watch 40");
}

TEST_F(ReflectorTest, the_version_never_goes_back_nor_gets_lost) {
  start_watching("50");
  brought(Type::kAdded, widget({.version = "49"}));
  brought(Type::kAdded, {{"metadata", {{"name", "a"}}}});
  EXPECT_EQ(send(WatchEnded{}), "watch 50");
  brought(Type::kAdded, widget({.version = "opaque"}));
  EXPECT_EQ(send(WatchEnded{}), "watch opaque");
}

TEST_F(ReflectorTest, a_watch_that_lived_is_resumed_at_once_however_it_ended) {
  for (const bool ended_well : {true, false}) {
    state_ = ReflectorState([] { return 0.0; });
    start_watching();
    now_ += kHealthyWatch;
    if (ended_well) {
      EXPECT_EQ(send(WatchEnded{}), "watch 5");
    } else {
      EXPECT_EQ(failed(ErrorCode::kGone), "problem Gone; list");
    }
  }
}

TEST_F(ReflectorTest, a_watch_that_ends_at_once_is_resumed_once_and_then_with_growing_pauses) {
  start_watching();
  EXPECT_EQ(send(WatchEnded{}), "problem WatchTooShort; watch 5");
  EXPECT_EQ(send(WatchEnded{}), "problem WatchTooShort; wait 1.6");
  EXPECT_EQ(ring(), "watch 5");
  EXPECT_EQ(send(WatchEnded{}), "problem WatchTooShort; wait 3.2");
  EXPECT_EQ(ring(), "watch 5");
  now_ += kHealthyWatch;
  EXPECT_EQ(send(WatchEnded{}), "watch 5") << "one good watch makes good for all";
  EXPECT_EQ(send(WatchEnded{}), "problem WatchTooShort; watch 5");
}

TEST_F(ReflectorTest, a_watch_that_brings_something_may_end_quickly) {
  start_watching();
  for (int i = 6; i < 40; ++i) {
    brought(Type::kAdded, widget({.version = std::to_string(i)}));
    EXPECT_EQ(send(WatchEnded{}), "watch " + std::to_string(i));
  }
}

TEST_F(ReflectorTest, a_bookmark_alone_does_not_make_a_short_watch_a_good_one) {
  start_watching();
  for (int i = 0; i < 2; ++i) {
    brought(Type::kBookmark, {{"metadata", {{"resourceVersion", "6"}}}});
    EXPECT_EQ(send(WatchEnded{}), i == 0 ? "problem WatchTooShort; watch 6" : "problem WatchTooShort; wait 1.6");
  }
}

TEST_F(ReflectorTest, a_version_that_is_too_old_means_a_new_list) {
  start_watching();
  EXPECT_EQ(failed(ErrorCode::kGone), "problem Gone; list");
  EXPECT_EQ(send(Listed{"90"}), "replace 90; watch 90");
}

TEST_F(ReflectorTest, bytes_that_cannot_be_read_mean_a_new_list) {
  start_watching();
  EXPECT_EQ(failed(ErrorCode::kCorrupt), "problem Corrupt; list");
}

TEST_F(ReflectorTest, lists_that_help_nothing_do_not_become_a_storm) {
  for (const ErrorCode code : {ErrorCode::kGone, ErrorCode::kCorrupt}) {
    state_ = ReflectorState([] { return 0.0; });
    start_watching();
    const std::string problem = code == ErrorCode::kGone ? "problem Gone; " : "problem Corrupt; ";
    EXPECT_EQ(failed(code), problem + "list");
    for (const char* wait : {"wait 1.6", "wait 3.2", "wait 6.4"}) {
      send(Listed{"6"});
      // An event before the failure does not reset the count of failures.
      brought(Type::kAdded, widget({.version = "7"}));
      EXPECT_EQ(failed(code), problem + wait);
      EXPECT_EQ(ring(), "list");
    }
  }
}

TEST_F(ReflectorTest, a_list_that_fails_is_tried_again_from_0_8_s_to_30_s) {
  EXPECT_EQ(send(ReflectorStarted{}), "list");
  for (const char* wait :
       {"wait 0.8", "wait 1.6", "wait 3.2", "wait 6.4", "wait 12.8", "wait 25.6", "wait 30.0", "wait 30.0"}) {
    EXPECT_EQ(send(ListFailed{{ErrorCode::kUnavailable, "no route"}}), std::string("problem ListFailed; ") + wait);
    EXPECT_EQ(ring(), "list");
  }
}

TEST_F(ReflectorTest, pauses_are_jittered_up_to_their_double) {
  jitter_ = 0.5;
  EXPECT_EQ(send(ReflectorStarted{}), "list");
  EXPECT_EQ(send(ListFailed{{ErrorCode::kRetry, "busy"}}), "problem ListFailed; wait 1.2");
}

TEST_F(ReflectorTest, a_watch_that_cannot_be_made_is_tried_again_from_its_version) {
  for (const ErrorCode code : {ErrorCode::kRetry, ErrorCode::kUnavailable}) {
    state_ = ReflectorState([] { return 0.0; });
    start_watching();
    EXPECT_EQ(failed(code), "problem WatchFailed; wait 0.8");
    EXPECT_EQ(ring(), "watch 5");
  }
}

TEST_F(ReflectorTest, a_version_that_never_works_again_is_given_up) {
  start_watching("100000");
  for (int i = 0; i < kWatchFailuresMax; ++i) {
    failed(ErrorCode::kRetry);
    EXPECT_EQ(ring(), "watch 100000") << i;
  }
  failed(ErrorCode::kRetry);
  EXPECT_EQ(ring(), "list");
  EXPECT_EQ(send(Listed{"7"}), "replace 7; watch 7");
}

TEST_F(ReflectorTest, a_kind_that_the_server_has_no_more_is_said_to_be_not_served) {
  start_watching();
  EXPECT_EQ(failed(ErrorCode::kNotFound), "problem NotServed; wait 0.8");
  EXPECT_EQ(ring(), "list");
  EXPECT_EQ(send(ListFailed{{ErrorCode::kNotFound, "no such thing"}}), "problem NotServed; wait 1.6");
}

TEST_F(ReflectorTest, permanent_watch_errors_are_retried_by_a_list) {
  for (const ErrorCode code : {ErrorCode::kForbidden, ErrorCode::kInvalid}) {
    state_ = ReflectorState([] { return 0.0; });
    start_watching();
    EXPECT_EQ(failed(code), "problem WatchFailed; wait 0.8");
    EXPECT_EQ(ring(), "list");
  }
}

TEST_F(ReflectorTest, the_problem_says_what_follows) {
  send(ReflectorStarted{});
  const auto outputs = step(state_, ListFailed{{ErrorCode::kUnavailable, "no route to host"}}, now_);
  const auto& problem = std::get<ReflectorProblem>(outputs.front());
  EXPECT_EQ(problem.line, "the list failed: no route to host");
  EXPECT_EQ(problem.next, "listing again in 0.8 s");
}

TEST_F(ReflectorTest, a_timer_that_rings_early_is_set_again) {
  send(ReflectorStarted{});
  send(ListFailed{{ErrorCode::kRetry, "busy"}});
  now_ += milliseconds(300);
  EXPECT_EQ(send(ReflectorTimer{}), "wait 0.5");
}

TEST_F(ReflectorTest, being_told_to_stop_ends_it) {
  start_watching();
  EXPECT_EQ(failed(ErrorCode::kCancelled), "");
  EXPECT_EQ(state_.phase, ReflectorPhase::kStopped);
  state_ = ReflectorState([] { return 0.0; });
  send(ReflectorStarted{});
  EXPECT_EQ(send(ListFailed{{ErrorCode::kCancelled, ""}}), "");
  EXPECT_EQ(state_.phase, ReflectorPhase::kStopped);
}

}  // namespace
}  // namespace lockstep::control
