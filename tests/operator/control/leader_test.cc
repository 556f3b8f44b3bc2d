#include "operator/control/leader.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

LeaderOptions options(const std::string& identity = "me") {
  LeaderOptions result;
  result.identity = identity;
  result.lease = {"ns", "lock"};
  return result;
}

Json lease(const std::string& holder, const std::string& version, const std::string& renewed = "t0",
           int duration_seconds = 15) {
  Json result = with_record({}, {"ns", "lock"}, {holder, duration_seconds, "t", renewed, 3});
  result["metadata"]["resourceVersion"] = version;
  return result;
}

// Outputs as words: "read", "create me", "update me@7 3", "begin", "end: why", "leader x", "problem", "wait 2.0",
// "over".
class LeaderTest : public ::testing::Test {
 protected:
  std::string send(const LeaderEvent& event) {
    std::string words;
    for (const LeaderOutput& output :
         step(state_, event, {now_, std::chrono::duration_cast<std::chrono::microseconds>(now_.time_since_epoch())})) {
      words.append(words.empty() ? "" : "; ").append(in_words(output));
    }
    return words;
  }
  std::string in_words(const LeaderOutput& output) {
    if (std::holds_alternative<ReadLease>(output)) return "read";
    if (const auto* create = std::get_if<CreateLease>(&output)) {
      asked_ = create->lease;
      return "create " + lease_record(asked_).holder;
    }
    if (const auto* update = std::get_if<UpdateLease>(&output)) {
      asked_ = update->lease;
      return "update " + lease_record(asked_).holder + "@" + asked_["metadata"]["resourceVersion"].get<std::string>() +
             " " + std::to_string(lease_record(asked_).transitions);
    }
    if (std::holds_alternative<BeginLeading>(output)) return "begin";
    if (const auto* end = std::get_if<EndLeading>(&output)) return "end: " + end->why;
    if (const auto* seen = std::get_if<LeaderSeen>(&output)) return "leader " + seen->identity;
    if (std::holds_alternative<ElectionProblem>(output)) return "problem";
    if (std::holds_alternative<ElectionFinished>(output)) return "over";
    char text[32];
    wake_ = std::get<WaitUntil>(output).at;
    std::snprintf(text, sizeof text, "wait %.1f", std::chrono::duration<double>(wake_ - now_).count());
    return text;
  }
  // The server stores what was asked for.
  std::string stored(const std::string& version) {
    Json stored = asked_;
    stored["metadata"]["resourceVersion"] = version;
    return send(LeaseWritten{stored});
  }
  std::string ring() {
    now_ = wake_;
    return send(LeaderTimer{});
  }
  std::string fail_write(ErrorCode code) { return send(LeaseWriteFailed{{code, "said so"}}); }
  // Leads, having taken the lease at `now_` with version 1.
  void lead() {
    ASSERT_EQ(send(ElectionStarted{}), "read");
    ASSERT_EQ(send(LeaseRead{Json()}), "leader ; create me");
    ASSERT_EQ(stored("1"), "leader me; begin; wait 2.0");
  }

  double jitter_ = 0.0;
  LeaderState state_{options(), [this] { return jitter_; }};
  Clock::time_point now_{std::chrono::hours(1)};
  Clock::time_point wake_;
  Json asked_;
};

TEST_F(LeaderTest, makes_the_lease_when_there_is_none) {
  lead();
  const LeaseRecord record = lease_record(asked_);
  EXPECT_EQ(record.duration_seconds, 15);
  EXPECT_EQ(record.transitions, 0);
  EXPECT_EQ(record.acquire_time, "1970-01-01T01:00:00.000000Z");
  EXPECT_EQ(record.renew_time, record.acquire_time);
  EXPECT_EQ(asked_["apiVersion"], "coordination.k8s.io/v1");
  EXPECT_EQ(asked_["kind"], "Lease");
  EXPECT_EQ(asked_["metadata"]["namespace"], "ns");
  EXPECT_EQ(asked_["metadata"]["name"], "lock");
}

TEST_F(LeaderTest, renews_every_2_seconds_without_reading) {
  lead();
  const std::string acquired = lease_record(asked_).acquire_time;
  EXPECT_EQ(ring(), "update me@1 0; wait 8.0");
  EXPECT_EQ(lease_record(asked_).acquire_time, acquired);
  EXPECT_NE(lease_record(asked_).renew_time, acquired);
  EXPECT_EQ(stored("2"), "wait 2.0");
  EXPECT_EQ(ring(), "update me@2 0; wait 8.0");
}

TEST_F(LeaderTest, two_who_find_no_lease_make_one_leader) {
  send(ElectionStarted{});
  send(LeaseRead{Json()});
  EXPECT_EQ(fail_write(ErrorCode::kExists), "wait 2.0");
  EXPECT_EQ(ring(), "read");
  EXPECT_EQ(send(LeaseRead{lease("you", "1")}), "leader you; wait 2.0");
}

TEST_F(LeaderTest, waits_for_15_seconds_without_a_change_before_taking_over) {
  send(ElectionStarted{});
  EXPECT_EQ(send(LeaseRead{lease("you", "1")}), "leader you; wait 2.0");
  const Clock::time_point seen = now_;
  while (now_ + seconds(2) < seen + seconds(15)) {
    EXPECT_EQ(ring(), "read");
    EXPECT_EQ(send(LeaseRead{lease("you", "1")}), "wait 2.0");
  }
  EXPECT_EQ(ring(), "read");
  EXPECT_EQ(send(LeaseRead{lease("you", "1")}), "update me@1 4") << "16 s";
  EXPECT_EQ(stored("2"), "leader me; begin; wait 2.0");
}

TEST_F(LeaderTest, a_renewal_begins_the_15_seconds_anew) {
  send(ElectionStarted{});
  send(LeaseRead{lease("you", "1")});
  now_ += seconds(14);
  EXPECT_EQ(send(LeaderTimer{}), "read");
  EXPECT_EQ(send(LeaseRead{lease("you", "2", "t1")}), "wait 2.0");
  now_ += seconds(14);
  EXPECT_EQ(send(LeaderTimer{}), "read");
  EXPECT_EQ(send(LeaseRead{lease("you", "2", "t1")}), "wait 2.0");
  now_ += seconds(2);
  EXPECT_EQ(send(LeaderTimer{}), "read");
  EXPECT_EQ(send(LeaseRead{lease("you", "2", "t1")}), "update me@2 4");
}

TEST_F(LeaderTest, the_times_in_the_record_decide_nothing) {
  send(ElectionStarted{});
  // Renewed in 1970 by somebody's clock: seen just now all the same.
  EXPECT_EQ(send(LeaseRead{lease("you", "1", "1970-01-01T00:00:00.000000Z")}), "leader you; wait 2.0");
}

TEST_F(LeaderTest, a_label_on_the_lease_is_no_renewal) {
  send(ElectionStarted{});
  send(LeaseRead{lease("you", "1")});
  now_ += seconds(15);
  send(LeaderTimer{});
  Json labelled = lease("you", "2");
  labelled["metadata"]["labels"]["a"] = "b";
  EXPECT_EQ(send(LeaseRead{labelled}), "update me@2 4");
  EXPECT_EQ(asked_["metadata"]["labels"]["a"], "b") << "and stays";
}

TEST_F(LeaderTest, grants_the_holder_the_longer_duration_that_it_wrote_but_not_for_ever) {
  send(ElectionStarted{});
  send(LeaseRead{lease("you", "1", "t0", 60)});
  now_ += seconds(59);
  send(LeaderTimer{});
  EXPECT_EQ(send(LeaseRead{lease("you", "1", "t0", 60)}), "wait 2.0");
  now_ += seconds(2);
  send(LeaderTimer{});
  EXPECT_EQ(send(LeaseRead{lease("you", "1", "t0", 60)}), "update me@1 4");

  state_ = LeaderState(options(), [] { return 0.0; });
  send(ElectionStarted{});
  send(LeaseRead{lease("you", "1", "t0", 2'000'000'000)});
  now_ += seconds(15);
  send(LeaderTimer{});
  EXPECT_EQ(send(LeaseRead{lease("you", "1", "t0", 2'000'000'000)}), "update me@1 4");
}

TEST_F(LeaderTest, a_released_lease_is_taken_at_once) {
  send(ElectionStarted{});
  EXPECT_EQ(send(LeaseRead{lease("", "5")}), "leader ; update me@5 4");
}

TEST_F(LeaderTest, a_lease_of_an_earlier_life_is_taken_at_once) {
  send(ElectionStarted{});
  EXPECT_EQ(send(LeaseRead{lease("me", "5")}), "leader me; update me@5 3");
  EXPECT_EQ(stored("6"), "begin; wait 2.0");
}

TEST_F(LeaderTest, a_lease_without_a_spec_is_nobodys) {
  send(ElectionStarted{});
  EXPECT_EQ(send(LeaseRead{{{"metadata", {{"resourceVersion", "5"}}}, {"spec", 7}}}), "leader ; update me@5 1");
}

TEST_F(LeaderTest, candidates_look_at_different_times) {
  send(ElectionStarted{});
  jitter_ = 0.5;
  EXPECT_EQ(send(LeaseRead{lease("you", "1")}), "leader you; wait 3.2");
}

TEST_F(LeaderTest, steps_down_when_the_last_renewal_is_10_seconds_old) {
  lead();
  EXPECT_EQ(ring(), "update me@1 0; wait 8.0");
  EXPECT_EQ(fail_write(ErrorCode::kUnavailable), "problem; wait 2.0");
  EXPECT_EQ(ring(), "read; wait 6.0") << "the write may have been done: look first";
  EXPECT_EQ(send(LeaseReadFailed{{ErrorCode::kUnavailable, ""}}), "problem; wait 2.0");
  now_ += milliseconds(5999);
  EXPECT_EQ(send(LeaderTimer{}), "read; wait 0.0");
  now_ += milliseconds(1);
  EXPECT_EQ(send(LeaderTimer{}), "end: the lease was not renewed in time") << "with the request still under way";
  EXPECT_FALSE(state_.leading);
}

TEST_F(LeaderTest, counts_a_renewal_from_before_its_request) {
  lead();
  EXPECT_EQ(ring(), "update me@1 0; wait 8.0");
  now_ += seconds(7);
  EXPECT_EQ(stored("2"), "wait 2.0");
  EXPECT_EQ(ring(), "update me@2 0; wait 1.0") << "10 s after the request that took 7 s";
}

TEST_F(LeaderTest, an_answer_that_comes_too_late_is_no_leave_to_act) {
  send(ElectionStarted{});
  send(LeaseRead{Json()});
  now_ += seconds(11);
  EXPECT_EQ(stored("1"), "leader me; wait 2.0");
  EXPECT_FALSE(state_.leading);
  EXPECT_EQ(ring(), "read");
  EXPECT_EQ(send(LeaseRead{lease("me", "1")}), "update me@1 3") << "the lease is still ours: renewed first";
  EXPECT_EQ(stored("2"), "begin; wait 2.0");
}

TEST_F(LeaderTest, a_process_that_was_stopped_steps_down_before_anything_else) {
  lead();
  now_ += seconds(60);
  EXPECT_EQ(send(LeaderTimer{}), "end: the lease was not renewed in time; read");
  EXPECT_EQ(send(LeaseRead{lease("you", "9")}), "leader you; wait 2.0");
}

TEST_F(LeaderTest, a_stopped_process_with_its_answer_already_there_steps_down_all_the_same) {
  lead();
  ring();
  now_ += seconds(60);
  EXPECT_EQ(stored("2"), "end: the lease was not renewed in time; wait 2.0");
  EXPECT_EQ(ring(), "read");
}

TEST_F(LeaderTest, a_conflict_is_looked_into_at_once) {
  lead();
  ring();
  EXPECT_EQ(fail_write(ErrorCode::kConflict), "problem; read; wait 8.0");
  EXPECT_EQ(send(LeaseRead{lease("me", "7")}), "update me@7 3; wait 8.0") << "somebody wrote to it, but it is ours";
  EXPECT_EQ(fail_write(ErrorCode::kConflict), "problem; read; wait 8.0");
  EXPECT_EQ(send(LeaseRead{lease("you", "8")}), "leader you; end: the lease is held by you; wait 2.0");
}

TEST_F(LeaderTest, a_lease_that_was_deleted_is_made_again) {
  lead();
  ring();
  EXPECT_EQ(fail_write(ErrorCode::kNotFound), "problem; wait 2.0");
  EXPECT_EQ(ring(), "read; wait 6.0");
  EXPECT_EQ(send(LeaseRead{Json()}), "create me; wait 6.0");
  EXPECT_EQ(stored("1"), "wait 2.0");
  EXPECT_TRUE(state_.leading);
}

TEST_F(LeaderTest, the_holder_of_a_lease_that_was_deleted_keeps_its_time) {
  send(ElectionStarted{});
  send(LeaseRead{lease("you", "1")});
  now_ += seconds(14);
  EXPECT_EQ(send(LeaderTimer{}), "read");
  EXPECT_EQ(send(LeaseRead{Json()}), "wait 2.0") << "it may still think that it leads";
  EXPECT_EQ(ring(), "read");
  EXPECT_EQ(send(LeaseRead{Json()}), "create me");
  EXPECT_EQ(stored("1"), "leader me; begin; wait 2.0");
}

TEST_F(LeaderTest, a_leader_that_stops_releases_the_lease) {
  lead();
  EXPECT_EQ(send(ElectionStopRequested{}), "end: this process stops; update @1 0");
  EXPECT_EQ(lease_record(asked_).duration_seconds, 1);
  EXPECT_EQ(stored("2"), "leader ; over");
  EXPECT_EQ(send(LeaderTimer{}), "");
}

TEST_F(LeaderTest, a_leader_that_stops_waits_for_its_renewal_and_then_releases) {
  lead();
  ring();
  EXPECT_EQ(send(ElectionStopRequested{}), "end: this process stops");
  EXPECT_EQ(stored("2"), "update @2 0");
  EXPECT_EQ(stored("3"), "leader ; over");
}

TEST_F(LeaderTest, a_release_after_an_unknown_write_looks_once) {
  lead();
  ring();
  send(ElectionStopRequested{});
  EXPECT_EQ(fail_write(ErrorCode::kUnavailable), "problem; read");
  EXPECT_EQ(send(LeaseRead{lease("me", "2")}), "update @2 3");
  EXPECT_EQ(fail_write(ErrorCode::kUnavailable), "problem; over");
}

TEST_F(LeaderTest, a_release_never_takes_the_lease_from_another) {
  lead();
  ring();
  send(ElectionStopRequested{});
  EXPECT_EQ(fail_write(ErrorCode::kConflict), "read");
  EXPECT_EQ(send(LeaseRead{lease("you", "2")}), "leader you; over");
}

TEST_F(LeaderTest, a_release_that_cannot_look_gives_up) {
  lead();
  ring();
  send(ElectionStopRequested{});
  fail_write(ErrorCode::kUnavailable);
  EXPECT_EQ(send(LeaseReadFailed{{ErrorCode::kUnavailable, ""}}), "problem; over");
}

TEST_F(LeaderTest, a_candidate_that_stops_leaves_the_lease_alone) {
  send(ElectionStarted{});
  EXPECT_EQ(send(ElectionStopRequested{}), "");
  EXPECT_EQ(send(LeaseRead{lease("", "1")}), "leader ; over");
}

TEST_F(LeaderTest, a_candidate_that_stops_while_it_takes_the_lease_gives_it_back) {
  send(ElectionStarted{});
  send(LeaseRead{Json()});
  EXPECT_EQ(send(ElectionStopRequested{}), "");
  EXPECT_EQ(stored("1"), "leader me; update @1 0");
  EXPECT_EQ(stored("2"), "leader ; over");
}

TEST(LeaderOptions, must_be_in_order) {
  EXPECT_TRUE(is_valid(options()));
  const std::vector<std::function<void(LeaderOptions&)>> changes = {
      [](LeaderOptions& o) { o.identity = ""; },
      [](LeaderOptions& o) { o.lease.ns = ""; },
      [](LeaderOptions& o) { o.lease.name = ""; },
      [](LeaderOptions& o) { o.lease_duration = seconds(10); },
      [](LeaderOptions& o) { o.renew_deadline = seconds(4); },  // 2 s with their jitter are 4.4 s
      [](LeaderOptions& o) { o.retry_period = seconds(0); },
      [](LeaderOptions& o) { o.lease_duration = milliseconds(15'500); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    LeaderOptions changed = options();
    changes[i](changed);
    EXPECT_FALSE(is_valid(changed)) << i;
  }
}

TEST(LeaseRecord, survives_what_is_not_a_lease) {
  for (const Json& broken :
       {Json(), Json("x"), Json{{"spec", nullptr}},
        Json{{"spec", {{"holderIdentity", 7}, {"leaseTransitions", "x"}, {"renewTime", nullptr}}}}}) {
    EXPECT_EQ(lease_record(broken), LeaseRecord{}) << broken;
  }
}

TEST(MicroTime, has_six_digits_and_is_utc) {
  EXPECT_EQ(format_micro_time(std::chrono::microseconds(123)), "1970-01-01T00:00:00.000123Z");
  EXPECT_EQ(format_micro_time(seconds(1'795'255'200) + std::chrono::microseconds(999'999)),
            "2026-11-21T10:00:00.999999Z");
  EXPECT_EQ(format_micro_time(std::chrono::microseconds(-1)), "1969-12-31T23:59:59.999999Z");
}

}  // namespace
}  // namespace lockstep::control
