// The client's requests, and how it handles the answers: with a scripted transport and a clock that the test turns; at
// the end a few tests over real connections, where time-outs and threads matter.
#include "operator/kube/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "operator/kube/api_error.h"
#include "operator/kube/cpprest_transport.h"
#include "operator/kube/retry.h"
#include "operator/kube/token_source.h"
#include "tests/fake/http_server.h"
#include "tests/operator/kube/creates_of.h"
#include "tests/operator/kube/scripted_transport.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

Json pod(const std::string& name) {
  return {{"apiVersion", "v1"}, {"kind", "Pod"}, {"metadata", {{"namespace", "team-a"}, {"name", name}}}};
}

std::string failure(int code, const std::string& reason, const std::string& message = "no") {
  return Json({{"kind", "Status"}, {"status", "Failure"}, {"code", code}, {"reason", reason}, {"message", message}})
      .dump();
}

std::string page(const std::vector<std::string>& names, const std::string& version, const std::string& next = "") {
  Json items = Json::array();
  for (const std::string& name : names) items.push_back({{"metadata", {{"name", name}}}});
  Json metadata = {{"resourceVersion", version}};
  if (!next.empty()) metadata["continue"] = next;
  return Json({{"kind", "PodList"}, {"apiVersion", "v1"}, {"metadata", metadata}, {"items", items}}).dump();
}

class ClientByScript : public ::testing::Test {
 protected:
  ClientByScript() {
    options_.now = [this] { return now_; };
    options_.wait = [this](milliseconds time) {
      waits_.push_back(time);
      now_ += time;
      return !told_to_stop_;
    };
    options_.random = [] { return 0.0; };
    options_.on_request = [this](const RequestReport& report) {
      reports_.push_back(report.verb + " " + report.resource + " " + std::to_string(report.status));
    };
  }
  Client& client() {
    if (!client_) client_ = std::make_unique<Client>(transport_, options_);
    return *client_;
  }
  [[nodiscard]] const HttpRequest& request(size_t i) const { return transport_->requests.at(i); }

  std::shared_ptr<ScriptedTransport> transport_ = std::make_shared<ScriptedTransport>();
  ClientOptions options_;
  std::unique_ptr<Client> client_;
  std::chrono::steady_clock::time_point now_{seconds(1000)};
  std::vector<milliseconds> waits_;
  std::vector<std::string> reports_;
  bool told_to_stop_ = false;
};

// --- what is sent ---

TEST_F(ClientByScript, get_reads_one_object) {
  transport_->then(200, pod("x").dump());
  const Result<Json> object = client().get(kPods, {"team-a", "x"});
  ASSERT_TRUE(object.ok()) << object.error().message;
  EXPECT_EQ(*object, pod("x"));
  EXPECT_EQ(request(0).method, "GET");
  EXPECT_EQ(request(0).path, "/api/v1/namespaces/team-a/pods/x");
  EXPECT_EQ(request(0).headers.at("User-Agent"), "lockstep-operator");
  EXPECT_EQ(request(0).headers.at("Accept"), "application/json");
  EXPECT_EQ(request(0).headers.count("Authorization"), 0U);
  EXPECT_THAT(reports_, ElementsAre("get pods 200"));
}

TEST_F(ClientByScript, create_posts_to_the_objects_own_namespace) {
  transport_->then(201, pod("x").dump());
  transport_->then(201, pod("x").dump());
  ASSERT_TRUE(client().create(kPods, pod("x")).ok());
  EXPECT_EQ(request(0).method, "POST");
  EXPECT_EQ(request(0).path, "/api/v1/namespaces/team-a/pods");
  EXPECT_EQ(request(0).query, "fieldManager=lockstep-operator");
  EXPECT_EQ(request(0).headers.at("Content-Type"), "application/json");
  EXPECT_EQ(Json::parse(request(0).body), pod("x"));
  ASSERT_TRUE(client().create(kPods, pod("x"), {.strict_fields = true}).ok());
  EXPECT_EQ(request(1).query, "fieldManager=lockstep-operator&fieldValidation=Strict");
}

TEST_F(ClientByScript, apply_is_a_server_side_apply) {
  transport_->then(200, pod("x").dump());
  ASSERT_TRUE(client().apply(kPods, pod("x")).ok());
  EXPECT_EQ(request(0).method, "PATCH");
  EXPECT_EQ(request(0).path, "/api/v1/namespaces/team-a/pods/x");
  EXPECT_EQ(request(0).query, "fieldManager=lockstep-operator&force=true");
  EXPECT_EQ(request(0).headers.at("Content-Type"), "application/apply-patch+yaml");
  EXPECT_EQ(Json::parse(request(0).body), pod("x"));
}

TEST_F(ClientByScript, update_replaces_and_patch_merges) {
  transport_->then(200, pod("x").dump());
  transport_->then(200, pod("x").dump());
  ASSERT_TRUE(client().update(kPods, pod("x"), "status").ok());
  EXPECT_EQ(request(0).method, "PUT");
  EXPECT_EQ(request(0).path, "/api/v1/namespaces/team-a/pods/x/status");
  const Json patch = {{"metadata", {{"resourceVersion", "7"}, {"labels", {{"a", nullptr}}}}}};
  ASSERT_TRUE(client().merge_patch(kPods, {"team-a", "x"}, patch, "status").ok());
  EXPECT_EQ(request(1).method, "PATCH");
  EXPECT_EQ(request(1).headers.at("Content-Type"), "application/merge-patch+json");
  EXPECT_EQ(Json::parse(request(1).body), patch);
  EXPECT_THAT(reports_, ElementsAre("update pods 200", "patch pods 200"));
}

TEST_F(ClientByScript, remove_carries_its_preconditions) {
  transport_->then(200, pod("x").dump());
  transport_->then(200, failure(200, ""));
  ASSERT_TRUE(client().remove(kPods, {"team-a", "x"}).ok());
  EXPECT_EQ(request(0).method, "DELETE");
  EXPECT_EQ(Json::parse(request(0).body),
            Json::parse(R"({"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":"Background"})"));
  ASSERT_TRUE(client().remove(kPods, {"team-a", "x"}, {.uid = "u-1", .resource_version = "7"}).ok());
  EXPECT_EQ(Json::parse(request(1).body),
            Json::parse(R"({"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":"Background",
                            "preconditions":{"uid":"u-1","resourceVersion":"7"}})"));
}

TEST_F(ClientByScript, objects_without_a_name_or_a_namespace_are_not_sent) {
  Json nameless = pod("");
  Json homeless = pod("x");
  homeless["metadata"].erase("namespace");
  EXPECT_EQ(client().create(kPods, nameless).error().message, "create pods in team-a: metadata.name is missing");
  EXPECT_EQ(client().apply(kPods, homeless).error().message, "apply pods x: metadata.namespace is missing");
  EXPECT_EQ(client().update(kPods, Json("x")).error().code, ErrorCode::kInvalid);
  const std::vector<Json> objects = {nameless, pod("y")};
  transport_->then(201, pod("y").dump());
  const auto answers = client().send_all(creates_of(kPods, objects));
  EXPECT_EQ(answers[0].error().code, ErrorCode::kInvalid);
  EXPECT_TRUE(answers[1].ok());
  EXPECT_THAT(transport_->requests, SizeIs(1));
}

TEST_F(ClientByScript, discovery_says_what_is_served) {
  transport_->then(200, R"({"kind":"APIResourceList","resources":[{"name":"trainjobs"},{"name":"trainjobs/status"}]})");
  transport_->then(200, R"({"kind":"APIResourceList","resources":[{"name":"others"},7]})");
  transport_->then(404, "404 page not found\n");
  transport_->then(403, failure(403, "Forbidden"));
  EXPECT_TRUE(*client().serves(kTrainJobs));
  EXPECT_FALSE(*client().serves(kTrainJobs));
  EXPECT_FALSE(*client().serves(kTrainJobs));
  EXPECT_EQ(client().serves(kTrainJobs).error().code, ErrorCode::kForbidden);
  EXPECT_EQ(request(0).path, "/apis/lockstep.dev/v1");
}

TEST_F(ClientByScript, the_schemas_of_a_group_are_its_openapi_document) {
  transport_->then(200, R"({"openapi":"3.0.0","components":{"schemas":{}}})");
  const Result<Json> document = client().openapi(kTrainJobs);
  ASSERT_TRUE(document.ok()) << document.error().message;
  EXPECT_TRUE(document->contains("components"));
  EXPECT_EQ(request(0).path, "/openapi/v3/apis/lockstep.dev/v1");
}

// --- lists ---

TEST_F(ClientByScript, a_list_of_what_the_server_does_not_know_names_the_crd) {
  transport_->then(404, "404 page not found\n");
  const Result<ObjectList> list = client().list(kTrainJobs, {.ns = "team-a"});
  ASSERT_FALSE(list.ok());
  EXPECT_EQ(list.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(list.error().message,
            "list trainjobs in team-a: the server does not know trainjobs of lockstep.dev/v1: install the CRD "
            "trainjobs.lockstep.dev");
}

TEST_F(ClientByScript, a_list_comes_in_pages_with_the_kind_in_every_item) {
  transport_->then(200, page({"a", "b"}, "10", "to=ken"));
  transport_->then(200, page({"c"}, "10"));
  const Result<ObjectList> list = client().list(
      kPods, {.ns = "team-a", .label_selector = "a=b,c in (d)", .field_selector = "x!=y", .page_size = 2});
  ASSERT_TRUE(list.ok()) << list.error().message;
  ASSERT_THAT(list->items, SizeIs(3));
  EXPECT_EQ(list->items[2].dump(), R"({"apiVersion":"v1","kind":"Pod","metadata":{"name":"c"}})");
  EXPECT_EQ(list->resource_version, "10");
  const std::string selectors = "labelSelector=a%3Db%2Cc%20in%20%28d%29&fieldSelector=x%21%3Dy&limit=2";
  EXPECT_EQ(request(0).query, selectors);
  EXPECT_EQ(request(1).query, selectors + "&continue=to%3Dken");
}

TEST_F(ClientByScript, items_are_handed_over_as_their_page_arrives) {
  transport_->then(200, page({"z"}, "5", "t"));
  transport_->then(410, failure(410, "Expired"));
  transport_->then(200, page({"a", "b"}, "7", "more"));
  transport_->then(200, page({"c"}, "8"));
  std::vector<size_t> pages_then;
  std::string names;
  const auto list = client().list(kPods, {.on_begin = [&] { names = "begin"; },
                                          .on_item =
                                              [&](const Json& item) {
                                                pages_then.push_back(transport_->requests.size());
                                                names += " " + item["metadata"]["name"].get<std::string>();
                                              }});
  ASSERT_TRUE(list.ok()) << list.error().message;
  EXPECT_THAT(pages_then, ElementsAre(1, 3, 3, 4));
  EXPECT_EQ(names, "begin a b c") << "the list has begun anew";
  EXPECT_TRUE(list->items.empty());
  EXPECT_EQ(list->resource_version, "8");
}

TEST_F(ClientByScript, a_continuation_that_is_too_old_begins_again_with_pages_ten_times_as_large) {
  transport_->then(200, page({"a"}, "10", "t"));
  transport_->then(410, failure(410, "Expired"));
  transport_->then(200, page({"b"}, "20", "t"));
  transport_->then(410, failure(410, "Expired"));
  transport_->then(200, page({"c", "d"}, "30"));
  const Result<ObjectList> list = client().list(kPods, {.page_size = 1});
  ASSERT_TRUE(list.ok()) << list.error().message;
  EXPECT_THAT(list->items, SizeIs(2)) << "nothing of the pages before";
  EXPECT_EQ(list->resource_version, "30");
  EXPECT_EQ(request(2).query, "limit=10");
  EXPECT_EQ(request(4).query, "limit=100");
  transport_->then(410, failure(410, "Expired"));
  transport_->then(410, failure(410, "Expired"));
  transport_->then(410, failure(410, "Expired"));
  EXPECT_EQ(client().list(kPods, {}).error().code, ErrorCode::kGone);
}

TEST_F(ClientByScript, a_page_with_too_many_bytes_is_asked_for_again_with_half_the_objects) {
  const Error too_large{ErrorCode::kCorrupt, "the answer is larger than 16777216 bytes", std::string(kReasonTooLarge)};
  transport_->then(200, page({"a"}, "10", "t"));
  transport_->then(too_large);
  transport_->then(too_large);
  transport_->then(200, page({"b"}, "10", "u"));
  transport_->then(200, page({"c"}, "10"));
  const Result<ObjectList> list = client().list(kPods, {});
  ASSERT_TRUE(list.ok()) << list.error().message;
  EXPECT_THAT(list->items, SizeIs(3));
  EXPECT_EQ(request(0).query, "limit=50");
  EXPECT_EQ(request(1).query, "limit=50&continue=t");
  EXPECT_EQ(request(2).query, "limit=25&continue=t");
  EXPECT_EQ(request(3).query, "limit=12&continue=t");
  EXPECT_EQ(request(4).query, "limit=12&continue=u");
  transport_->then(too_large);
  EXPECT_EQ(client().list(kPods, {.page_size = 1}).error().reason, kReasonTooLarge) << "one object cannot be halved";
}

TEST_F(ClientByScript, the_answer_to_a_write_is_bounded_as_any_object) {
  Json job = {{"metadata", {{"name", "x"}, {"namespace", "team-a"}}}};
  job["spec"]["trainer"]["podTemplate"] = Json::array();
  for (int i = 0; i < 30'000; ++i) job["spec"]["trainer"]["podTemplate"].push_back(Json::object());
  transport_->then(200, job.dump());
  const Result<Json> stored = client().update(kTrainJobs, job, "status");
  ASSERT_TRUE(stored.ok()) << stored.error().message;
  EXPECT_TRUE(stored->at("spec").at("trainer").is_string());
}

TEST_F(ClientByScript, an_empty_list_may_be_null_and_what_is_no_list_is_corrupt) {
  transport_->then(200, R"({"kind":"PodList","metadata":{"resourceVersion":"5"},"items":null})");
  EXPECT_THAT(client().list(kPods, {})->items, IsEmpty());
  for (const char* body :
       {"[]", "{}", R"({"metadata":{}})", R"({"metadata":{},"items":7})", R"({"metadata":[],"items":[]})",
        R"({"metadata":{},"items":[7]})", R"({"metadata":{},"items":[)", ""}) {
    transport_->then(200, body);
    EXPECT_EQ(client().list(kPods, {}).error().code, ErrorCode::kCorrupt) << body;
  }
  transport_->then(200, R"({"metadata":{"resourceVersion":7,"continue":[]},"items":[]})");
  EXPECT_EQ(client().list(kPods, {})->resource_version, "");
}

TEST_F(ClientByScript, a_page_that_fails_is_asked_for_again_alone) {
  transport_->then(200, page({"a"}, "10", "t"));
  transport_->then(500, failure(500, "InternalError"));
  transport_->then(200, page({"b"}, "10"));
  EXPECT_THAT(client().list(kPods, {})->items, SizeIs(2));
  EXPECT_EQ(request(1).query, request(2).query);
}

// --- watches ---

std::string event(const std::string& type, const std::string& version) {
  return Json({{"type", type},
               {"object", {{"kind", "Pod"}, {"metadata", {{"name", "x"}, {"resourceVersion", version}}}}}})
             .dump() +
         "\n";
}

TEST_F(ClientByScript, a_watch_asks_for_bookmarks_and_waits_longer_than_from_one_to_the_next) {
  transport_->then(HttpResponse{.status = 200},
                   {event("ADDED", "1") + event("BOOKMARK", "2").substr(0, 9), event("BOOKMARK", "2").substr(9)});
  std::vector<WatchEvent::Type> types;
  const Status end = client().watch(
      kPods, {.ns = "team-a", .label_selector = "a", .resource_version = "7", .server_timeout = seconds(290)},
      [&](const WatchEvent& e) { types.push_back(e.type); }, {});
  ASSERT_TRUE(end.ok()) << end.error().message;
  EXPECT_THAT(types, ElementsAre(WatchEvent::Type::kAdded, WatchEvent::Type::kBookmark));
  EXPECT_EQ(request(0).path, "/api/v1/namespaces/team-a/pods");
  EXPECT_EQ(request(0).query, "watch=1&allowWatchBookmarks=true&timeoutSeconds=290&labelSelector=a&resourceVersion=7");
  EXPECT_EQ(request(0).timeout, seconds(100));
  EXPECT_THAT(reports_, ElementsAre("watch pods 200"));
}

TEST_F(ClientByScript, a_watch_ends_as_its_reason_wants_it) {
  const auto watch = [&] { return client().watch(kPods, {}, [](const WatchEvent&) {}, {}); };
  const std::string expired = R"({"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}})";
  transport_->then(HttpResponse{.status = 200}, {event("ADDED", "1") + expired + "\n"});
  EXPECT_EQ(watch().error().code, ErrorCode::kGone);
  transport_->then(410, failure(410, "Expired"));
  EXPECT_EQ(watch().error().code, ErrorCode::kGone);
  transport_->then(HttpResponse{.status = 200}, {"rubbish\n"});
  EXPECT_EQ(watch().error().code, ErrorCode::kCorrupt);
  transport_->then(403, failure(403, "Forbidden", "no watching"));
  EXPECT_THAT(watch().error().message, HasSubstr("watch pods: 403 no watching"));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(client()
                .watch(
                    kPods, {}, [](const WatchEvent&) {}, stop.get_token())
                .error()
                .code,
            ErrorCode::kCancelled);
}

TEST_F(ClientByScript, a_watch_that_cannot_begin_is_tried_again) {
  transport_->then(Error{ErrorCode::kUnavailable, "refused", std::string(kReasonNotConnected)});
  transport_->then(429, failure(429, "TooManyRequests"), {{"retry-after", "1"}});
  transport_->then(HttpResponse{.status = 200}, {event("ADDED", "1")});
  int events = 0;
  EXPECT_TRUE(client().watch(kPods, {}, [&](const WatchEvent&) { ++events; }, {}).ok());
  EXPECT_EQ(events, 1);
  EXPECT_THAT(waits_, ElementsAre(milliseconds(50), milliseconds(1000)));
}

// --- failures ---

TEST_F(ClientByScript, refusals_keep_the_servers_words_and_its_reason) {
  transport_->then(409, failure(409, "AlreadyExists", "pods \"x\" already exists"));
  transport_->then(409, failure(409, "Conflict", "the object has been modified"));
  transport_->then(404, failure(404, "NotFound", "pods \"x\" not found"));
  const Error exists = client().create(kPods, pod("x")).error();
  EXPECT_EQ(exists.code, ErrorCode::kExists);
  EXPECT_EQ(exists.reason, "AlreadyExists");
  EXPECT_EQ(exists.message, "create pods team-a/x: 409 pods \"x\" already exists");
  const Error conflict = client().update(kPods, pod("x"), "status").error();
  EXPECT_EQ(conflict.code, ErrorCode::kConflict);
  EXPECT_THAT(conflict.message, StartsWith("update pods/status team-a/x: 409 "));
  EXPECT_EQ(client().remove(kPods, {"team-a", "x"}).error().code, ErrorCode::kNotFound);
  EXPECT_THAT(waits_, IsEmpty());
}

TEST_F(ClientByScript, a_storm_is_waited_through) {
  for (const int status : {500, 503, 502, 504, 429}) transport_->then(status, failure(status, ""));
  transport_->then(200, pod("x").dump());
  EXPECT_TRUE(client().get(kPods, {"team-a", "x"}).ok());
  EXPECT_THAT(waits_, ElementsAre(milliseconds(50), milliseconds(100), milliseconds(200), milliseconds(400),
                                  milliseconds(800)));
  EXPECT_THAT(reports_, ElementsAre("get pods 500", "get pods 503", "get pods 502", "get pods 504", "get pods 429",
                                    "get pods 200"));
}

TEST_F(ClientByScript, a_storm_that_does_not_end_is_given_back_to_the_caller) {
  for (int i = 0; i < 100; ++i) transport_->then(503, failure(503, "ServiceUnavailable"));
  const auto began = now_;
  const Error error = client().get(kPods, {"team-a", "x"}).error();
  EXPECT_EQ(error.code, ErrorCode::kRetry);
  EXPECT_EQ(error.reason, "ServiceUnavailable");
  EXPECT_LE(now_ - began, options_.retry_for);
  EXPECT_GT(now_ - began, options_.retry_for - kRetryMax);
}

TEST_F(ClientByScript, a_server_that_cannot_be_reached_is_a_case_for_later) {
  for (int i = 0; i < 100; ++i) transport_->then(Error{ErrorCode::kUnavailable, "https://a: refused", "NotConnected"});
  const Error error = client().create(kPods, pod("x")).error();
  EXPECT_EQ(error.code, ErrorCode::kRetry);
  EXPECT_EQ(error.message, "create pods team-a/x: https://a: refused");
  EXPECT_GT(transport_->requests.size(), 5U);
}

TEST_F(ClientByScript, refused_tls_is_not_waited_for) {
  transport_->then(Error{ErrorCode::kUnavailable, "expired", std::string(kReasonTlsRefused)});
  const Error error = client().get(kPods, {"team-a", "x"}).error();
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_EQ(error.reason, kReasonTlsRefused);
  EXPECT_THAT(transport_->requests, SizeIs(1));
}

TEST_F(ClientByScript, a_create_is_sent_again_only_when_the_server_did_nothing) {
  transport_->then(Error{ErrorCode::kUnavailable, "broke"});
  EXPECT_EQ(client().create(kPods, pod("x")).error().code, ErrorCode::kRetry);
  EXPECT_THAT(transport_->requests, SizeIs(1));
  transport_->then(500, failure(500, "InternalError"));
  EXPECT_EQ(client().create(kPods, pod("x")).error().code, ErrorCode::kRetry);
  EXPECT_THAT(transport_->requests, SizeIs(2));
  transport_->then(429, failure(429, "TooManyRequests"), {{"retry-after", "2"}});
  transport_->then(201, pod("x").dump());
  EXPECT_TRUE(client().create(kPods, pod("x")).ok());
  EXPECT_THAT(waits_, ElementsAre(seconds(2)));
}

TEST_F(ClientByScript, told_to_stop_ends_a_wait) {
  told_to_stop_ = true;
  transport_->then(503, failure(503, ""));
  EXPECT_EQ(client().get(kPods, {"team-a", "x"}).error().code, ErrorCode::kCancelled);
}

TEST_F(ClientByScript, half_a_json_is_corrupt) {
  transport_->then(200, R"({"kind":"Pod","metadata":{"na)");
  EXPECT_EQ(client().get(kPods, {"team-a", "x"}).error().code, ErrorCode::kCorrupt);
  transport_->then(200, "[]");
  EXPECT_EQ(client().get(kPods, {"team-a", "x"}).error().code, ErrorCode::kCorrupt);
}

// --- credentials ---

TEST_F(ClientByScript, the_token_is_asked_for_every_time_and_renewed_once_after_a_refusal) {
  std::string token = "one";
  int refused = 0;
  options_.bearer_token = [&]() -> Result<std::string> { return token; };
  options_.token_refused = [&] {
    ++refused;
    token = "two";
  };
  transport_->then(200, pod("x").dump());
  transport_->then(401, failure(401, "Unauthorized"));
  transport_->then(200, pod("x").dump());
  EXPECT_TRUE(client().get(kPods, {"team-a", "x"}).ok());
  EXPECT_TRUE(client().get(kPods, {"team-a", "x"}).ok());
  EXPECT_EQ(request(0).headers.at("Authorization"), "Bearer one");
  EXPECT_EQ(request(1).headers.at("Authorization"), "Bearer one");
  EXPECT_EQ(request(2).headers.at("Authorization"), "Bearer two");
  EXPECT_EQ(refused, 1);
  transport_->then(401, failure(401, "Unauthorized"));
  transport_->then(401, failure(401, "Unauthorized", "bad token"));
  const Error error = client().create(kPods, pod("x")).error();
  EXPECT_EQ(error.code, ErrorCode::kForbidden);
  EXPECT_EQ(error.reason, "Unauthorized");
  EXPECT_EQ(refused, 2);
}

TEST_F(ClientByScript, a_token_that_cannot_be_had_is_an_error_of_every_call) {
  options_.bearer_token = []() -> Result<std::string> { return Error{ErrorCode::kNotFound, "no token"}; };
  EXPECT_EQ(client().get(kPods, {"team-a", "x"}).error().message, "no token");
  const std::vector<Json> objects = {pod("x"), pod("y")};
  for (const auto& answer : client().send_all(creates_of(kPods, objects)))
    EXPECT_EQ(answer.error().message, "no token");
  EXPECT_THAT(transport_->requests, IsEmpty());
}

// --- rate ---

TEST_F(ClientByScript, requests_wait_for_their_turn) {
  options_.requests_per_second = 10.0;
  options_.burst = 2;
  for (int i = 0; i < 4; ++i) transport_->then(200, pod("x").dump());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(client().get(kPods, {"team-a", "x"}).ok());
  EXPECT_THAT(waits_, ElementsAre(milliseconds(100), milliseconds(100)));
}

TEST_F(ClientByScript, many_creates_go_as_the_rate_has_places) {
  options_.requests_per_second = 10.0;
  options_.burst = 6;
  options_.in_flight_max = 2;
  std::vector<Json> objects;
  for (int i = 0; i < 10; ++i) {
    objects.push_back(pod(std::to_string(i)));
    transport_->then(201, pod(std::to_string(i)).dump());
  }
  const auto answers = client().send_all(creates_of(kPods, objects));
  for (size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(*answers[i], objects[i]);
  using Round = ScriptedTransport::Round;
  EXPECT_THAT(transport_->rounds, ElementsAre(Round{6, 2}, Round{2, 2}, Round{2, 2}));
  EXPECT_THAT(waits_, ElementsAre(milliseconds(200), milliseconds(200)));
}

TEST_F(ClientByScript, of_many_creates_only_those_that_may_be_are_sent_again) {
  std::vector<Json> objects;
  for (int i = 0; i < 5; ++i) objects.push_back(pod(std::to_string(i)));
  transport_->then(201, pod("0").dump());
  transport_->then(429, failure(429, "TooManyRequests"), {{"retry-after", "1"}});
  transport_->then(409, failure(409, "AlreadyExists"));
  transport_->then(Error{ErrorCode::kUnavailable, "broke"});
  transport_->then(429, failure(429, "TooManyRequests"), {{"retry-after", "3"}});
  transport_->then(201, pod("1").dump());
  transport_->then(201, pod("4").dump());
  const auto answers = client().send_all(creates_of(kPods, objects));
  EXPECT_EQ(*answers[0], pod("0"));
  EXPECT_EQ(*answers[1], pod("1"));
  EXPECT_EQ(answers[2].error().code, ErrorCode::kExists);
  EXPECT_EQ(answers[3].error().code, ErrorCode::kRetry);
  EXPECT_EQ(*answers[4], pod("4"));
  EXPECT_THAT(waits_, ElementsAre(seconds(3)));
  EXPECT_THAT(reports_, SizeIs(7));
  EXPECT_TRUE(client().send_all({}).empty());
}

TEST_F(ClientByScript, requests_of_several_kinds_go_side_by_side) {
  const api::ObjectKey key{"team-a", "x"};
  const std::vector<Request> requests = {Get{kPods, key}, Create{kServices, pod("x"), {.strict_fields = true}},
                                         MergePatch{kPods, key, {{"a", 1}}}, Remove{kPods, key, {.uid = "u-1"}},
                                         Remove{kPods, key, {.uid = "u-2"}}};
  transport_->then(200, pod("x").dump());
  transport_->then(201, pod("x").dump());
  transport_->then(200, pod("x").dump());
  transport_->then(200, "as it was");
  transport_->then(409, failure(409, "Conflict"));
  const auto answers = client().send_all(requests);
  ASSERT_THAT(answers, SizeIs(5));
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(answers[i].ok()) << answers[i].error().message;
  EXPECT_EQ(answers[4].error().code, ErrorCode::kConflict);
  EXPECT_THAT(transport_->rounds, SizeIs(1));
  EXPECT_EQ(request(0).method + " " + request(0).path, "GET /api/v1/namespaces/team-a/pods/x");
  EXPECT_EQ(request(1).method + " " + request(1).path, "POST /api/v1/namespaces/team-a/services");
  EXPECT_THAT(request(1).query, HasSubstr("fieldValidation=Strict"));
  EXPECT_EQ(request(2).method + " " + request(2).body, R"(PATCH {"a":1})");
  EXPECT_EQ(request(3).method, "DELETE");
  EXPECT_THAT(request(3).body, HasSubstr(R"("preconditions":{"uid":"u-1"})"));
}

// retry_for is 10 s, and the last of them has waited 14 s for its turn.
TEST_F(ClientByScript, the_last_of_many_creates_has_as_long_to_be_tried_again_as_the_first) {
  options_.requests_per_second = 1.0;
  options_.burst = 1;
  options_.in_flight_max = 1;
  std::vector<Json> objects;
  for (int i = 0; i < 15; ++i) objects.push_back(pod(std::to_string(i)));
  for (int i = 0; i < 14; ++i) transport_->then(201, pod(std::to_string(i)).dump());
  transport_->then(429, failure(429, "TooManyRequests"), {{"retry-after", "1"}});
  transport_->then(201, pod("14").dump());
  const auto answers = client().send_all(creates_of(kPods, objects));
  ASSERT_TRUE(answers.back().ok()) << answers.back().error().message;
  EXPECT_EQ(*answers.back(), pod("14"));
}

TEST_F(ClientByScript, a_request_that_waited_for_its_turn_has_its_whole_time_to_be_tried_again) {
  options_.requests_per_second = 0.05;
  options_.burst = 1;
  transport_->then(200, pod("x").dump());
  transport_->then(503, failure(503, "ServiceUnavailable"));
  transport_->then(200, pod("y").dump());
  EXPECT_TRUE(client().get(kPods, {"team-a", "x"}).ok());
  EXPECT_TRUE(client().get(kPods, {"team-a", "y"}).ok());
}

TEST_F(ClientByScript, many_creates_end_when_told_to_stop) {
  const std::vector<Json> objects = {pod("0"), pod("1")};
  told_to_stop_ = true;
  transport_->then(201, pod("0").dump());
  transport_->then(429, failure(429, "TooManyRequests"), {{"retry-after", "1"}});
  const auto answers = client().send_all(creates_of(kPods, objects));
  EXPECT_TRUE(answers[0].ok());
  EXPECT_EQ(answers[1].error().code, ErrorCode::kCancelled);
}

// --- over real connections ---

class ClientOverHttp : public ::testing::Test {
 protected:
  std::unique_ptr<Client> client(const fake::HttpServer& server, ClientOptions options = {}) {
    Result<std::shared_ptr<HttpTransport>> transport = make_cpprest_transport({.url = server.url()});
    EXPECT_TRUE(transport.ok());
    transport_ = *transport;
    return std::make_unique<Client>(transport_, std::move(options));
  }
  std::shared_ptr<HttpTransport> transport_;
};

TEST_F(ClientOverHttp, ten_thousand_objects_come_in_pages) {
  constexpr int kAll = 10'000;
  fake::HttpServer server({}, [&](fake::Exchange& exchange) {
    const std::string& query = exchange.request().query;
    const size_t at = query.find("continue=");
    const int begin = at == std::string::npos ? 0 : std::stoi(query.substr(at + 9));
    std::vector<std::string> names;
    for (int i = begin; i < std::min(begin + 500, kAll); ++i) names.push_back("pod-" + std::to_string(i));
    exchange.answer(200, page(names, "77", begin + 500 < kAll ? std::to_string(begin + 500) : ""));
  });
  const Result<ObjectList> list = client(server)->list(kPods, {});
  ASSERT_TRUE(list.ok()) << list.error().message;
  ASSERT_THAT(list->items, SizeIs(kAll));
  EXPECT_EQ(list->items.back()["metadata"]["name"], "pod-9999");
  EXPECT_EQ(server.requests(), kAll / 500);
}

TEST_F(ClientOverHttp, two_hundred_creates_in_parallel_survive_a_server_that_pushes_back) {
  std::atomic<int> count{0};
  fake::HttpServer server({}, [&](fake::Exchange& exchange) {
    // Every fifth request is refused; by contract nothing was done then.
    if (++count % 5 == 0) return exchange.answer(429, failure(429, "TooManyRequests"), {{"Retry-After", "0"}});
    exchange.answer(201, exchange.request().body);
  });
  std::vector<Json> objects;
  for (int i = 0; i < 200; ++i) objects.push_back(pod("p-" + std::to_string(i)));
  std::atomic<int> refused{0};
  const auto answers = client(server, {.on_request =
                                           [&](const RequestReport& report) {
                                             refused += report.status == 429;
                                             EXPECT_GT(report.duration.count(), 0.0);
                                           }})
                           ->send_all(creates_of(kPods, objects));
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].ok()) << answers[i].error().message;
    EXPECT_EQ(*answers[i], objects[i]);
  }
  EXPECT_EQ(server.requests(), 200 + refused);
  EXPECT_GE(refused, 40);
}

TEST_F(ClientOverHttp, of_many_creates_none_is_begun_once_it_is_told_to_stop) {
  std::stop_source stop;
  fake::HttpServer server({}, [&](fake::Exchange& exchange) {
    stop.request_stop();
    exchange.answer(201, exchange.request().body);
  });
  std::vector<Json> objects;
  for (int i = 0; i < 100; ++i) objects.push_back(pod(std::to_string(i)));
  const auto answers =
      client(server, {.in_flight_max = 1, .stop = stop.get_token()})->send_all(creates_of(kPods, objects));
  EXPECT_TRUE(answers.front().ok());
  EXPECT_EQ(answers.back().error().code, ErrorCode::kCancelled);
  EXPECT_EQ(server.requests(), 1);
}

TEST_F(ClientOverHttp, an_idle_connection_that_the_server_closed_fails_no_call) {
  fake::HttpServer server({}, [&](fake::Exchange& exchange) { exchange.answer(201, exchange.request().body); });
  const auto over_http = client(server);
  for (int i = 0; i < 10; ++i) {
    const Result<Json> made = over_http->create(kPods, pod(std::to_string(i)));
    ASSERT_TRUE(made.ok()) << made.error().message;
    server.close_idle_connections();
  }
}

TEST_F(ClientOverHttp, a_quiet_watch_outlives_the_time_out_of_other_requests) {
  fake::Gate over;
  fake::HttpServer server({}, [&](fake::Exchange& exchange) {
    exchange.begin(200);
    over.wait(milliseconds(600));  // six times the time-out of a request
    exchange.chunk(event("ADDED", "1"));
    exchange.end();
  });
  int events = 0;
  const Status end = client(server, {.request_timeout = milliseconds(100)})
                         ->watch(kPods, {}, [&](const WatchEvent&) { ++events; }, {});
  EXPECT_TRUE(end.ok()) << end.error().message;
  EXPECT_EQ(events, 1);
}

// The reflector goes on from the last version after an end that is ok, and lists anew after none of its own errors.
TEST_F(ClientOverHttp, a_watch_that_falls_silent_has_ended_and_is_not_sent_again) {
  for (const bool is_silent_from_the_start : {true, false}) {
    fake::HttpServer server({}, [&](fake::Exchange& exchange) {
      exchange.begin(200);
      if (!is_silent_from_the_start) exchange.chunk(event("ADDED", "1"));
      exchange.wait_for_client_to_go();
    });
    int events = 0;
    const Status end =
        client(server, {})->watch(kPods, {.silence_max = seconds(2)}, [&](const WatchEvent&) { ++events; }, {});
    EXPECT_TRUE(end.ok()) << end.error().message;
    EXPECT_EQ(events, is_silent_from_the_start ? 0 : 1);
    EXPECT_EQ(server.requests(), 1);
  }
}

TEST_F(ClientOverHttp, a_stop_ends_a_wait_between_attempts_at_once) {
  fake::Gate asked;
  fake::HttpServer server({}, [&](fake::Exchange& exchange) {
    exchange.answer(429, failure(429, "TooManyRequests"), {{"Retry-After", "60"}});
    asked.open();
  });
  const auto never_ends = client(server, {.retry_for = std::chrono::minutes(10)});
  std::stop_source stop;
  auto end = std::async(std::launch::async, [&] {
    return never_ends->watch(
        kPods, {}, [](const WatchEvent&) {}, stop.get_token());
  });
  ASSERT_TRUE(asked.wait());
  stop.request_stop();
  EXPECT_EQ(end.get().error().code, ErrorCode::kCancelled);

  std::stop_source client_stop;
  const auto stopped = client(server, {.retry_for = std::chrono::minutes(10), .stop = client_stop.get_token()});
  auto got = std::async(std::launch::async, [&] { return stopped->get(kPods, {"a", "x"}); });
  client_stop.request_stop();
  EXPECT_EQ(got.get().error().code, ErrorCode::kCancelled);
}

TEST_F(ClientOverHttp, a_rotated_token_is_used_after_the_first_refusal) {
  const TemporaryFolder folder;
  folder.write("token", "old");
  auto now = std::chrono::steady_clock::now();
  TokenSource source({.token = "", .file = folder.path() + "/token", .now = [&] { return now; }});
  std::string valid = "Bearer old";
  fake::HttpServer server({}, [&](fake::Exchange& exchange) {
    const bool good = exchange.request().headers.at("authorization") == valid;
    exchange.answer(good ? 200 : 401, good ? pod("x").dump() : failure(401, "Unauthorized"));
  });
  const auto with_token =
      client(server, {.bearer_token = [&] { return source.token(); }, .token_refused = [&] { source.refuse(); }});
  EXPECT_TRUE(with_token->get(kPods, {"team-a", "x"}).ok());
  now += seconds(2);
  folder.write("token", "new");
  valid = "Bearer new";
  EXPECT_TRUE(with_token->get(kPods, {"team-a", "x"}).ok());
  EXPECT_EQ(server.requests(), 3);
}

}  // namespace
}  // namespace lockstep::kube
