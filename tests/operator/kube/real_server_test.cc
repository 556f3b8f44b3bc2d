// The client against a real kube-apiserver: it answers as the scripted tests assume.
//   kube_real_server_test --kubeconfig FILE --namespace NS
// tests/cluster/test_kube_client.py starts the server and runs this; the namespace must exist and is filled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <iostream>
#include <thread>

#include "operator/kube/api_error.h"
#include "operator/kube/client.h"
#include "operator/kube/cpprest_transport.h"
#include "operator/kube/kube_config.h"
#include "tests/operator/kube/creates_of.h"

namespace lockstep::kube {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string the_kubeconfig;
std::string the_namespace;

const Resource kConfigMaps{"", "v1", "configmaps", "ConfigMap"};
const Resource kNamespaces{"", "v1", "namespaces", "Namespace", false};
const Resource kQuotas{"", "v1", "resourcequotas", "ResourceQuota"};

class RealServer : public ::testing::Test {
 protected:
  RealServer() {
    Result<ServerAccess> access = load_kube_config(the_kubeconfig, "");
    LOCKSTEP_CHECK(access.ok(), access.ok() ? "" : access.error().message.c_str());
    Result<std::shared_ptr<HttpTransport>> transport = make_cpprest_transport({.url = access->url, .tls = access->tls});
    LOCKSTEP_CHECK(transport.ok(), transport.ok() ? "" : transport.error().message.c_str());
    transport_ = *transport;
    client_ = std::make_unique<Client>(transport_, ClientOptions{});
  }

  static Json config_map(const std::string& name, const Json& data = Json::object()) {
    return {{"apiVersion", "v1"},
            {"kind", "ConfigMap"},
            {"metadata", {{"name", name}, {"namespace", the_namespace}, {"labels", {{"test", label()}}}}},
            {"data", data}};
  }
  static Json pod(const std::string& name) {
    return {{"apiVersion", "v1"},
            {"kind", "Pod"},
            {"metadata", {{"name", name}, {"namespace", the_namespace}}},
            {"spec", {{"containers", {{{"name", "main"}, {"image", "example/image"}}}}}}};
  }
  // Tells the objects of one test from the others'; a label's value has 63 characters.
  static std::string label() {
    return std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()).substr(0, 63);
  }
  static ListOptions mine(int page_size = 500) {
    return {.ns = the_namespace, .label_selector = "test=" + label(), .page_size = page_size};
  }
  template <typename T>
  static Error error_of(const Result<T>& result) {
    EXPECT_FALSE(result.ok());
    return result.ok() ? Error{} : result.error();
  }

  std::shared_ptr<HttpTransport> transport_;
  std::unique_ptr<Client> client_;
};

TEST_F(RealServer, it_says_what_it_serves) {
  EXPECT_TRUE(*client_->serves(kTrainJobs));
  EXPECT_TRUE(*client_->serves(kLeases));
  EXPECT_FALSE(*client_->serves({"lockstep.dev", "v1", "others", "Other"}));
  EXPECT_FALSE(*client_->serves({"nobody.example.com", "v1", "others", "Other"}));
}

TEST_F(RealServer, an_object_is_made_read_changed_and_removed) {
  const api::ObjectKey key{the_namespace, "one"};
  EXPECT_EQ(error_of(client_->get(kConfigMaps, key)).code, ErrorCode::kNotFound);
  const Result<Json> made = client_->create(kConfigMaps, config_map("one", {{"a", "1"}}));
  ASSERT_TRUE(made.ok()) << made.error().message;
  const api::ObjectMeta meta = api::meta_of(*made);
  EXPECT_FALSE(meta.uid.empty());

  const Error again = error_of(client_->create(kConfigMaps, config_map("one")));
  EXPECT_EQ(again.code, ErrorCode::kExists);
  EXPECT_EQ(again.reason, kReasonAlreadyExists);
  EXPECT_EQ(again.message, "create configmaps " + the_namespace + "/one: 409 configmaps \"one\" already exists");

  const Result<Json> patched = client_->merge_patch(
      kConfigMaps, key,
      {{"metadata", {{"resourceVersion", meta.resource_version}}}, {"data", {{"a", nullptr}, {"b", "2"}}}});
  ASSERT_TRUE(patched.ok()) << patched.error().message;
  EXPECT_EQ(patched->at("data").dump(), R"({"b":"2"})");
  const Error stale = error_of(client_->merge_patch(
      kConfigMaps, key, {{"metadata", {{"resourceVersion", meta.resource_version}}}, {"data", {{"c", "3"}}}}));
  EXPECT_EQ(stale.code, ErrorCode::kConflict);
  EXPECT_EQ(stale.reason, "Conflict");

  Json replaced = *patched;
  replaced["data"] = {{"d", "4"}};
  EXPECT_TRUE(client_->update(kConfigMaps, replaced).ok());
  EXPECT_EQ(error_of(client_->update(kConfigMaps, replaced)).code, ErrorCode::kConflict);
  EXPECT_EQ(client_->get(kConfigMaps, key)->at("data").dump(), R"({"d":"4"})");

  const Error other = error_of(Result<Unit>(error_of(client_->remove(kConfigMaps, key, {.uid = "somebody-else"}))));
  EXPECT_EQ(other.code, ErrorCode::kConflict);
  EXPECT_TRUE(client_->remove(kConfigMaps, key, {.uid = meta.uid}).ok());
  EXPECT_EQ(client_->remove(kConfigMaps, key).error().code, ErrorCode::kNotFound);
}

TEST_F(RealServer, apply_owns_its_fields_and_changes_nothing_the_second_time) {
  const Result<Json> first = client_->apply(kConfigMaps, config_map("applied", {{"a", "1"}}));
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(first->at("metadata").at("managedFields").at(0).at("manager"), kFieldManager);
  EXPECT_EQ(first->at("metadata").at("managedFields").at(0).at("operation"), "Apply");
  const Result<Json> second = client_->apply(kConfigMaps, config_map("applied", {{"a", "1"}}));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(api::meta_of(*second).resource_version, api::meta_of(*first).resource_version);
  // A field that is not applied any more is removed.
  EXPECT_EQ(client_->apply(kConfigMaps, config_map("applied", {{"b", "1"}}))->at("data").dump(), R"({"b":"1"})");
  EXPECT_EQ(client_->get(kConfigMaps, {the_namespace, "applied"})->at("data").dump(), R"({"b":"1"})");
}

TEST_F(RealServer, a_strict_create_names_the_wrong_field) {
  Json wrong = pod("strict");
  wrong["spec"]["containers"][0]["imagee"] = "x";
  const Error unknown = error_of(client_->create(kPods, wrong, {.strict_fields = true}));
  EXPECT_EQ(unknown.code, ErrorCode::kInvalid);
  EXPECT_THAT(unknown.message, HasSubstr("unknown field \"spec.containers[0].imagee\""));
  Json invalid = pod("strict");
  invalid["spec"]["containers"][0]["ports"] = {{{"containerPort", 0}}};
  const Error refused = error_of(client_->create(kPods, invalid, {.strict_fields = true}));
  EXPECT_EQ(refused.code, ErrorCode::kInvalid);
  EXPECT_EQ(refused.reason, kReasonInvalidObject);
  EXPECT_THAT(refused.message, HasSubstr("spec.containers[0].ports[0].containerPort"));
  EXPECT_EQ(error_of(client_->get(kPods, {the_namespace, "strict"})).code, ErrorCode::kNotFound);
  EXPECT_TRUE(client_->create(kPods, pod("strict"), {.strict_fields = true}).ok());
  EXPECT_TRUE(client_->remove(kPods, {the_namespace, "strict"}).ok());
}

TEST_F(RealServer, what_is_too_large_is_invalid) {
  const Error error = error_of(client_->create(kConfigMaps, config_map("large", {{"a", std::string(4 << 20, 'x')}})));
  EXPECT_EQ(error.code, ErrorCode::kInvalid);
}

TEST_F(RealServer, a_namespace_that_is_missing_or_being_deleted_is_told_apart) {
  const std::string name = the_namespace + "-x";
  Json object = config_map("in-it");
  object["metadata"]["namespace"] = name;
  const Error missing = error_of(client_->create(kConfigMaps, object));
  EXPECT_EQ(missing.code, ErrorCode::kNotFound);
  ASSERT_TRUE(
      client_->create(kNamespaces, {{"apiVersion", "v1"}, {"kind", "Namespace"}, {"metadata", {{"name", name}}}}).ok());
  Json held = object;
  held["metadata"]["finalizers"] = {"lockstep.dev/test"};
  ASSERT_TRUE(client_->create(kConfigMaps, held).ok());
  ASSERT_TRUE(client_->remove(kNamespaces, {"", name}).ok());
  object["metadata"]["name"] = "too-late";
  const Error late = error_of(client_->create(kConfigMaps, object));
  EXPECT_EQ(late.code, ErrorCode::kForbidden);
  EXPECT_EQ(late.reason, kReasonNamespaceTerminating) << late.message;
  EXPECT_TRUE(client_->merge_patch(kConfigMaps, {name, "in-it"}, {{"metadata", {{"finalizers", nullptr}}}}).ok());
}

TEST_F(RealServer, an_exceeded_quota_is_told_apart) {
  const std::string name = the_namespace + "-q";
  ASSERT_TRUE(
      client_->create(kNamespaces, {{"apiVersion", "v1"}, {"kind", "Namespace"}, {"metadata", {{"name", name}}}}).ok());
  Json quota = {{"apiVersion", "v1"},
                {"kind", "ResourceQuota"},
                {"metadata", {{"name", "few"}, {"namespace", name}}},
                {"spec", {{"hard", {{"count/leases.coordination.k8s.io", "0"}}}}}};
  ASSERT_TRUE(client_->create(kQuotas, quota).ok());
  const auto create_lease = [&](int number) {
    return client_->create(kLeases, {{"apiVersion", "coordination.k8s.io/v1"},
                                     {"kind", "Lease"},
                                     {"metadata", {{"name", "l-" + std::to_string(number)}, {"namespace", name}}},
                                     {"spec", Json::object()}});
  };
  // The quota counts once its controller and the API server have seen it; until then it lets pass, or refuses in other
  // words.
  int number = 0;
  Result<Json> made = create_lease(number);
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  while ((made.ok() || made.error().reason != kReasonExceededQuota) && std::chrono::steady_clock::now() < deadline) {
    made = create_lease(++number);
  }
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().reason, kReasonExceededQuota) << made.error().message;
  EXPECT_EQ(made.error().code, ErrorCode::kForbidden);
  EXPECT_TRUE(client_->remove(kNamespaces, {"", name}).ok());
}

TEST_F(RealServer, many_are_created_in_parallel_and_listed_in_pages) {
  constexpr size_t kMany = 500;
  std::vector<Json> objects;
  for (size_t i = 0; i < kMany; ++i) objects.push_back(config_map("many-" + std::to_string(i)));
  const auto begin = std::chrono::steady_clock::now();
  const auto made = client_->send_all(creates_of(kConfigMaps, objects));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (size_t i = 0; i < kMany; ++i) {
    ASSERT_TRUE(made[i].ok()) << made[i].error().message;
    EXPECT_EQ(api::key_of(*made[i]).name, "many-" + std::to_string(i));
  }
  std::cout << kMany << " creates in " << took.count() << " s: " << kMany / took.count() << " per second\n";

  for (const int page_size : {7, 50, 500}) {
    const Result<ObjectList> list = client_->list(kConfigMaps, mine(page_size));
    ASSERT_TRUE(list.ok()) << list.error().message;
    EXPECT_THAT(list->items, SizeIs(kMany));
    EXPECT_EQ(list->items.front().at("kind"), "ConfigMap");
  }
}

TEST_F(RealServer, a_watch_tells_what_happens_in_order_and_ends_with_a_bookmark) {
  constexpr seconds kLife{15};  // of the watch: three writes on a busy machine
  const Result<ObjectList> list = client_->list(kConfigMaps, mine());
  ASSERT_TRUE(list.ok());
  std::vector<std::string> seen;
  std::promise<void> first;
  auto end = std::async(std::launch::async, [&] {
    return client_->watch(
        kConfigMaps,
        {.ns = the_namespace,
         .label_selector = "test=" + label(),
         .resource_version = list->resource_version,
         .server_timeout = kLife},
        [&](const WatchEvent& event) {
          seen.push_back(std::to_string(static_cast<int>(event.type)) + " " + api::key_of(event.object).name);
          if (seen.size() == 1) first.set_value();
        },
        {});
  });
  ASSERT_TRUE(client_->create(kConfigMaps, config_map("watched")).ok());
  // The server has a bookmark to give only when something has come since the watch began.
  ASSERT_EQ(first.get_future().wait_for(kLife), std::future_status::ready);
  ASSERT_TRUE(client_->merge_patch(kConfigMaps, {the_namespace, "watched"}, {{"data", {{"a", "b"}}}}).ok());
  ASSERT_TRUE(client_->remove(kConfigMaps, {the_namespace, "watched"}).ok());
  const Status ended = end.get();
  ASSERT_TRUE(ended.ok()) << ended.error().message;
  ASSERT_GE(seen.size(), 3U);
  EXPECT_EQ(seen[0], "0 watched");
  EXPECT_EQ(seen[1], "1 watched");
  EXPECT_EQ(seen[2], "2 watched");
  // The server ends a watch that has a bookmark to give with one.
  EXPECT_EQ(seen.back(), "3 ");
}

TEST_F(RealServer, a_watch_is_stopped_at_once) {
  std::stop_source stop;
  auto end = std::async(std::launch::async, [&] {
    return client_->watch(
        kConfigMaps, {.ns = the_namespace}, [&](const WatchEvent&) { stop.request_stop(); }, stop.get_token());
  });
  EXPECT_EQ(end.get().error().code, ErrorCode::kCancelled);
}

TEST_F(RealServer, a_change_reaches_a_watch_quickly) {
  const Result<ObjectList> list = client_->list(kConfigMaps, mine());
  ASSERT_TRUE(list.ok());
  std::vector<double> delays_ms;
  std::atomic<std::chrono::steady_clock::time_point> sent{};
  std::stop_source stop;
  std::promise<void> made;
  std::atomic<int> seen{0};
  auto watching = std::async(std::launch::async, [&] {
    return client_->watch(
        kConfigMaps,
        {.ns = the_namespace, .label_selector = "test=" + label(), .resource_version = list->resource_version},
        [&](const WatchEvent& event) {
          if (event.type == WatchEvent::Type::kBookmark) return;
          delays_ms.push_back(
              std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - sent.load()).count());
          ++seen;
        },
        stop.get_token());
  });
  for (int i = 0; i < 50; ++i) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(60);
    sent = std::chrono::steady_clock::now();
    ASSERT_TRUE(client_->apply(kConfigMaps, config_map("changing", {{"i", std::to_string(i)}})).ok());
    while (seen <= i && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    ASSERT_EQ(seen, i + 1);
  }
  stop.request_stop();
  EXPECT_EQ(watching.get().error().code, ErrorCode::kCancelled);
  std::sort(delays_ms.begin(), delays_ms.end());
  std::cout << "from sending an apply to its event: median " << delays_ms[delays_ms.size() / 2] << " ms, last "
            << delays_ms.back() << " ms\n";
}

}  // namespace

int run(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) == "--kubeconfig") the_kubeconfig = argv[i + 1];
    if (std::string_view(argv[i]) == "--namespace") the_namespace = argv[i + 1];
  }
  if (the_kubeconfig.empty() || the_namespace.empty()) {
    std::cerr << "usage: kube_real_server_test --kubeconfig FILE --namespace NS\n";
    return 2;
  }
  return RUN_ALL_TESTS();
}

}  // namespace lockstep::kube

int main(int argc, char** argv) { return lockstep::kube::run(argc, argv); }
