#include "operator/api/condition.h"

#include <gtest/gtest.h>

namespace lockstep::api {
namespace {

Condition running(ConditionStatus status, const std::string& reason) {
  return {.type = "Running", .status = status, .reason = reason, .message = "m", .observed_generation = 1};
}

TEST(Conditions, hold_each_type_once) {
  Conditions conditions;
  EXPECT_TRUE(conditions.set(running(ConditionStatus::kFalse, "Starting"), 10));
  EXPECT_TRUE(conditions.set(running(ConditionStatus::kTrue, "Training"), 20));
  ASSERT_EQ(conditions.list().size(), 1U);
  EXPECT_TRUE(conditions.is_true("Running"));
  EXPECT_FALSE(conditions.is_true("Failed"));
  EXPECT_EQ(conditions.find("Failed"), nullptr);
  EXPECT_EQ(conditions.reason_of("Running"), "Training");
  EXPECT_EQ(conditions.reason_of("Failed"), "");
}

TEST(Conditions, keep_the_time_of_the_last_transition_while_the_status_stays) {
  Conditions conditions;
  conditions.set(running(ConditionStatus::kTrue, "Training"), 10);
  EXPECT_TRUE(conditions.set(running(ConditionStatus::kTrue, "Resumed"), 20));
  EXPECT_EQ(conditions.find("Running")->last_transition_time, 10);
  EXPECT_EQ(conditions.find("Running")->reason, "Resumed");
  EXPECT_TRUE(conditions.set(running(ConditionStatus::kFalse, "Suspended"), 30));
  EXPECT_EQ(conditions.find("Running")->last_transition_time, 30);
}

TEST(Conditions, say_that_nothing_changed) {
  Conditions conditions;
  conditions.set(running(ConditionStatus::kTrue, "Training"), 10);
  EXPECT_FALSE(conditions.set(running(ConditionStatus::kTrue, "Training"), 99));
}

TEST(Conditions, survive_json) {
  Conditions conditions;
  conditions.set(running(ConditionStatus::kTrue, "Training"), 10);
  conditions.set({.type = "Failed", .status = ConditionStatus::kFalse, .reason = "NotFailed", .message = ""}, 20);
  const Json json = to_json(conditions);
  EXPECT_EQ(json[0]["status"], "True");
  EXPECT_EQ(json[0]["lastTransitionTime"], "1970-01-01T00:00:10Z");
  EXPECT_EQ(conditions_from_json(json), conditions);
}

TEST(Conditions, of_something_else_are_none) {
  EXPECT_TRUE(conditions_from_json(Json("x")).list().empty());
  EXPECT_TRUE(conditions_from_json(Json::array({1, "x"})).list().empty());
  const Conditions half = conditions_from_json(Json::parse(R"([{"type": "Running", "status": 1}])"));
  EXPECT_EQ(half.find("Running")->status, ConditionStatus::kUnknown);
}

}  // namespace
}  // namespace lockstep::api
