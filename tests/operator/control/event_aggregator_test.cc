#include "operator/control/event_aggregator.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep::control {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

ObjectReference about(const std::string& name = "job") {
  return {"lockstep.dev/v1", "TrainJob", {"ns", name}, "uid-of-" + name, "7"};
}
EventText text(const std::string& message, const std::string& reason = "PodFailed") {
  return {EventText::Type::kWarning, reason, message, "ReplacePod"};
}

class EventAggregatorTest : public ::testing::Test {
 protected:
  void record(const std::string& message, const std::string& object = "job") {
    aggregator_.record(about(object), text(message), now_, wall());
  }
  api::UnixSeconds wall() const { return std::chrono::duration_cast<seconds>(now_.time_since_epoch()).count(); }
  // Writes what is due: "create oops x1", "update oops x3".
  std::string write_due() {
    std::string words;
    while (const auto write = aggregator_.next(now_)) {
      words.append(words.empty() ? "" : "; ").append(in_words(*write));
      aggregator_.on_written(*write, now_);
    }
    return words;
  }
  static std::string in_words(const EventWrite& write) {
    return (write.kind == EventWrite::Kind::kCreate ? "create " : "update ") + write.series.text.message + " x" +
           std::to_string(write.series.count);
  }

  EventAggregator aggregator_{"operator"};
  Clock::time_point now_{std::chrono::hours(1000)};
};

TEST_F(EventAggregatorTest, the_first_happening_is_written_at_once) {
  EXPECT_EQ(aggregator_.due_at(), std::nullopt);
  record("oops");
  EXPECT_EQ(aggregator_.due_at(), now_);
  EXPECT_EQ(write_due(), "create oops x1");
  EXPECT_EQ(aggregator_.due_at(), std::nullopt);
}

TEST_F(EventAggregatorTest, equal_happenings_raise_the_count_of_one_event_at_most_every_10_s) {
  record("oops");
  EXPECT_EQ(write_due(), "create oops x1");
  for (int i = 0; i < 1000; ++i) record("oops");
  EXPECT_EQ(write_due(), "");
  EXPECT_EQ(aggregator_.due_at(), now_ + kEventUpdateInterval);
  now_ += kEventUpdateInterval;
  EXPECT_EQ(write_due(), "update oops x1001");
  EXPECT_EQ(write_due(), "");
}

TEST_F(EventAggregatorTest, what_happens_before_the_first_write_is_counted_in_it) {
  record("oops");
  record("oops");
  EXPECT_EQ(write_due(), "create oops x2");
}

TEST_F(EventAggregatorTest, what_happens_during_a_write_is_written_later) {
  record("oops");
  const auto write = aggregator_.next(now_);
  ASSERT_TRUE(write);
  record("oops");
  EXPECT_FALSE(aggregator_.next(now_)) << "one write of a series at a time";
  aggregator_.on_written(*write, now_);
  now_ += kEventUpdateInterval;
  EXPECT_EQ(write_due(), "update oops x2");
}

TEST_F(EventAggregatorTest, differing_happenings_are_events_of_their_own) {
  record("a");
  record("b");
  record("a", "other");
  aggregator_.record(about(), text("a", "OtherReason"), now_, wall());
  std::set<std::string> names;
  while (const auto write = aggregator_.next(now_)) {
    names.insert(write->series.name);
    aggregator_.on_written(*write, now_);
  }
  EXPECT_EQ(names.size(), 4U);
}

TEST_F(EventAggregatorTest, after_ten_quiet_minutes_it_is_a_new_event) {
  record("oops");
  write_due();
  now_ += kEventWindow;
  record("oops");
  now_ += kEventUpdateInterval;
  EXPECT_EQ(write_due(), "update oops x2") << "ten minutes to the second are the same story";
  now_ += kEventWindow + seconds(1);
  record("oops");
  const auto write = aggregator_.next(now_);
  ASSERT_TRUE(write);
  EXPECT_EQ(in_words(*write), "create oops x1");
}

TEST_F(EventAggregatorTest, another_process_finds_the_same_name_within_ten_minutes_and_another_one_later) {
  const auto name_of = [](Clock::time_point now) {
    EventAggregator aggregator("operator");
    aggregator.record(about(), text("oops"), now, std::chrono::duration_cast<seconds>(now.time_since_epoch()).count());
    return aggregator.next(now)->series.name;
  };
  const Clock::time_point begin(minutes(600'000));
  const std::string name = name_of(begin);
  EXPECT_EQ(name_of(begin + minutes(9)), name);
  EXPECT_NE(name_of(begin + minutes(10)), name);
  EXPECT_EQ(name.substr(0, 4), "job.");
  EXPECT_EQ(name.size(), 4U + 16U);
}

TEST_F(EventAggregatorTest, names_fit_into_the_apis_limit) {
  aggregator_.record(about(std::string(235, 'a') + "-.-" + std::string(15, 'b')), text("oops"), now_, wall());
  const std::string name = aggregator_.next(now_)->series.name;
  EXPECT_LE(name.size(), 253U);
  EXPECT_EQ(name.substr(0, 236), std::string(235, 'a') + ".") << "no label ends in '-'";
}

TEST_F(EventAggregatorTest, a_predecessors_event_is_counted_on) {
  record("oops");
  const auto write = aggregator_.next(now_);
  aggregator_.on_exists(*write, 7, now_);
  EXPECT_EQ(write_due(), "update oops x8");
  record("oops");
  now_ += kEventUpdateInterval;
  EXPECT_EQ(write_due(), "update oops x9");
}

TEST_F(EventAggregatorTest, a_deleted_event_is_created_again_with_the_unsent_count) {
  for (int i = 0; i < 5; ++i) record("oops");
  write_due();
  const api::UnixSeconds first = wall();
  now_ += seconds(30);
  record("oops");
  now_ += kEventUpdateInterval;
  const auto update = aggregator_.next(now_);
  ASSERT_TRUE(update);
  EXPECT_EQ(in_words(*update), "update oops x6");
  aggregator_.on_gone(*update, now_);
  const auto create = aggregator_.next(now_);
  ASSERT_TRUE(create);
  EXPECT_EQ(in_words(*create), "create oops x1");
  EXPECT_EQ(create->series.first, first + 30);
}

TEST_F(EventAggregatorTest, a_flood_of_differing_messages_is_limited_per_object) {
  for (int i = 0; i < 100; ++i) record("message " + std::to_string(i));
  EXPECT_EQ(aggregator_.waiting(), 25U);
  record("calm", "other");
  EXPECT_EQ(aggregator_.waiting(), 26U) << "another object has its own tokens";
  now_ += minutes(5) + seconds(1);
  record("one more");
  record("and another");
  EXPECT_EQ(aggregator_.waiting(), 27U);
  record("message 0");
  EXPECT_EQ(in_words(*aggregator_.next(now_)), "create message 0 x2") << "what is known already costs nothing";
}

TEST_F(EventAggregatorTest, drops_the_oldest_when_a_thousand_wait) {
  for (int i = 0; i < 1002; ++i) record("oops", "job" + std::to_string(i));
  EXPECT_EQ(aggregator_.waiting(), kEventsWaitingMax);
  EXPECT_EQ(aggregator_.next(now_)->series.about.key.name, "job2");
}

TEST_F(EventAggregatorTest, what_fails_is_tried_again_at_its_time_and_given_up_after_twelve_times) {
  record("oops");
  for (int i = 1; i < kEventTriesMax; ++i) {
    const auto write = aggregator_.next(now_);
    ASSERT_TRUE(write) << i;
    aggregator_.on_failed(*write, now_ + seconds(5));
    EXPECT_FALSE(aggregator_.next(now_ + seconds(4)));
    now_ += seconds(5);
  }
  aggregator_.on_failed(*aggregator_.next(now_), now_ + seconds(5));
  EXPECT_EQ(aggregator_.waiting(), 0U);
}

TEST_F(EventAggregatorTest, what_is_refused_is_dropped) {
  record("oops");
  record("oops");
  aggregator_.on_failed(*aggregator_.next(now_), std::nullopt);
  EXPECT_EQ(aggregator_.waiting(), 0U);
  record("oops");
  EXPECT_EQ(write_due(), "create oops x1") << "the next one is tried again";
}

TEST_F(EventAggregatorTest, at_the_end_everything_is_due) {
  record("oops");
  write_due();
  record("oops");
  EXPECT_FALSE(aggregator_.next(now_));
  const auto write = aggregator_.next(now_, true);
  ASSERT_TRUE(write);
  EXPECT_EQ(in_words(*write), "update oops x2");
}

TEST_F(EventAggregatorTest, remembers_a_bounded_number_of_series) {
  for (size_t i = 0; i < kEventSeriesMax + 10; ++i) {
    record("oops", "job" + std::to_string(i));
    write_due();
    now_ += std::chrono::milliseconds(10);
  }
  record("oops", "job0");
  EXPECT_EQ(write_due(), "create oops x1") << "the quietest was forgotten; the server says that its Event exists";
  record("oops", "job" + std::to_string(kEventSeriesMax));
  now_ += kEventUpdateInterval;
  EXPECT_EQ(write_due(), "update oops x2");
}

TEST(EventText, is_cut_between_characters) {
  EXPECT_EQ(cut_text("short", 10), "short");
  EXPECT_EQ(cut_text("0123456789", 10), "0123456789");
  EXPECT_EQ(cut_text("0123456789a", 10), "0123456…");
  EXPECT_EQ(cut_text("01234é789a", 10), "01234é…");
  EXPECT_EQ(cut_text("012345é89a", 10), "012345…") << "'é' has two bytes, of which one would fit";
  EXPECT_EQ(cut_text("long", 2), "");
}

TEST(EventText, bytes_that_are_no_utf8_are_replaced_before_they_are_counted) {
  EXPECT_EQ(cut_text("a\xff", 10), "a\xEF\xBF\xBD");
  const std::string cut = cut_text(std::string(5000, '\xff'), kEventMessageMax);
  EXPECT_LE(cut.size(), kEventMessageMax);
  EXPECT_EQ(cut, cut_text(cut, kEventMessageMax));
}

TEST(EventObject, is_a_core_v1_event) {
  const EventSeries series{about(), text("it died"), "job.0123", 3, 1'795'255'200, 1'795'255'260};
  EXPECT_EQ(event_object(series, {.component = "lockstep-operator", .instance = "pod-1"}), Json::parse(R"({
    "apiVersion": "v1", "kind": "Event",
    "metadata": {"namespace": "ns", "name": "job.0123"},
    "involvedObject": {"apiVersion": "lockstep.dev/v1", "kind": "TrainJob", "namespace": "ns", "name": "job",
                       "uid": "uid-of-job", "resourceVersion": "7"},
    "type": "Warning", "reason": "PodFailed", "message": "it died", "action": "ReplacePod",
    "source": {"component": "lockstep-operator"},
    "reportingComponent": "lockstep-operator", "reportingInstance": "pod-1",
    "firstTimestamp": "2026-11-21T10:00:00Z", "lastTimestamp": "2026-11-21T10:01:00Z", "count": 3})"));
  EXPECT_EQ(event_patch(series), (Json{{"count", 3}, {"lastTimestamp", "2026-11-21T10:01:00Z"}}));
}

TEST(EventObject, about_an_object_of_the_whole_cluster_lives_in_default) {
  EventSeries series{{"v1", "Node", {"", "n1"}, "", ""}, {EventText::Type::kNormal, "Seen", "up", ""}, "n1.0", 1, 0, 0};
  const Json event = event_object(series, {});
  EXPECT_EQ(event["metadata"]["namespace"], "default");
  EXPECT_FALSE(event["involvedObject"].contains("namespace"));
  EXPECT_FALSE(event.contains("action"));
  EXPECT_EQ(event["type"], "Normal");
}

}  // namespace
}  // namespace lockstep::control
