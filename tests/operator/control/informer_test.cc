#include "operator/control/informer.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/operator/control/journal.h"
#include "tests/operator/control/memory_api_server.h"

namespace lockstep::control {
namespace {

const char* const kList = "GET /api/v1/pods";
const char* const kWatch = "WATCH /api/v1/pods";

Json pod(const std::string& name, const std::string& job = "x") {
  return {{"apiVersion", "v1"},
          {"kind", "Pod"},
          {"metadata", {{"namespace", "ns"}, {"name", name}, {"labels", {{"job", job}}}}}};
}

class InformerTest : public ::testing::Test {
 protected:
  // A clock on which every pause is over at once.
  static Now hurried_clock() {
    return [calls = std::make_shared<std::atomic<int>>(0)] {
      return Clock::time_point(std::chrono::minutes(10) * ++*calls);
    };
  }

  std::unique_ptr<Informer<Json>> informer(Informer<Json>::Options options = {}) {
    auto result = std::make_unique<Informer<Json>>(client_, kube::kPods, std::move(options));
    result->on_change([this](const Cache<Json>::Change& change) {
      const api::ObjectKey key = api::key_of(change.before ? *change.before : *change.after);
      journal_.write((!change.before ? "+" : !change.after ? "-" : "~") + key.name);
    });
    return result;
  }

  std::shared_ptr<MemoryApiServer> server_ = std::make_shared<MemoryApiServer>();
  kube::Client client_{server_, {.retry_for = std::chrono::milliseconds(0)}};
  Journal journal_;
};

TEST_F(InformerTest, fills_the_cache_and_tells_of_every_object_of_the_first_list) {
  server_->put(kube::kPods, pod("a"));
  server_->put(kube::kPods, pod("b"));
  const auto informer = this->informer();
  informer->start();
  ASSERT_TRUE(informer->wait_until_synced(kPatience));
  EXPECT_EQ(informer->cache().size(), 2U);
  ASSERT_TRUE(journal_.wait_for("+b"));
  EXPECT_EQ(journal_.lines(), (Journal::Lines{"+a", "+b"}));
}

TEST_F(InformerTest, follows_what_happens_on_the_server) {
  const auto informer = this->informer();
  informer->start();
  ASSERT_TRUE(server_->wait_for_watches(1));
  server_->put(kube::kPods, pod("a"));
  ASSERT_TRUE(journal_.wait_for("+a"));
  server_->put(kube::kPods, pod("a"));
  ASSERT_TRUE(journal_.wait_for("~a"));
  EXPECT_EQ(*informer->cache().get({"ns", "a"}), *server_->get(kube::kPods, {"ns", "a"}));
  server_->remove(kube::kPods, {"ns", "a"});
  ASSERT_TRUE(journal_.wait_for("-a"));
  EXPECT_EQ(informer->cache().size(), 0U);
}

TEST_F(InformerTest, a_watch_that_is_cut_goes_on_where_it_was) {
  const auto informer = this->informer();
  informer->start();
  for (int i = 1; i <= 20; ++i) {
    ASSERT_TRUE(server_->wait_for_watches(1));
    server_->put(kube::kPods, pod("p" + std::to_string(i)));
    server_->cut_watches();
    ASSERT_TRUE(journal_.wait_for("+p" + std::to_string(i)));
  }
  EXPECT_EQ(server_->count(kList), 1);
  EXPECT_EQ(journal_.lines().size(), 20U) << "nothing is told twice";
}

TEST_F(InformerTest, lists_again_when_its_version_is_gone_and_tells_what_differs) {
  server_->put(kube::kPods, pod("a"));
  server_->put(kube::kPods, pod("b"));
  Journal problems;
  const auto informer =
      this->informer({.on_problem = [&](const ReflectorProblem& problem) { problems.write(problem.reason); }});
  // At the first watch, the server's objects change and the informer's version is compacted.
  std::atomic<bool> away{true};
  server_->intercept([&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (request.query.find("watch=1") == std::string::npos || !away.exchange(false)) return std::nullopt;
    server_->remove(kube::kPods, {"ns", "a"});
    server_->put(kube::kPods, pod("c"));
    server_->compact();
    return std::nullopt;
  });
  informer->start();
  ASSERT_TRUE(journal_.wait_for("+c"));
  EXPECT_EQ(journal_.lines(), (Journal::Lines{"+a", "+b", "-a", "+c"}));
  EXPECT_EQ(server_->count(kList), 2);
  EXPECT_EQ(problems.lines(), Journal::Lines{"Gone"});
}

TEST_F(InformerTest, a_bookmark_saves_it_from_listing_again) {
  const auto informer = this->informer();
  informer->start();
  ASSERT_TRUE(server_->wait_for_watches(1));
  server_->put(kube::kNodes, {{"metadata", {{"name", "other"}}}});
  server_->compact();
  server_->send_bookmarks();
  server_->cut_watches();
  server_->put(kube::kPods, pod("b"));
  ASSERT_TRUE(journal_.wait_for("+b"));
  EXPECT_EQ(server_->count(kList), 1);
}

TEST_F(InformerTest, asks_until_the_server_answers_and_says_what_is_wrong) {
  server_->put(kube::kPods, pod("a"));
  std::atomic<int> refusals{3};
  server_->intercept([&](const kube::HttpRequest&) -> std::optional<Result<kube::HttpResponse>> {
    if (refusals-- <= 0) return std::nullopt;
    return MemoryApiServer::status(403, "Forbidden", "pods is forbidden");
  });
  Journal lines;
  Logger logger({.sink = [&](const std::string& line) { lines.write(line); }});
  const auto informer = this->informer({.logger = logger, .now = hurried_clock()});
  EXPECT_FALSE(informer->cache().synced());
  informer->start();
  ASSERT_TRUE(informer->wait_until_synced(kPatience));
  const Journal::Lines said = lines.lines();
  ASSERT_EQ(said.size(), 3U);
  EXPECT_NE(said[0].find("pods is forbidden"), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("\"reason\":\"ListFailed\""), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("\"resource\":\"pods\""), std::string::npos) << said[0];
}

TEST_F(InformerTest, an_answer_that_is_no_list_is_asked_for_again) {
  std::atomic<bool> once{true};
  const auto informer = this->informer({.now = hurried_clock()});
  server_->intercept([&](const kube::HttpRequest&) -> std::optional<Result<kube::HttpResponse>> {
    if (!once.exchange(false)) return std::nullopt;
    return kube::HttpResponse{.status = 200, .headers = {}, .body = "<html>"};
  });
  server_->put(kube::kPods, pod("a"));
  informer->start();
  ASSERT_TRUE(informer->wait_until_synced(kPatience));
  EXPECT_EQ(server_->count(kList), 2);
}

TEST_F(InformerTest, a_frame_that_cannot_be_read_means_a_new_list) {
  Journal problems;
  const auto informer =
      this->informer({.on_problem = [&](const ReflectorProblem& problem) { problems.write(problem.reason); }});
  informer->start();
  ASSERT_TRUE(server_->wait_for_watches(1));
  server_->send_to_watches("{\"type\":\"ADDED\",\n");
  ASSERT_TRUE(problems.wait_for("Corrupt"));
  server_->put(kube::kPods, pod("a"));
  ASSERT_TRUE(journal_.wait_for("+a"));
  EXPECT_EQ(server_->count(kList), 2);
}

TEST_F(InformerTest, an_object_that_leaves_the_selection_is_gone) {
  server_->put(kube::kPods, pod("a", "x"));
  server_->put(kube::kPods, pod("b", "y"));
  const auto informer = this->informer({.ns = "ns", .label_selector = "job=x"});
  informer->start();
  ASSERT_TRUE(journal_.wait_for("+a"));
  ASSERT_TRUE(server_->wait_for_watches(1));
  server_->put(kube::kPods, pod("a", "y"));
  server_->put(kube::kPods, pod("b", "x"));
  ASSERT_TRUE(journal_.wait_for("+b"));
  EXPECT_EQ(journal_.lines(), (Journal::Lines{"+a", "-a", "+b"}));
}

TEST_F(InformerTest, trims_and_indexes_what_it_keeps) {
  const auto informer = this->informer(
      {.read =
           [](Json object) {
             object.erase("spec");
             return object;
           },
       .index = [](const Json& object) { return std::vector<std::string>{object["metadata"]["labels"]["job"]}; }});
  Json big = pod("a", "x");
  big["spec"]["bulk"] = std::string(1000, 'x');
  server_->put(kube::kPods, big);
  informer->start();
  ASSERT_TRUE(informer->wait_until_synced(kPatience));
  ASSERT_EQ(informer->cache().find("x").size(), 1U);
  EXPECT_FALSE(informer->cache().find("x").front()->contains("spec"));
}

TEST_F(InformerTest, is_not_synced_before_a_list_has_arrived) {
  server_->hold();
  const auto informer = this->informer();
  informer->start();
  ASSERT_TRUE(server_->wait_for_held(1));
  EXPECT_FALSE(informer->wait_until_synced(std::chrono::milliseconds(1)));
  server_->release();
  EXPECT_TRUE(informer->wait_until_synced(kPatience));
}

TEST_F(InformerTest, stopping_ends_a_quiet_watch_and_leaves_the_cache) {
  server_->put(kube::kPods, pod("a"));
  const auto informer = this->informer();
  informer->start();
  ASSERT_TRUE(server_->wait_for_watches(1));
  informer->stop_and_join();
  EXPECT_TRUE(server_->wait_for_watches(0));
  EXPECT_EQ(informer->cache().size(), 1U);
  EXPECT_EQ(server_->count(kWatch), 1);
}

TEST_F(InformerTest, stopping_ends_a_pause) {
  server_->intercept([](const kube::HttpRequest&) -> std::optional<Result<kube::HttpResponse>> {
    return Error{ErrorCode::kUnavailable, "no route"};
  });
  Journal problems;
  // Pauses of a minute: only being told to stop ends them in time.
  const auto informer =
      this->informer({.on_problem = [&](const ReflectorProblem& problem) { problems.write(problem.reason); },
                      .random = [] { return 75.0; }});
  informer->start();
  ASSERT_TRUE(problems.wait_for("ListFailed"));
  const Clock::time_point began = Clock::now();
  informer->stop_and_join();
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(30));
}

TEST_F(InformerTest, one_that_was_never_started_can_be_destroyed) {
  const auto informer = this->informer();
  EXPECT_FALSE(informer->wait_until_synced(std::chrono::milliseconds(1)));
}

}  // namespace
}  // namespace lockstep::control
