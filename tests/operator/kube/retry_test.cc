#include "operator/kube/retry.h"

#include <gtest/gtest.h>

#include "operator/kube/api_error.h"

namespace lockstep::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Result<HttpResponse> answer(int status, const std::string& retry_after = "") {
  HttpResponse response;
  response.status = status;
  if (!retry_after.empty()) response.headers["retry-after"] = retry_after;
  return response;
}

Result<HttpResponse> broken(ErrorCode code, std::string_view reason = "") {
  return Error{code, "no answer", std::string(reason)};
}

RetryQuestion question(bool idempotent) { return {.idempotent = idempotent, .retry_for = seconds(10)}; }

TEST(Retry, what_may_be_sent_again_depends_on_what_the_server_did) {
  struct Case {
    Result<HttpResponse> outcome;
    bool idempotent;
    bool other;  // a POST
  };
  const std::vector<Case> cases = {
      {answer(200), false, false},
      {answer(400), false, false},
      {answer(401), false, false},
      {answer(403), false, false},
      {answer(404), false, false},
      {answer(409), false, false},
      {answer(410), false, false},
      {answer(422), false, false},
      {answer(429), true, false},
      {answer(429, "1"), true, true},
      {answer(500), true, false},
      {answer(500, "1"), true, false},
      {answer(502), true, false},
      {answer(503), true, false},
      {answer(503, "1"), true, true},
      {answer(504), true, false},
      {broken(ErrorCode::kUnavailable), true, false},
      {broken(ErrorCode::kUnavailable, kReasonNotConnected), true, true},
      {broken(ErrorCode::kUnavailable, kReasonTlsRefused), false, false},
      {broken(ErrorCode::kCancelled), false, false},
      {broken(ErrorCode::kCorrupt), false, false},
      {broken(ErrorCode::kInvalid), false, false},
  };
  for (const Case& one : cases) {
    const std::string name = one.outcome.ok()
                                 ? std::to_string(one.outcome->status)
                                 : std::string(to_string(one.outcome.error().code)) + " " + one.outcome.error().reason;
    EXPECT_EQ(wait_before_retry(question(true), one.outcome).has_value(), one.idempotent) << name;
    EXPECT_EQ(wait_before_retry(question(false), one.outcome).has_value(), one.other) << name;
  }
}

TEST(Retry, waits_double_to_a_bound_and_are_drawn_from_their_upper_half) {
  RetryQuestion asked = question(true);
  const std::vector<int> full = {100, 200, 400, 800, 1600, 2000, 2000, 2000};
  for (size_t i = 0; i < full.size(); ++i) {
    asked.attempts = static_cast<int>(i) + 1;
    asked.random = 0.0;
    EXPECT_EQ(wait_before_retry(asked, answer(500)), milliseconds(full[i] / 2)) << asked.attempts;
    asked.random = 0.5;
    EXPECT_EQ(wait_before_retry(asked, answer(500)), milliseconds(full[i] * 3 / 4)) << asked.attempts;
  }
  asked.attempts = 1'000'000;
  asked.random = 0.999999;
  EXPECT_LE(wait_before_retry(asked, answer(500)), milliseconds(2000));
}

TEST(Retry, the_servers_own_wish_comes_first_and_is_spread_a_little) {
  RetryQuestion asked = question(true);
  asked.attempts = 7;
  EXPECT_EQ(wait_before_retry(asked, answer(429, "1")), milliseconds(1000));
  asked.random = 0.5;
  EXPECT_EQ(wait_before_retry(asked, answer(429, "3")), milliseconds(3050));
}

TEST(Retry, no_attempt_begins_after_the_end_of_the_time_given) {
  RetryQuestion asked = question(true);
  asked.elapsed = milliseconds(9'950);
  EXPECT_EQ(wait_before_retry(asked, answer(500)), milliseconds(50));
  asked.elapsed = milliseconds(9'951);
  EXPECT_EQ(wait_before_retry(asked, answer(500)), std::nullopt);
  asked.elapsed = milliseconds(0);
  EXPECT_EQ(wait_before_retry(asked, answer(429, "11")), std::nullopt);
  asked.retry_for = milliseconds(0);
  EXPECT_EQ(wait_before_retry(asked, answer(500)), std::nullopt);
}

}  // namespace
}  // namespace lockstep::kube
