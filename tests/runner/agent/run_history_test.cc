#include "runner/agent/run_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

std::string step_line(int64_t step, double loss) {
  return dump_line(OrderedJson{{"step", step}, {"epoch", 0}, {"loss", loss}, {"time", 1.5}});
}

std::string evaluation_line(int64_t step, double ndcg) {
  return dump_line(
      OrderedJson{{"step", step}, {"epoch", 1}, {"evaluation", true}, {"valid_ndcg@10", ndcg}, {"time", 1.5}});
}

std::vector<int64_t> steps_of(const HistorySeries& series) {
  std::vector<int64_t> steps;
  for (const HistoryPoint& point : series.points) steps.push_back(point.step);
  return steps;
}

std::vector<HistoryPoint> line_of(int64_t points, int64_t steps_between = 1) {
  std::vector<HistoryPoint> line;
  for (int64_t i = 0; i < points; ++i) line.push_back({i * steps_between + 1, std::sin(static_cast<double>(i))});
  return line;
}

TEST(Thinned, keeps_a_short_series_as_it_is) {
  const std::vector<HistoryPoint> points = line_of(kSeriesPointsMax);
  EXPECT_EQ(thinned(points), points);
  EXPECT_THAT(thinned({}), IsEmpty());
}

TEST(Thinned, keeps_the_first_point_and_the_newest_ones) {
  const std::vector<HistoryPoint> points = line_of(50'000, 10);
  const std::vector<HistoryPoint> few = thinned(points);
  EXPECT_LE(few.size(), kSeriesPointsMax);
  EXPECT_GE(few.size(), kNewestPointsKept + kThinningBuckets);
  EXPECT_EQ(few.front(), points.front());
  EXPECT_TRUE(std::equal(few.end() - kNewestPointsKept, few.end(), points.end() - kNewestPointsKept));
}

TEST(Thinned, keeps_a_spike_in_either_direction) {
  std::vector<HistoryPoint> points = line_of(10'000);
  points[3'000].value = 99.0;
  points[3'001].value = -99.0;
  const std::vector<HistoryPoint> few = thinned(points);
  EXPECT_NE(std::find(few.begin(), few.end(), points[3'000]), few.end());
  EXPECT_NE(std::find(few.begin(), few.end(), points[3'001]), few.end());
}

TEST(Thinned, stays_in_the_order_of_the_steps_wherever_they_lie) {
  std::vector<HistoryPoint> points;
  for (int64_t i = 0; i < 3'000; ++i) points.push_back({i * i * i, static_cast<double>(i % 7)});
  const std::vector<HistoryPoint> few = thinned(points);
  EXPECT_LE(few.size(), kSeriesPointsMax);
  EXPECT_TRUE(std::is_sorted(few.begin(), few.end(),
                             [](const HistoryPoint& a, const HistoryPoint& b) { return a.step < b.step; }));
}

TEST(RunHistory, has_each_figure_over_the_steps) {
  RunHistory history;
  history.add_metrics_line(R"({"step":1,"epoch":0,"loss":1.5,"lr":0.001,"grad_norm":null,"time":3.0})");
  history.add_metrics_line(step_line(2, 1.25));
  history.add_metrics_line(evaluation_line(2, 0.5));
  ASSERT_THAT(history.series(), SizeIs(3));
  EXPECT_EQ(history.series()[0].name, "loss");
  EXPECT_THAT(history.series()[0].points, ElementsAre(HistoryPoint{1, 1.5}, HistoryPoint{2, 1.25}));
  EXPECT_EQ(history.series()[1].name, "lr");
  EXPECT_EQ(history.series()[2].name, "valid_ndcg@10");
  EXPECT_TRUE(history.series()[2].is_evaluation);
  EXPECT_EQ(dump_line(to_json(history)),
            R"({"series":[{"name":"loss","evaluation":false,"points":[[1,1.5],[2,1.25]]},)"
            R"({"name":"lr","evaluation":false,"points":[[1,0.001]]},)"
            R"({"name":"valid_ndcg@10","evaluation":true,"points":[[2,0.5]]}],"marks":[],"badLines":0})");
}

TEST(RunHistory, of_a_million_steps_is_bounded_and_spans_them_all) {
  RunHistory history;
  for (int64_t step = 1; step <= 1'000'000; step += 50) {
    history.add_metrics_line(R"({"loss":)" + std::to_string(step % 7) + R"(,"step":)" + std::to_string(step) + "}");
  }
  ASSERT_THAT(history.series(), SizeIs(1));
  const std::vector<HistoryPoint>& points = history.series()[0].points;
  EXPECT_LE(points.size(), kSeriesPointsMax);
  EXPECT_EQ(points.front().step, 1);
  EXPECT_EQ(points.back().step, 999'951);
  // No gap between two points is wider than four of the intervals that the steps are divided into.
  int64_t widest = 0;
  for (size_t i = 1; i < points.size(); ++i) widest = std::max(widest, points[i].step - points[i - 1].step);
  EXPECT_LE(widest, 1'000'000 / int64_t{kThinningBuckets} * 4);
}

TEST(RunHistory, drops_the_steps_that_are_redone) {
  RunHistory history;
  for (int64_t step = 1; step <= 5; ++step) history.add_metrics_line(step_line(step, 1.0));
  history.add_metrics_line(evaluation_line(3, 0.1));
  history.add_metrics_line(evaluation_line(5, 0.2));
  history.add_metrics_line(step_line(4, 7.0));
  EXPECT_THAT(steps_of(history.series()[0]), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(history.series()[0].points.back().value, 7.0);
  EXPECT_THAT(steps_of(history.series()[1]), ElementsAre(3));
}

TEST(RunHistory, an_evaluation_and_the_line_of_its_step_may_come_in_either_order) {
  RunHistory history;
  for (const std::string& line :
       {step_line(1, 1.0), evaluation_line(2, 0.1), step_line(2, 0.9), step_line(3, 0.8), evaluation_line(3, 0.2)}) {
    history.add_metrics_line(line);
  }
  EXPECT_THAT(steps_of(history.series()[0]), ElementsAre(1, 2, 3));
  EXPECT_THAT(steps_of(history.series()[1]), ElementsAre(2, 3));
}

TEST(RunHistory, of_a_program_s_figures_keeps_their_order_and_leaves_out_what_is_no_number) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  RunHistory history;
  history.add_figures({.step = 0, .values = {{"loss", 1.5}, {"accuracy", 0.25}, {"lr", kUnknown}}});
  history.add_figures({.step = 7, .values = {{"loss", kUnknown}, {"lr", 0.5}}});
  history.add_figures({.step = -1, .values = {{"loss", 1.0}}});
  history.add_figures({.step = std::numeric_limits<int64_t>::max(), .values = {{"loss", 1.0}}});
  ASSERT_THAT(history.series(), SizeIs(3));
  EXPECT_EQ(history.series()[0].name, "loss");
  EXPECT_THAT(history.series()[0].points, ElementsAre(HistoryPoint{0, 1.5}));
  EXPECT_EQ(history.series()[1].name, "accuracy");
  EXPECT_THAT(history.series()[2].points, ElementsAre(HistoryPoint{7, 0.5}));
}

TEST(RunHistory, of_a_program_s_figures_takes_a_step_in_parts_and_made_again) {
  RunHistory history;
  for (int64_t step = 1; step <= 5; ++step) history.add_figures({.step = step, .values = {{"loss", 1.0}}});
  history.add_figures({.step = 5, .values = {{"accuracy", 0.5}}});
  EXPECT_THAT(steps_of(history.series()[0]), ElementsAre(1, 2, 3, 4, 5));
  history.add_figures({.step = 3, .values = {{"loss", 7.0}}});  // its checkpoint was that of step 2
  EXPECT_THAT(steps_of(history.series()[0]), ElementsAre(1, 2, 3));
  EXPECT_EQ(history.series()[0].points.back().value, 7.0);
  EXPECT_THAT(history.series()[1].points, IsEmpty());
}

TEST(RunHistory, counts_foreign_lines_and_goes_on) {
  RunHistory history;
  const std::vector<std::string> bad = {"",
                                        "{",
                                        "[1]",
                                        "null",
                                        "{}",
                                        R"({"step":"1","loss":1})",
                                        R"({"step":1.5,"loss":1})",
                                        R"({"step":-1,"loss":1})",
                                        R"({"step":9223372036854775807,"loss":1})",
                                        R"({"step":18446744073709551615,"loss":1})",
                                        R"({"step":1,"loss":1e999})",
                                        std::string("\0\xff\xfe", 3),
                                        std::string(5000, '[')};
  for (const std::string& line : bad) history.add_metrics_line(line);
  for (const std::string& line : bad) history.add_recovery_line(line);
  EXPECT_THAT(history.series(), IsEmpty());
  EXPECT_THAT(history.marks(), IsEmpty());
  EXPECT_EQ(history.bad_lines(), static_cast<int64_t>(2 * bad.size()));
  history.add_metrics_line(step_line(1, 1.0));
  EXPECT_THAT(history.series(), SizeIs(1));
}

TEST(RunHistory, takes_no_more_figures_than_a_page_can_hold) {
  RunHistory history;
  for (int i = 0; i < 1000; ++i) history.add_metrics_line(R"({"step":1,"figure)" + std::to_string(i) + R"(":1})");
  EXPECT_THAT(history.series(), SizeIs(kSeriesMax));
}

TEST(RunHistory, marks_recoveries_and_starts_from_a_checkpoint) {
  RunHistory history;
  const Resumed first{.generation = 1, .step = 1, .resumed_step = 0, .origin = "the seed"};
  history.add_recovery_line(start_line(first, 2, 100));
  EXPECT_THAT(history.marks(), IsEmpty()) << "the beginning is no interruption";
  Recovery recovery;
  recovery.cause = "SignalKILL";
  recovery.total_seconds = 0.5;
  recovery.step = 40;
  recovery.origin = "rank 0";
  recovery.time_unix_seconds = 200;
  history.add_recovery_line(recovery_line(recovery));
  const Resumed again{.generation = 9, .step = 31, .resumed_step = 30, .origin = "out/step-00000030"};
  history.add_recovery_line(start_line(again, 2, 300));
  EXPECT_EQ(dump_line(to_json(history)["marks"]),
            R"([{"step":40,"cause":"SignalKILL","totalSeconds":0.5,"origin":"rank 0","time":200},)"
            R"({"step":31,"cause":null,"totalSeconds":null,"origin":"out/step-00000030","time":300}])");
  history.add_recovery_line(start_line(first, 2, 400));
  EXPECT_THAT(history.marks(), IsEmpty()) << "a new run in the folder of an old one";
}

TEST(RunHistory, remembers_the_newest_marks) {
  RunHistory history;
  for (int64_t step = 1; step <= 1000; ++step) {
    history.add_recovery_line(R"({"cause":"PeerLost","step":)" + std::to_string(step) + "}");
  }
  ASSERT_THAT(history.marks(), SizeIs(kHistoryMarksMax));
  EXPECT_EQ(history.marks().back().step, 1000);
}

}  // namespace
}  // namespace lockstep
