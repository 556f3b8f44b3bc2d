#include "operator/control/optional_informer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "tests/operator/control/journal.h"
#include "tests/operator/control/memory_api_server.h"

namespace lockstep::control {
namespace {

const kube::Resource kNew{"gang.example", "v2", "groups", "Group"};
const kube::Resource kOld{"gang.example", "v1", "groups", "Group"};

Json group(const kube::Resource& resource, const std::string& name) {
  return {{"apiVersion", resource.api_version()},
          {"kind", resource.kind},
          {"metadata", {{"namespace", "ns"}, {"name", name}}}};
}

// A server on which kinds come and go.
class OptionalInformerTest : public ::testing::Test {
 protected:
  OptionalInformerTest() {
    server_->intercept([this](const kube::HttpRequest& request) { return answer(request); });
  }

  std::optional<Result<kube::HttpResponse>> answer(const kube::HttpRequest& request) {
    const std::lock_guard lock(mutex_);
    if (is_forbidden_ && request.path.find("/groups") != std::string::npos) {
      return MemoryApiServer::status(403, "Forbidden", "groups is forbidden");
    }
    if (is_away_) return MemoryApiServer::status(500, "InternalError", "etcd has no leader");
    for (const kube::Resource* resource : {&kNew, &kOld}) {
      const std::string path = kube::group_path(*resource);
      if (request.path.rfind(path, 0) != 0) continue;
      if (served_.count(resource->version) == 0) return MemoryApiServer::status(404, "NotFound", "no such thing");
      if (request.path != path) return std::nullopt;
      const Json document{{"kind", "APIResourceList"}, {"resources", Json::array({{{"name", resource->plural}}})}};
      return kube::HttpResponse{.status = 200, .headers = {}, .body = document.dump()};
    }
    return std::nullopt;
  }

  template <typename Change>
  void change_server(Change change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    server_->cut_watches();
  }
  void serve(const std::set<std::string>& versions) {
    change_server([&] { served_ = versions; });
  }

  void start() {
    kind_ = std::make_unique<OptionalInformer>(
        client_, OptionalInformer::Options{
                     .versions = {kNew, kOld},
                     // A clock on which every pause of the informer is over at once.
                     .informer = {.now = [calls = std::make_shared<std::atomic<int>>(
                                              0)] { return Clock::time_point(std::chrono::minutes(10) * ++*calls); }},
                     .poll_every = std::chrono::milliseconds(1),
                     .on_kind_change = [this] { journal_.write(state()); }});
    kind_->on_change([this](const Cache<Json>::Change& change) {
      const api::ObjectKey key = api::key_of(change.before ? *change.before : *change.after);
      EXPECT_NE(kind_->wanted().cache, nullptr) << "whoever hears of an object can read it";
      journal_.write((!change.before ? "+" : !change.after ? "-" : "~") + key.name);
    });
    kind_->start();
  }

  std::string state() {
    const OptionalInformer::Kind kind = kind_->wanted();
    if (!kind.trouble.empty()) return "trouble: " + kind.trouble;
    if (!kind.is_known) return "not known";
    if (kind.resource == nullptr) return "none";
    return kind.resource->version + " with " + std::to_string(kind.cache->size());
  }

  std::mutex mutex_;
  std::set<std::string> served_;  // protected by mutex_, as the following
  bool is_forbidden_ = false;
  bool is_away_ = false;
  std::shared_ptr<MemoryApiServer> server_ = std::make_shared<MemoryApiServer>();
  kube::Client client_{server_, {.retry_for = std::chrono::milliseconds(0)}};
  Journal journal_;
  std::unique_ptr<OptionalInformer> kind_;
};

TEST_F(OptionalInformerTest, asks_for_nothing_before_somebody_wants_the_kind) {
  serve({"v1"});
  start();
  kind_->stop_and_join();
  EXPECT_TRUE(server_->requests().empty());
}

TEST_F(OptionalInformerTest, a_kind_that_the_cluster_lacks_is_found_when_it_is_installed) {
  start();
  EXPECT_EQ(state(), "not known");
  ASSERT_TRUE(journal_.wait_for("none"));
  server_->put(kOld, group(kOld, "a"));
  serve({"v1"});
  ASSERT_TRUE(journal_.wait_for("+a"));
  EXPECT_EQ(journal_.lines(), (Journal::Lines{"none", "v1 with 1", "+a"}));
}

TEST_F(OptionalInformerTest, the_best_version_is_taken) {
  serve({"v1", "v2"});
  start();
  EXPECT_EQ(state(), "not known");
  ASSERT_TRUE(journal_.wait_for("v2 with 0"));
  EXPECT_EQ(server_->count("GET /apis/gang.example/v1"), 0);
}

TEST_F(OptionalInformerTest, follows_the_kind_s_objects) {
  serve({"v2"});
  start();
  state();
  ASSERT_TRUE(journal_.wait_for("v2 with 0"));
  server_->put(kNew, group(kNew, "a"));
  ASSERT_TRUE(journal_.wait_for("+a"));
  server_->remove(kNew, {"ns", "a"});
  ASSERT_TRUE(journal_.wait_for("-a"));
}

TEST_F(OptionalInformerTest, a_kind_that_is_removed_is_gone_and_may_come_again_in_another_version) {
  server_->put(kOld, group(kOld, "a"));
  serve({"v1"});
  start();
  state();
  ASSERT_TRUE(journal_.wait_for("v1 with 1"));
  const std::shared_ptr<Cache<Json>> held = kind_->wanted().cache;
  ASSERT_TRUE(server_->wait_for_watches(1));  // a watch that opens after the cut would stay open
  serve({});
  ASSERT_TRUE(journal_.wait_for("none"));
  EXPECT_EQ(held->size(), 1U) << "whoever holds the cache may go on reading it";
  serve({"v2"});
  ASSERT_TRUE(journal_.wait_for("v2 with 0"));
}

TEST_F(OptionalInformerTest, says_why_it_may_not_list_and_goes_on_when_it_may) {
  serve({"v2"});
  is_forbidden_ = true;
  start();
  state();
  const auto says_why = [](const Journal::Lines& lines) {
    return !lines.empty() && lines.back().find("trouble: the list failed: ") == 0 &&
           lines.back().find("groups is forbidden") != std::string::npos;
  };
  ASSERT_TRUE(journal_.wait_until(says_why));
  change_server([this] { is_forbidden_ = false; });
  ASSERT_TRUE(journal_.wait_for("v2 with 0"));
}

TEST_F(OptionalInformerTest, the_same_trouble_is_reported_once_however_long_the_next_list_waits) {
  serve({"v2"});
  is_forbidden_ = true;
  start();
  state();
  ASSERT_TRUE(server_->wait_until(
      [](const MemoryApiServer& server) { return server.count("GET /apis/gang.example/v2/groups") >= 4; }));
  EXPECT_EQ(journal_.lines().size(), 1U) << journal_.lines().back();
}

TEST_F(OptionalInformerTest, a_server_in_trouble_is_no_proof_that_the_kind_is_gone) {
  server_->put(kNew, group(kNew, "a"));
  serve({"v2"});
  start();
  state();
  ASSERT_TRUE(journal_.wait_for("v2 with 1"));
  ASSERT_TRUE(server_->wait_for_watches(1));  // a watch that opens after the cut would stay open
  const int watches = server_->count("WATCH /apis/gang.example/v2/groups");
  change_server([this] { is_away_ = true; });
  ASSERT_TRUE(server_->wait_until(
      [&](const MemoryApiServer& server) { return server.count("WATCH /apis/gang.example/v2/groups") > watches; }));
  EXPECT_EQ(state(), "v2 with 1");
  change_server([this] { is_away_ = false; });
  server_->put(kNew, group(kNew, "b"));
  ASSERT_TRUE(journal_.wait_for("+b"));
  EXPECT_EQ(state(), "v2 with 2");
}

TEST_F(OptionalInformerTest, stopping_ends_every_wait) {
  start();
  state();
  ASSERT_TRUE(journal_.wait_for("none"));
  kind_->stop_and_join();
  serve({"v2"});
  start();
  state();
  ASSERT_TRUE(journal_.wait_for("v2 with 0"));
  kind_->stop_and_join();
  EXPECT_TRUE(server_->wait_for_watches(0));
}

}  // namespace
}  // namespace lockstep::control
