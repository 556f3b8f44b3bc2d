#include "operator/diagnose/screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace lockstep::diagnose {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr api::UnixSeconds kNow = 1'795'000'000;  // 2026-11-18T11:06:40Z

Diagnosis sample() {
  Diagnosis diagnosis;
  diagnosis.verdict =
      "rank 3 in pod sasrec-1-0 was killed by the kernel (out of memory) at step 812; restarted 1 of 10";
  diagnosis.details = {"step 900 of 2000 (45%)"};
  diagnosis.timeline = {
      {kNow - 3 * 86'400, "the TrainJob was made", false},
      {kNow - 90, "OutOfMemory: Pod sasrec-1-0 ended with 137 and with a message that is rather long", true}};
  diagnosis.pods = {{0, "sasrec-0-0", "node-0", "ready", true}, {1, "", "", "no pod", false}};
  diagnosis.log_pod = "sasrec-1-0";
  diagnosis.log = {"line \x1b[31mone"};
  diagnosis.advice = {
      {"give each pod more memory:", "kubectl edit -n team tj sasrec --with a command that is never wrapped at all"}};
  diagnosis.notes = {"no right to list events"};
  return diagnosis;
}

TEST(Screen, says_the_verdict_first_and_wraps_prose_but_no_command) {
  EXPECT_EQ(to_screen(sample(), {.width = 60, .now = kNow}),
            R"(Rank 3 in pod sasrec-1-0 was killed by the kernel (out of
memory) at step 812; restarted 1 of 10
  step 900 of 2000 (45%)

What happened (UTC)
  11-15 11:06  3d ago       the TrainJob was made
  11:05:10     1m30s ago    OutOfMemory: Pod sasrec-1-0
                            ended with 137 and with a
                            message that is rather long

  POD   NAME         NODE     STATE
  1     -            -        no pod
  0     sasrec-0-0   node-0   ready

Last lines of sasrec-1-0
  line  [31mone

What to do
  - give each pod more memory:
      kubectl edit -n team tj sasrec --with a command that is never wrapped at all
note: no right to list events
)");
}

TEST(Screen, has_colours_only_where_they_are_asked_for) {
  EXPECT_THAT(to_screen(sample(), {.now = kNow}), Not(HasSubstr("\033")));
  const std::string coloured = to_screen(sample(), {.colours = true, .now = kNow});
  EXPECT_THAT(coloured, HasSubstr("\033[1;31mRank 3"));
  Diagnosis well = sample();
  well.is_well = true;
  EXPECT_THAT(to_screen(well, {.colours = true, .now = kNow}), HasSubstr("\033[32mRank 3"));
}

TEST(Screen, stays_one_screen) {
  Diagnosis large = sample();
  large.details.push_back(std::string(10'000, 'x'));
  for (int i = 0; i < 1000; ++i) {
    large.timeline.push_back({kNow - 80, "happening " + std::to_string(i), false});
    large.pods.push_back({i + 2, "pod", "host", "ready", true});
  }
  const std::string text = to_screen(large, {.width = 80, .now = kNow});
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 50);
  EXPECT_LT(text.size(), 6000U);
  EXPECT_THAT(text, HasSubstr("the TrainJob was made"));  // the beginning, and the newest
  EXPECT_THAT(text, HasSubstr("… 992 more …"));
  EXPECT_THAT(text, HasSubstr("happening 999"));
  EXPECT_THAT(text, HasSubstr("no pod"));  // what is wrong comes first
  EXPECT_THAT(text, HasSubstr("… and 994 more"));
}

TEST(Screen, counts_characters_and_not_bytes) {
  Diagnosis diagnosis;
  diagnosis.verdict = "ünïcödé ünïcödé ünïcödé ünïcödé ünïcödé";  // 39 columns, 59 bytes
  EXPECT_EQ(to_screen(diagnosis, {.width = 40, .now = kNow}), diagnosis.verdict + "\n");
}

TEST(JobsTable, has_a_row_for_every_job) {
  const Json job =
      Json::parse(R"({"metadata": {"name": "a", "namespace": "n", "creationTimestamp": "2026-11-18T11:05:40Z"},
    "status": {"phase": "Running", "reason": "StepCommitted", "nodes": {"summary": "2/2"}, "restarts": {"total": 1},
               "progress": {"step": 7, "summary": "70%", "eta": "3s"}}})");
  EXPECT_EQ(jobs_table({job, Json::object()}, true, kNow),
            "NAMESPACE   NAME   PHASE     READY   STEP   PROGRESS   LEFT   RESTARTS   AGE   WHY\n"
            "n           a      Running   2/2     7      70%        3s     1          1m    StepCommitted\n"
            "-           -      -         -       -      -          -      -          -     -\n");
}

}  // namespace
}  // namespace lockstep::diagnose
