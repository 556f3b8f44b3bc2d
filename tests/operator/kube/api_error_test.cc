// The API server's own words, as a kube-apiserver of 1.34 writes them, and what becomes of them.
#include "operator/kube/api_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::kube {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

HttpResponse answer(int status, const std::string& body) {
  HttpResponse response;
  response.status = status;
  response.body = body;
  return response;
}

std::string status_text(int code, const std::string& reason, const std::string& message, const Json& details = {}) {
  Json status = {{"kind", "Status"},    {"apiVersion", "v1"}, {"metadata", Json::object()},
                 {"status", "Failure"}, {"message", message}, {"reason", reason},
                 {"code", code}};
  if (!details.is_null()) status["details"] = details;
  return status.dump();
}

TEST(ApiError, the_code_says_what_the_caller_does_next) {
  struct Case {
    int status;
    std::string reason;
    ErrorCode code;
  };
  const std::vector<Case> cases = {
      {400, "BadRequest", ErrorCode::kInvalid},
      {401, "Unauthorized", ErrorCode::kForbidden},
      {403, "Forbidden", ErrorCode::kForbidden},
      {404, "NotFound", ErrorCode::kNotFound},
      {405, "MethodNotAllowed", ErrorCode::kInvalid},
      {406, "NotAcceptable", ErrorCode::kInvalid},
      {409, "AlreadyExists", ErrorCode::kExists},
      {409, "Conflict", ErrorCode::kConflict},
      {410, "Expired", ErrorCode::kGone},
      {410, "Gone", ErrorCode::kGone},
      {413, "RequestEntityTooLarge", ErrorCode::kInvalid},
      {415, "UnsupportedMediaType", ErrorCode::kInvalid},
      {422, "Invalid", ErrorCode::kInvalid},
      {429, "TooManyRequests", ErrorCode::kRetry},
      {500, "InternalError", ErrorCode::kRetry},
      {503, "ServiceUnavailable", ErrorCode::kRetry},
      {504, "Timeout", ErrorCode::kRetry},
      {301, "", ErrorCode::kInvalid},
  };
  for (const Case& one : cases) {
    const Error error =
        error_of_answer(answer(one.status, status_text(one.status, one.reason, "words")), "get pods a/b");
    EXPECT_EQ(error.code, one.code) << one.status << one.reason;
    EXPECT_EQ(error.reason, one.reason) << one.status;
    EXPECT_EQ(error.message, "get pods a/b: " + std::to_string(one.status) + " words");
  }
}

TEST(ApiError, a_namespace_that_is_being_deleted_has_its_own_reason) {
  const Json details = {{"name", "x-0-0"},
                        {"kind", "pods"},
                        {"causes",
                         {{{"reason", "NamespaceTerminating"},
                           {"message", "namespace a is being terminated"},
                           {"field", "metadata.namespace"}}}}};
  const Error error = error_of_answer(
      answer(403, status_text(403, "Forbidden",
                              "pods \"x-0-0\" is forbidden: unable to create new content in namespace a because it is "
                              "being terminated",
                              details)),
      "create pods a/x-0-0");
  EXPECT_EQ(error.code, ErrorCode::kForbidden);
  EXPECT_EQ(error.reason, kReasonNamespaceTerminating);
  EXPECT_THAT(error.message, HasSubstr("being terminated (metadata.namespace: namespace a is being terminated)"));
}

TEST(ApiError, an_exceeded_quota_has_its_own_reason) {
  const Error error = error_of_answer(
      answer(403,
             status_text(403, "Forbidden",
                         "pods \"x-0-0\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: "
                         "pods=2")),
      "create pods a/x-0-0");
  EXPECT_EQ(error.code, ErrorCode::kForbidden);
  EXPECT_EQ(error.reason, kReasonExceededQuota);
  EXPECT_THAT(error.message, HasSubstr("used: pods=2, limited: pods=2"));
}

TEST(ApiError, a_priority_class_that_does_not_exist_has_its_own_reason) {
  const std::string words = " is forbidden: no PriorityClass with name research was found";
  for (const std::string what : {"pods \"x-0-0\"", "podgroups.scheduling.k8s.io \"x-0\""}) {
    const Error error = error_of_answer(answer(403, status_text(403, "Forbidden", what + words)), "create");
    EXPECT_EQ(error.code, ErrorCode::kForbidden);
    EXPECT_EQ(error.reason, kReasonNoPriorityClass) << what;
  }
}

// No change of the object helps the operator to a right that it lacks.
TEST(ApiError, a_right_that_the_caller_lacks_has_its_own_reason) {
  for (
      const std::string words :
      {"pods is forbidden: User \"system:serviceaccount:a:b\" cannot create resource \"pods\" in API group \"\" in the "
       "namespace \"a\"",
       "pods \"x-0-0\" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't "
       "set finalizers on: , <nil>"}) {
    const Error error = error_of_answer(answer(403, status_text(403, "Forbidden", words)), "create");
    EXPECT_EQ(error.code, ErrorCode::kForbidden);
    EXPECT_EQ(error.reason, kReasonNoPermission) << words;
  }
  const std::string admission = "pods \"x-0-0\" is forbidden: maximum cpu usage per Container is 1, but limit is 2";
  EXPECT_EQ(error_of_answer(answer(403, status_text(403, "Forbidden", admission)), "create").reason, "Forbidden");
}

// Words and causes as a kube-apiserver of 1.34 has them.
TEST(ApiError, what_the_server_itself_finds_wrong_is_told_from_what_a_policy_refuses) {
  const auto reason = [](int code, const std::string& word, const std::string& message, const Json& causes) {
    return error_of_answer(answer(code, status_text(code, word, message, {{"causes", causes}})), "create").reason;
  };
  const Json field = Json::array({{{"reason", "FieldValueRequired"}, {"message", "Required"}, {"field", "spec.x"}}});
  const Json no_field = Json::array({{{"message", "images must come from our registry"}}});
  const Json none = Json::array();

  EXPECT_EQ(reason(422, "Invalid", "Pod \"x\" is invalid: spec.x: Required value", field), kReasonInvalidObject);
  EXPECT_EQ(
      reason(400, "BadRequest",
             "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.y\"", none),
      kReasonInvalidObject);

  EXPECT_EQ(
      reason(422, "Invalid",
             "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: images must "
             "come from our registry",
             no_field),
      "Invalid");
  const std::string denied = "admission webhook \"policy.example\" denied the request: ";
  EXPECT_EQ(reason(400, "", denied + "no", none), "");
  EXPECT_EQ(reason(400, "BadRequest", denied + "it cannot be handled as a Pod", none), "BadRequest");
  EXPECT_EQ(reason(422, "Invalid", denied + "spec.x: Required value", field), "Invalid");
}

TEST(ApiError, field_paths_of_causes_are_said_once) {
  const Json causes = {{"causes",
                        {{{"field", "spec.containers[0].image"}, {"message", "Required value"}},
                         {{"field", "spec.nodeName"}, {"message", "Invalid value"}}}}};
  const Error error = error_of_answer(
      answer(422,
             status_text(422, "Invalid", "Pod \"x\" is invalid: spec.containers[0].image: Required value", causes)),
      "create pods a/x");
  EXPECT_EQ(
      error.message,
      "create pods a/x: 422 Pod \"x\" is invalid: spec.containers[0].image: Required value (spec.nodeName: Invalid "
      "value)");
}

TEST(ApiError, answers_of_proxies_are_shown_on_one_line_and_cut) {
  const Error error =
      error_of_answer(answer(502, "<html>\r\n  <h1>502 Bad\tGateway</h1>\r\n" + std::string(1000, 'x')), "list pods");
  EXPECT_EQ(error.code, ErrorCode::kRetry);
  EXPECT_EQ(error.reason, "");
  EXPECT_THAT(error.message, HasSubstr("list pods: 502 <html> <h1>502 Bad Gateway</h1> xxx"));
  EXPECT_LT(error.message.size(), 400U);
}

TEST(ApiError, unusual_answers_do_no_harm) {
  EXPECT_EQ(error_of_answer(answer(404, "404 page not found\n"), "list trainjobs").message,
            "list trainjobs: 404 404 page not found ");
  EXPECT_EQ(error_of_answer(answer(500, ""), "x").message, "x: 500 with an empty body");
  EXPECT_EQ(error_of_answer(answer(401, "no"), "x").reason, "Unauthorized");
  EXPECT_EQ(error_of_answer(answer(409, "{}"), "x").code, ErrorCode::kConflict);
  EXPECT_EQ(
      error_of_answer(answer(500, R"({"kind":"Status","code":"500","message":7,"details":[],"reason":null})"), "x")
          .message,
      "x: 500 no reason was given");
  EXPECT_EQ(error_of_answer(answer(403, R"({"kind":"Status","details":{"causes":{"a":1}}})"), "x").code,
            ErrorCode::kForbidden);
  EXPECT_EQ(error_of_answer(answer(500, R"({"kind":"Status","details":{"causes":[1,"a",null]}})"), "x").code,
            ErrorCode::kRetry);
}

TEST(RetryAfter, comes_from_the_header_or_from_the_status) {
  HttpResponse response = answer(429, status_text(429, "TooManyRequests", "later", {{"retryAfterSeconds", 3}}));
  EXPECT_EQ(retry_after_of(response), std::chrono::seconds(3));
  response.headers["retry-after"] = "1";
  EXPECT_EQ(retry_after_of(response), std::chrono::seconds(1));
  response.headers["retry-after"] = "Fri, 21 Nov 2026 10:00:00 GMT";  // a date is not what API servers send
  EXPECT_EQ(retry_after_of(response), std::chrono::seconds(3));
  response.body = "";
  EXPECT_EQ(retry_after_of(response), std::nullopt);
  response.headers["retry-after"] = "-5";
  EXPECT_EQ(retry_after_of(response), std::nullopt);
  response.headers["retry-after"] = "99999999";
  EXPECT_EQ(retry_after_of(response), std::chrono::hours(1));
  response.headers["retry-after"] = "999999999999999999999999";
  EXPECT_EQ(retry_after_of(response), std::nullopt);
}

}  // namespace
}  // namespace lockstep::kube
