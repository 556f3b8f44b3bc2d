// The reconciler against an API server in memory: what it asks, in which order, and what comes of refusals, lost races
// and its own death. The decisions themselves are the golden cases'.
#include "operator/train/reconciler.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>

#include "operator/train/object_names.h"
#include "operator/train/trim.h"
#include "runner/base/json.h"
#include "runner/base/sha256.h"
#include "tests/operator/control/journal.h"
#include "tests/operator/control/memory_api_server.h"
#include "tests/operator/control/test_objects.h"

namespace lockstep::train {
namespace {

using control::MemoryApiServer;

const api::ObjectKey kJob{.ns = "ns", .name = "sim"};

std::string phase_of(const Json& job) { return text_field(job, {"status", "phase"}); }

const Json* condition_of(const Json& job, const std::string& type) {
  for (const Json& condition : list_field(job, {"status", "conditions"})) {
    if (condition["type"] == type) return &condition;
  }
  return nullptr;
}

std::string reason_of(const Json& job, const std::string& type) {
  const Json* const condition = condition_of(job, type);
  return condition == nullptr ? "" : (*condition)["reason"].get<std::string>();
}

std::string message_of(const Json& job, const std::string& type) {
  const Json* const condition = condition_of(job, type);
  return condition == nullptr ? "" : (*condition)["message"].get<std::string>();
}

bool is_write(const kube::HttpRequest& request) {
  return request.method != "GET" && request.path.find("/events") == std::string::npos;
}

// The first of a spec.
bool is_strict(const kube::HttpRequest& request) {
  return request.query.find("fieldValidation=Strict") != std::string::npos;
}

bool makes_pod(const kube::HttpRequest& request) {
  return request.method == "POST" && request.path.find("/pods") != std::string::npos && is_write(request);
}

// A cluster and one operator whose state the test reads between its passes. The caches hold what `sync` has read.
class ReconcilerFixture {
 public:
  ReconcilerFixture() {
    server->intercept([this](const kube::HttpRequest& request) { return answer(request); });
    start_operator();
  }

  // ---- people and kubelets ----

  void make_job(const Json& spec = Json::object()) {
    Json whole = {{"trainer", {{"image", "i"}, {"args", Json::array({"run"})}, {"numNodes", 2}}}};
    whole.merge_patch(spec);
    server->put(kube::kTrainJobs, {{"apiVersion", "lockstep.dev/v1"},
                                   {"kind", "TrainJob"},
                                   {"metadata", {{"namespace", "ns"}, {"name", "sim"}, {"generation", 1}}},
                                   {"spec", whole}});
  }

  void change_spec(const Json& patch) {
    Json object = *server->get(kube::kTrainJobs, kJob);
    object["spec"].merge_patch(patch);
    object["metadata"]["generation"] = object["metadata"]["generation"].get<int>() + 1;
    server->put(kube::kTrainJobs, object);
  }

  void set_pod(const std::string& name, const Json& status) {
    Json pod = *server->get(kube::kPods, {.ns = "ns", .name = name});
    pod["spec"]["nodeName"] = "node-a";
    pod["status"] = status;
    server->put(kube::kPods, pod);
  }
  void ready(const std::string& name, const std::string& ip = "10.0.0.1") {
    set_pod(name, {{"phase", "Running"},
                   {"podIP", ip},
                   {"conditions", Json::array({{{"type", "Ready"}, {"status", "True"}}})},
                   {"containerStatuses",
                    Json::array({{{"name", "trainer"}, {"ready", true}, {"state", {{"running", Json::object()}}}}})}});
  }
  void exited(const std::string& name, int code) {
    set_pod(name, {{"phase", code == 0 ? "Succeeded" : "Failed"},
                   {"containerStatuses",
                    Json::array({{{"name", "trainer"}, {"state", {{"terminated", {{"exitCode", code}}}}}}})}});
  }
  void all_ready() {
    for (const std::string& name : pod_names()) ready(name);
  }

  // ---- the operator ----

  void start_operator() {
    reconciler.reset();
    progress = std::make_unique<ProgressReader>(
        ProgressReader::Options{.read = [this](const std::string&, int port) -> Result<std::string> {
                                  read_port = port;
                                  if (report.empty()) return Error{ErrorCode::kUnavailable, "nobody answers"};
                                  return report;
                                },
                                .on_report =
                                    [this](const api::ObjectKey&) {
                                      ++reports;
                                      reports.notify_all();
                                    },
                                .wall = [this] { return now.load(); },
                                .threads = 1});
    announcer = std::make_unique<CoordinatorAnnouncer>(
        CoordinatorAnnouncer::Options{.send = [this](const std::string& ip, int port, const std::string& token,
                                                     const std::string& address) -> Status {
                                        const std::lock_guard lock(announced_mutex);
                                        announced.push_back(ip + " " + token.substr(0, 4) + " " + address);
                                        ports.insert(port);
                                        announced_changed.notify_all();
                                        return {};
                                      },
                                      .threads = 1});
    metrics = std::make_unique<JobMetrics>();
    Reconciler::Options options;
    options.settings.token_key = "key";
    options.send_num_nodes = [this](const std::string& ip, int port, const std::string& token,
                                    int num_nodes) -> Status {
      sent_nums_of_nodes.push_back(ip + " " + token.substr(0, 4) + " " + std::to_string(num_nodes));
      const std::lock_guard lock(announced_mutex);
      ports.insert(port);
      return {};
    };
    options.now = [this] { return now.load(); };
    options.may_write = [this] { return leads; };
    reconciler = std::make_unique<Reconciler>(Reconciler::Context{.client = client,
                                                                  .jobs = *jobs,
                                                                  .pods = *pods,
                                                                  .services = *services,
                                                                  .network_policies = *policies,
                                                                  .nodes = nodes.get(),
                                                                  .optional = optional,
                                                                  .events = events,
                                                                  .progress = *progress,
                                                                  .announcer = *announcer,
                                                                  .metrics = *metrics},
                                              std::move(options));
  }

  // A new process: empty memory, caches that are filled anew.
  void restart_operator() {
    reconciler.reset();
    jobs = std::make_unique<control::Cache<JobView>>(view_of_job);
    pods = std::make_unique<control::Cache<PodView>>(view_of_pod, pod_index);
    services = std::make_unique<control::Cache<Json>>(trim_service);
    policies = std::make_unique<control::Cache<Json>>(trim_network_policy);
    start_operator();
  }

  void sync() {
    control::replace(*jobs, server->list(kube::kTrainJobs));
    sync_labelled(*pods, kube::kPods);
    sync_labelled(*services, kube::kServices);
    sync_labelled(*policies, kube::kNetworkPolicies);
  }

  // As the informers select, at the version of the whole collection.
  template <typename View>
  void sync_labelled(control::Cache<View>& cache, const kube::Resource& resource) {
    std::vector<Json> selected;
    uint64_t newest = 0;
    for (Json& object : server->list(resource)) {
      newest = std::max(newest, uint64_t{std::stoull(api::meta_of(object).resource_version)});
      if (!job_of(object).name.empty()) selected.push_back(std::move(object));
    }
    control::replace(cache, std::move(selected), newest == 0 ? "" : std::to_string(newest));
  }

  void remove_label(const kube::Resource& resource, const api::ObjectKey& key) {
    Json object = *server->get(resource, key);
    object["metadata"]["labels"].erase(std::string(kJobLabel));
    server->put(resource, object);
  }

  bool wait_until_announced(const std::string& line) {
    std::unique_lock lock(announced_mutex);
    return announced_changed.wait_for(lock, std::chrono::seconds(30), [&] {
      return std::find(announced.begin(), announced.end(), line) != announced.end();
    });
  }
  [[nodiscard]] std::string token_begin() const { return hmac_sha256_hex("key", api::meta_of(job()).uid).substr(0, 4); }
  size_t announcements() {
    const std::lock_guard lock(announced_mutex);
    return announced.size();
  }

  Result<control::ReconcileResult> reconcile() { return reconciler->reconcile(kJob); }

  // Reconciles until nothing more is written, even after waits.
  void settle() {
    for (int pass = 0, waits = 0; pass < 20; ++pass) {
      const size_t before = writes;
      sync();
      const auto result = reconcile();
      if (result.ok() && writes == before && !is_dead) {
        if (result->requeue_after != std::chrono::seconds(1) || waits++ == 2) return;
        ++now;
      }
      if (is_dead) {
        is_dead = false;
        dies_after.reset();
        restart_operator();
      }
    }
    ADD_FAILURE() << "does not come to rest";
  }

  // ---- what is to be seen ----

  [[nodiscard]] Json job() const { return *server->get(kube::kTrainJobs, kJob); }
  [[nodiscard]] std::vector<std::string> pod_names() const {
    std::vector<std::string> names;
    for (const Json& pod : server->list(kube::kPods)) names.push_back(api::meta_of(pod).name);
    return names;
  }
  using Names = std::vector<std::string>;

  std::shared_ptr<MemoryApiServer> server = std::make_shared<MemoryApiServer>();
  kube::Client client{server, {.retry_for = std::chrono::milliseconds(0)}};
  std::unique_ptr<control::Cache<JobView>> jobs = std::make_unique<control::Cache<JobView>>(view_of_job);
  std::unique_ptr<control::Cache<PodView>> pods = std::make_unique<control::Cache<PodView>>(view_of_pod, pod_index);
  std::unique_ptr<control::Cache<Json>> services = std::make_unique<control::Cache<Json>>(trim_service);
  std::unique_ptr<control::Cache<Json>> policies = std::make_unique<control::Cache<Json>>(trim_network_policy);
  std::unique_ptr<control::Cache<NodeView>> nodes;  // nullptr: the operator may not read them
  control::EventRecorder events{client, {}};
  std::unique_ptr<JobMetrics> metrics;
  std::string report;  // before the operator is made to read it
  std::atomic<int> reports{0};
  std::unique_ptr<ProgressReader> progress;
  std::mutex announced_mutex;
  std::condition_variable announced_changed;
  std::vector<std::string> announced;  // "IP TOKEN ADDRESS", protected by announced_mutex
  std::set<int> ports;                 // to which something was sent, likewise
  std::unique_ptr<CoordinatorAnnouncer> announcer;
  std::map<std::string, control::OptionalInformer*> optional;
  std::unique_ptr<Reconciler> reconciler;

  std::atomic<api::UnixSeconds> now{1'795'255'200};
  bool leads = true;
  std::vector<std::string> sent_nums_of_nodes;
  std::atomic<int> read_port = 0;
  // Answers in the server's place; nothing: the server's own.
  std::function<std::optional<Result<kube::HttpResponse>>(const kube::HttpRequest&)> fault;
  std::optional<size_t> dies_after;  // so many writes
  bool is_dead = false;
  size_t writes = 0;
  std::map<std::string, int> made;  // pods, by name

 private:
  std::optional<Result<kube::HttpResponse>> answer(const kube::HttpRequest& request) {
    if (request.path.find("/events") != std::string::npos) return std::nullopt;  // another thread's
    if (is_dead) return Error{ErrorCode::kCancelled, "the process is gone"};
    if (fault) {
      if (auto answered = fault(request)) return answered;
    }
    if (!is_write(request)) return std::nullopt;
    if (dies_after && writes >= *dies_after) {
      is_dead = true;
      return Error{ErrorCode::kCancelled, "the process is gone"};
    }
    ++writes;
    if (makes_pod(request)) {
      const api::ObjectKey key = api::key_of(Json::parse(request.body));
      if (!server->get(kube::kPods, key)) ++made[key.name];
    }
    return std::nullopt;
  }
};

class ReconcilerTest : public testing::Test, protected ReconcilerFixture {};

TEST_F(ReconcilerTest, makes_the_service_beside_the_first_pod_then_the_others_then_writes_the_first_status) {
  make_job();
  sync();
  ASSERT_TRUE(reconcile().ok());
  const auto requests = [this] {
    std::vector<std::string> all;
    for (const std::string& request : server->requests()) {
      if (request.find("events") == std::string::npos) all.push_back(request);
    }
    return all;
  };
  const std::string status = "PUT /apis/lockstep.dev/v1/namespaces/ns/trainjobs/sim/status";
  const std::vector<std::string> expected = {"POST /api/v1/namespaces/ns/pods",  // the first
                                             "POST /api/v1/namespaces/ns/services", "POST /api/v1/namespaces/ns/pods",
                                             status};
  EXPECT_EQ(requests(), expected);
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
  sync();
  ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(requests(), expected);
  EXPECT_EQ(phase_of(job()), "Starting");
}

TEST_F(ReconcilerTest, a_pod_that_goes_before_a_status_tells_of_it_is_followed_by_the_next_attempt) {
  make_job();
  sync();
  const auto result = reconcile();
  ASSERT_TRUE(result.ok());
  EXPECT_LE(result->requeue_after, std::chrono::seconds(1));
  server->remove(kube::kPods, {.ns = "ns", .name = "sim-1-0"});
  ready("sim-0-0");  // a later version: the watch has come further than that create
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-1"})) << job()["status"].dump(1);
  EXPECT_EQ(made["sim-1-0"], 1);
}

TEST_F(ReconcilerTest, a_status_that_was_put_off_is_written_though_nothing_else_happens) {
  make_job();
  settle();
  ready("sim-0-0");
  sync();
  ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(job()["status"]["nodes"]["ready"], 0);
  now += 2;
  ASSERT_TRUE(reconcile().ok());  // the same caches
  EXPECT_EQ(job()["status"]["nodes"]["ready"], 1);
  const size_t before = writes;
  sync();
  ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(writes, before);
}

TEST_F(ReconcilerTest, pods_that_end_one_after_the_other_are_one_write) {
  make_job({{"trainer", {{"numNodes", 4}}}});
  settle();
  all_ready();
  settle();
  const size_t before = writes;
  for (const char* name : {"sim-0-0", "sim-1-0", "sim-2-0"}) {
    exited(name, 0);
    sync();
    ASSERT_TRUE(reconcile().ok());
  }
  EXPECT_EQ(writes, before);
  // A pod that is deleted before this status is written still counts as done.
  server->remove(kube::kPods, {.ns = "ns", .name = "sim-1-0"});
  sync();
  ASSERT_TRUE(reconcile().ok());
  exited("sim-3-0", 0);
  sync();
  ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(phase_of(job()), "Complete");
  EXPECT_EQ(writes, before + 1);
}

TEST_F(ReconcilerTest, a_job_of_8000_nodes_gets_all_its_pods) {
  make_job({{"trainer", {{"numNodes", 8000}}}});
  sync();
  ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(pod_names().size(), 8000U);
}

TEST_F(ReconcilerTest, writes_nothing_when_nothing_changes) {
  make_job();
  settle();
  const size_t before = writes;
  for (int i = 0; i < 5; ++i) {
    sync();
    ASSERT_TRUE(reconcile().ok());
  }
  EXPECT_EQ(writes, before);
}

TEST_F(ReconcilerTest, a_job_that_was_changed_by_somebody_else_is_read_and_planned_for_anew) {
  make_job();
  sync();
  change_spec({{"trainer", {{"numNodes", 1}}}});  // the cache does not show it, and its watch hangs
  ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(pod_names(), Names{"sim-0-0"});
  EXPECT_EQ(server->count("GET /apis/lockstep.dev/v1/namespaces/ns/trainjobs/sim"), 1);
}

TEST_F(ReconcilerTest, backs_off_after_repeated_conflicts) {
  make_job();
  sync();
  int puts = 0;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (request.method != "PUT") return std::nullopt;
    ++puts;
    return MemoryApiServer::status(409, "Conflict", "the object has been modified");
  };
  const auto result = reconcile();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kConflict);
  EXPECT_EQ(puts, 2);
  EXPECT_EQ(server->count("POST /api/v1/namespaces/ns/services"), 1);
}

TEST_F(ReconcilerTest, who_no_longer_leads_writes_nothing) {
  make_job();
  sync();
  leads = false;
  const auto result = reconcile();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(writes, 0U);
}

TEST_F(ReconcilerTest, a_service_of_somebody_else_is_left_alone_and_no_pod_but_the_first_is_made) {
  make_job();
  server->put(kube::kServices,
              {{"metadata", {{"namespace", "ns"}, {"name", "sim"}}}, {"spec", {{"clusterIP", "10.1.1.1"}}}});
  sync();
  control::replace(*services, {});  // it lacks the label that the cache selects by
  ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(reason_of(job(), "PodsReady"), "NameTaken");
  EXPECT_NE(message_of(job(), "PodsReady").find("Service sim"), std::string::npos);
  EXPECT_EQ(pod_names(), Names{"sim-0-0"});
  EXPECT_EQ((*server->get(kube::kServices, kJob))["spec"]["clusterIP"], "10.1.1.1");

  // Somebody deletes it; it is tried again after a while.
  server->remove(kube::kServices, kJob);
  now += 11;
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
}

TEST_F(ReconcilerTest, a_pod_of_somebody_else_is_never_adopted) {
  make_job();
  server->put(kube::kPods, {{"metadata", {{"namespace", "ns"}, {"name", "sim-1-0"}}}, {"spec", {{"theirs", true}}}});
  settle();
  EXPECT_EQ(reason_of(job(), "PodsReady"), "NameTaken");
  EXPECT_EQ((*server->get(kube::kPods, {"ns", "sim-1-0"}))["spec"]["theirs"], true);
  EXPECT_FALSE((*server->get(kube::kPods, {"ns", "sim-1-0"}))["metadata"].contains("ownerReferences"));
  EXPECT_EQ(made["sim-0-0"], 1);
}

TEST_F(ReconcilerTest, a_pod_of_an_earlier_job_of_this_name_is_waited_for) {
  make_job();
  Json old = {{"metadata",
               {{"namespace", "ns"},
                {"name", "sim-0-0"},
                {"ownerReferences", owner_references({.name = "sim", .ns = "ns", .uid = "an-earlier-uid"})}}}};
  server->put(kube::kPods, old);
  settle();
  EXPECT_EQ(reason_of(job(), "PodsReady"), "PreviousRunTerminating");
  server->remove(kube::kPods, {"ns", "sim-0-0"});
  now += 11;
  settle();
  EXPECT_EQ(made["sim-0-0"], 1);
}

TEST_F(ReconcilerTest, a_quota_is_said_in_the_server_s_words_and_tried_again) {
  make_job();
  fault = [](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!makes_pod(request) || request.body.find("sim-1-0") == std::string::npos) return std::nullopt;
    return MemoryApiServer::status(403, "Forbidden", "pods \"sim-1-0\" is forbidden: exceeded quota: gpus");
  };
  settle();
  EXPECT_EQ(reason_of(job(), "PodsReady"), "QuotaExceeded");
  EXPECT_NE(message_of(job(), "PodsReady").find("exceeded quota: gpus"), std::string::npos);
  EXPECT_EQ(pod_names(), Names{"sim-0-0"});
  fault = {};
  now += 11;
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
  EXPECT_EQ(reason_of(job(), "PodsReady"), "PodsStarting");
}

TEST_F(ReconcilerTest, a_quota_that_refuses_the_first_pod_is_not_asked_for_another) {
  make_job({{"trainer", {{"numNodes", 4}}}});
  fault = [](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!makes_pod(request)) return std::nullopt;
    return MemoryApiServer::status(403, "Forbidden", "pods \"sim-0-0\" is forbidden: exceeded quota: gpus");
  };
  settle();
  EXPECT_EQ(reason_of(job(), "PodsReady"), "QuotaExceeded");
  EXPECT_EQ(server->count("POST /api/v1/namespaces/ns/pods"), 1);
  fault = {};
  now += 11;
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0", "sim-2-0", "sim-3-0"}));
}

// With several API servers a ResourceQuota answers so to creates that come at the same time.
constexpr const char* kQuotaRace =
    "Operation cannot be fulfilled on resourcequotas \"gpus\": the object has been modified; please apply your changes "
    "to the latest version and try again";

TEST_F(ReconcilerTest, a_create_that_a_quota_answers_with_a_conflict_is_sent_again) {
  make_job({{"trainer", {{"numNodes", 4}}}});
  int conflicts = 0;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!makes_pod(request) || request.body.find("sim-1-0") == std::string::npos || conflicts == 2) return std::nullopt;
    ++conflicts;
    return MemoryApiServer::status(409, "Conflict", kQuotaRace);
  };
  sync();
  const auto result = reconcile();
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->requeue_after, std::chrono::seconds(1));
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-2-0", "sim-3-0"}));
  settle();
  EXPECT_EQ(conflicts, 2);
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0", "sim-2-0", "sim-3-0"}));
  EXPECT_EQ(reason_of(job(), "PodsReady"), "PodsStarting");
}

TEST_F(ReconcilerTest, a_first_pod_that_a_quota_answers_with_a_conflict_is_still_made_alone) {
  make_job({{"trainer", {{"numNodes", 4}}}});
  std::set<std::string> sent;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!makes_pod(request)) return std::nullopt;
    sent.insert(api::key_of(Json::parse(request.body)).name);
    return MemoryApiServer::status(409, "Conflict", kQuotaRace);
  };
  sync();
  EXPECT_TRUE(reconcile().ok());
  EXPECT_EQ(sent, std::set<std::string>{"sim-0-0"});
  fault = {};
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0", "sim-2-0", "sim-3-0"}));
}

TEST_F(ReconcilerTest, a_priority_class_that_does_not_exist_is_named_and_no_other_pod_is_sent) {
  make_job({{"trainer", {{"numNodes", 4}}}, {"scheduling", {{"priorityClassName", "research"}}}});
  fault = [](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!makes_pod(request)) return std::nullopt;
    return MemoryApiServer::status(403, "Forbidden",
                                   "pods \"sim-0-0\" is forbidden: no PriorityClass with name research was found");
  };
  settle();
  EXPECT_EQ(reason_of(job(), "PodsReady"), "PriorityClassMissing");
  EXPECT_NE(message_of(job(), "PodsReady").find("\"research\" (spec.scheduling.priorityClassName)"), std::string::npos);
  EXPECT_EQ(server->count("POST /api/v1/namespaces/ns/pods"), 1);
  now += 11;
  settle();
  EXPECT_EQ(server->count("POST /api/v1/namespaces/ns/pods"), 2);
  fault = {};
  now += 11;
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0", "sim-2-0", "sim-3-0"}));
}

// The first pod need not be pod 0: pods that run need no successor.
TEST_F(ReconcilerTest, the_first_pod_of_a_changed_spec_is_the_first_that_is_missing) {
  make_job({{"trainer", {{"numNodes", 3}}}, {"elastic", {{"minNodes", 1}, {"maxNodes", 6}}}});
  settle();
  all_ready();
  settle();
  std::vector<std::string> strict;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (is_strict(request)) strict.push_back(api::key_of(Json::parse(request.body)).name);
    return std::nullopt;
  };
  change_spec({{"trainer", {{"numNodes", 6}}}});
  settle();
  EXPECT_EQ(strict, Names{"sim-3-0"});
  EXPECT_EQ(pod_names().size(), 6U);
}

TEST_F(ReconcilerTest, a_network_policy_comes_before_any_pod) {
  make_job({{"networkPolicy", "IntraJob"}});
  fault = [](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (request.method != "POST" || request.path.find("/networkpolicies") == std::string::npos) return std::nullopt;
    return MemoryApiServer::status(403, "Forbidden", "networkpolicies is forbidden");
  };
  settle();
  EXPECT_EQ(pod_names(), Names{});
  EXPECT_EQ(reason_of(job(), "PodsReady"), "CreateRefused");
  fault = {};
  now += 11;
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
}

// As a ResourceQuota with room for so many pods.
class Quota {
 public:
  explicit Quota(MemoryApiServer& server) : server_(server) {}
  size_t room = 6;
  int refused = 0;

  std::optional<Result<kube::HttpResponse>> operator()(const kube::HttpRequest& request) {
    if (!makes_pod(request) || server_.list(kube::kPods).size() < room) return std::nullopt;
    ++refused;
    return MemoryApiServer::status(403, "Forbidden", "pods is forbidden: exceeded quota: few");
  }

 private:
  MemoryApiServer& server_;
};

TEST_F(ReconcilerTest, a_quota_with_room_for_some_pods_is_not_asked_for_all_the_others) {
  make_job({{"trainer", {{"numNodes", 100}}}});
  Quota quota(*server);
  fault = std::ref(quota);
  settle();
  EXPECT_EQ(pod_names().size(), 6U);
  EXPECT_EQ(quota.refused, 7);  // of 1, 4 and 8
  EXPECT_EQ(reason_of(job(), "PodsReady"), "QuotaExceeded");

  // One create after 10 s, 20 s, 40 s, then each minute.
  const auto refused_within = [&](int seconds) {
    const int before = quota.refused;
    for (int second = 0; second < seconds; ++second) {
      ++now;
      sync();
      EXPECT_TRUE(reconcile().ok());
    }
    return quota.refused - before;
  };
  EXPECT_EQ(refused_within(70), 3);
  EXPECT_EQ(refused_within(600), 10);

  quota.room = 1000;
  now += 60;
  settle();
  EXPECT_EQ(pod_names().size(), 100U);
  EXPECT_EQ(reason_of(job(), "PodsReady"), "PodsStarting");
  for (const auto& [name, times] : made) EXPECT_EQ(times, 1) << name;
}

// A large job's creates take long under the client's rate limit.
TEST_F(ReconcilerTest, what_was_refused_late_in_a_pass_is_not_tried_again_at_once) {
  make_job();
  int asked = 0;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!makes_pod(request) || request.body.find("sim-1-0") == std::string::npos) return std::nullopt;
    ++asked;
    now += 30;
    return MemoryApiServer::status(403, "Forbidden", "denied by policy");
  };
  settle();
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(reason_of(job(), "PodsReady"), "InvalidSpec");
}

TEST_F(ReconcilerTest, a_server_in_trouble_is_spared_the_creates_that_are_left) {
  make_job({{"trainer", {{"numNodes", 100}}}});
  int asked = 0;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!makes_pod(request)) return std::nullopt;
    ++asked;
    return MemoryApiServer::status(500, "InternalError", "etcd is away");
  };
  sync();
  EXPECT_FALSE(reconcile().ok());
  EXPECT_EQ(asked, 1);
}

TEST_F(ReconcilerTest, who_loses_the_lead_amid_many_deletions_stops) {
  make_job({{"trainer", {{"numNodes", 300}}}});
  settle();
  change_spec({{"suspend", true}});
  sync();
  int deletions = 0;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (request.method == "DELETE") ++deletions, leads = false;
    return std::nullopt;
  };
  EXPECT_FALSE(reconcile().ok());
  EXPECT_EQ(deletions, 128);
}

TEST_F(ReconcilerTest, a_service_that_a_webhook_changes_back_is_not_raced) {
  make_job();
  settle();
  Json changed = *server->get(kube::kServices, kJob);
  changed["spec"]["publishNotReadyAddresses"] = false;
  server->put(kube::kServices, changed);
  int patches = 0;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (request.method != "PATCH" || request.path.find("/services/") == std::string::npos) return std::nullopt;
    ++patches;
    return kube::HttpResponse{.status = 200, .body = server->get(kube::kServices, kJob)->dump()};
  };
  sync();
  const auto result = reconcile();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(patches, 1);
  ASSERT_TRUE(result->requeue_after.has_value());
  EXPECT_LE(*result->requeue_after, std::chrono::seconds(10));
  EXPECT_GT(*result->requeue_after, std::chrono::seconds(1));

  fault = {};
  settle();
  EXPECT_EQ((*server->get(kube::kServices, kJob))["spec"]["publishNotReadyAddresses"], true);
}

// As the API server's validation refuses a pod.
kube::HttpResponse invalid_pod(const std::string& field, const std::string& why) {
  Json body =
      Json::parse(MemoryApiServer::status(422, "Invalid", "Pod \"sim-0-0\" is invalid: " + field + ": " + why).body);
  body["details"]["causes"] = Json::array({{{"message", why}, {"field", field}}});
  return kube::HttpResponse{.status = 422, .headers = {}, .body = body.dump()};
}

TEST_F(ReconcilerTest, an_invalid_template_holds_the_job_back_with_the_path) {
  make_job();
  fault = [](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!is_strict(request)) return std::nullopt;
    return invalid_pod("spec.containers[0].image", "Required value");
  };
  settle();
  EXPECT_EQ(phase_of(job()), "Pending");
  EXPECT_EQ(job()["status"]["reason"], "InvalidSpec");
  EXPECT_NE(message_of(job(), "PodsReady").find("spec.trainer.image: Required value; the spec may be changed now"),
            std::string::npos)
      << message_of(job(), "PodsReady");
  EXPECT_EQ(pod_names(), Names{});
  EXPECT_EQ(server->count("POST /api/v1/namespaces/ns/pods"), 1) << "the first alone was asked";
  EXPECT_FALSE(job()["status"].contains("attempts"));
}

// A LimitRange, a policy, a webhook: 403, mostly.
TEST_F(ReconcilerTest, what_an_admission_refuses_is_tried_again_ever_more_seldom_and_never_while_it_may_be_edited) {
  make_job({{"trainer", {{"numNodes", 4}}}, {"health", {{"startupTimeoutSeconds", 60}}}});
  std::vector<std::string> reasons_at_tries;
  std::vector<api::UnixSeconds> tries;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!makes_pod(request)) return std::nullopt;
    reasons_at_tries.push_back(text_field(job(), {"status", "reason"}));
    tries.push_back(now);
    return MemoryApiServer::status(
        403, "Forbidden", "pods \"sim-0-0\" is forbidden: maximum cpu usage per Container is 1, but limit is 2");
  };
  for (int second = 0; second < 700; ++second, ++now) {
    sync();
    ASSERT_TRUE(reconcile().ok());
    ASSERT_EQ(phase_of(job()), "Pending");
    ASSERT_EQ(text_field(job(), {"status", "reason"}), "InvalidSpec");
  }
  std::vector<api::UnixSeconds> waits;
  for (size_t i = 1; i < tries.size(); ++i) waits.push_back(tries[i] - tries[i - 1]);
  EXPECT_EQ(waits, (std::vector<api::UnixSeconds>{10, 20, 40, 80, 160, 320}));
  EXPECT_EQ(reasons_at_tries, (std::vector<std::string>{"", "PodsTriedAgain", "PodsTriedAgain", "PodsTriedAgain",
                                                        "PodsTriedAgain", "PodsTriedAgain", "PodsTriedAgain"}));
  fault = {};
  now += 600;
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0", "sim-2-0", "sim-3-0"}));
}

TEST_F(ReconcilerTest, a_spec_that_is_edited_while_its_pods_are_refused_is_tried_at_once_and_counts_nothing) {
  make_job();
  Json refused;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!is_strict(request)) return std::nullopt;
    refused = Json::parse(request.body);
    return invalid_pod("spec.x", "bad");
  };
  settle();
  ASSERT_EQ(job()["status"]["reason"], "InvalidSpec");
  // A pod of the first generation comes up late: an earlier request was under way for long.
  server->put(kube::kPods, refused);
  change_spec({{"trainer", {{"image", "better"}}}});
  fault = {};
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-1", "sim-1-0"}));
  for (const std::string& name : pod_names()) {
    const Json pod = *server->get(kube::kPods, {.ns = "ns", .name = name});
    EXPECT_EQ(pod["metadata"]["annotations"][std::string(kGenerationAnnotation)], "2");
    EXPECT_EQ(pod["spec"]["containers"][0]["image"], "better");
  }
  EXPECT_EQ(job()["status"]["restarts"]["total"], 0);
  EXPECT_FALSE(job()["status"].contains("recentFailures"));
}

// The user's edit comes between the operator's look at the spec and its next try.
TEST_F(ReconcilerTest, an_edit_that_comes_just_before_another_try_is_what_is_tried) {
  make_job();
  std::vector<std::string> images;
  bool is_edited = false;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (makes_pod(request)) {
      images.push_back(Json::parse(request.body)["spec"]["containers"][0]["image"]);
      if (images.back() == "i") return invalid_pod("spec.x", "bad");
    }
    const bool announces = request.method == "PUT" && request.body.find("PodsTriedAgain") != std::string::npos;
    if (announces && !std::exchange(is_edited, true)) change_spec({{"trainer", {{"image", "better"}}}});
    return std::nullopt;
  };
  settle();
  now += 11;
  settle();
  EXPECT_TRUE(is_edited);
  EXPECT_EQ(images, (std::vector<std::string>{"i", "better", "better"}));
}

// A policy, or a quota's sibling, that takes effect after the first pod was made.
TEST_F(ReconcilerTest, a_refusal_of_a_later_pod_ends_no_job_either) {
  make_job({{"trainer", {{"numNodes", 3}}}, {"health", {{"startupTimeoutSeconds", 60}}}});
  fault = [](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!makes_pod(request) || request.body.find("sim-2-0") == std::string::npos) return std::nullopt;
    return MemoryApiServer::status(403, "Forbidden", "pods \"sim-2-0\" is forbidden: not this one");
  };
  settle();
  now += 300;
  settle();
  EXPECT_EQ(phase_of(job()), "Starting") << "it has pods, and may not be edited";
  EXPECT_EQ(reason_of(job(), "PodsReady"), "InvalidSpec");
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
  fault = {};
  now += 601;
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0", "sim-2-0"}));
}

// A template that was valid at first may become invalid when it is changed while the job is suspended.
TEST_F(ReconcilerTest, a_template_that_is_invalid_later_waits_until_it_is_mended_and_keeps_what_runs) {
  make_job();
  settle();
  all_ready();
  settle();
  fault = [](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!is_strict(request)) return std::nullopt;
    Json body = Json::parse(MemoryApiServer::status(422, "Invalid", "Pod \"sim-0-0\" is invalid: spec.x: bad").body);
    body["details"]["causes"] = Json::array({{{"message", "bad"}, {"field", "spec.x"}}});
    return kube::HttpResponse{.status = 422, .headers = {}, .body = body.dump()};
  };
  change_spec({{"trainer", {{"podTemplate", {{"spec", {{"priority", 1}}}}}}}});
  exited("sim-1-0", 1);
  settle();
  EXPECT_EQ(phase_of(job()), "Recovering");
  EXPECT_EQ(reason_of(job(), "PodsReady"), "InvalidSpec");
  EXPECT_NE(message_of(job(), "PodsReady").find("spec.trainer.podTemplate.spec.x: bad"), std::string::npos);
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));  // the other runs, the lost one has its logs
  fault = {};
  change_spec({{"trainer", {{"podTemplate", nullptr}}}});
  settle();
  all_ready();
  settle();
  EXPECT_EQ(reason_of(job(), "PodsReady"), "AllPodsReady");
  EXPECT_EQ(made["sim-0-0"], 1);
  EXPECT_EQ(made["sim-1-1"], 1);
}

// The user's spec may be good, and an admission webhook changes the pod.
TEST_F(ReconcilerTest, a_pod_that_the_server_calls_invalid_is_tried_again_without_an_edit) {
  make_job();
  settle();
  all_ready();
  settle();
  int refused = 0;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!is_strict(request)) return std::nullopt;
    ++refused;
    Json body = Json::parse(MemoryApiServer::status(422, "Invalid", "Pod \"sim-1-1\" is invalid: spec.x: bad").body);
    body["details"]["causes"] = Json::array({{{"message", "bad"}, {"field", "spec.x"}}});
    return kube::HttpResponse{.status = 422, .headers = {}, .body = body.dump()};
  };
  change_spec({{"restartPolicy", {{"maxRestarts", 11}}}});  // another generation: its first pod is sent alone
  exited("sim-1-0", 1);
  settle();
  EXPECT_EQ(refused, 1);
  const auto refused_within = [&](int seconds) {
    const int before = refused;
    for (int second = 0; second < seconds; ++second) {
      ++now;
      sync();
      EXPECT_TRUE(reconcile().ok());
    }
    return refused - before;
  };
  EXPECT_EQ(refused_within(75), 3);  // after 10, 20 and 40 s
  EXPECT_EQ(reason_of(job(), "PodsReady"), "InvalidSpec");
  EXPECT_EQ(refused_within(1500), 4);  // after 80, 160 and 320 s, then every ten minutes
  EXPECT_EQ(phase_of(job()), "Recovering");
  fault = {};
  refused_within(600);
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0", "sim-1-1"}));
  EXPECT_NE(reason_of(job(), "PodsReady"), "InvalidSpec");
  EXPECT_EQ(made["sim-1-1"], 1);
}

// The API server's clock is a minute behind this operator's.
TEST_F(ReconcilerTest, a_job_is_not_suspended_before_its_pods_had_their_grace_period) {
  make_job();
  settle();
  all_ready();
  settle();
  for (const std::string& name : pod_names()) {  // the pods take their time to go
    Json pod = *server->get(kube::kPods, {.ns = "ns", .name = name});
    pod["metadata"]["finalizers"] = Json::array({"test/slow"});
    server->put(kube::kPods, pod);
  }
  change_spec({{"suspend", true}});
  sync();
  ASSERT_TRUE(reconcile().ok());
  for (const std::string& name : pod_names()) {
    Json pod = *server->get(kube::kPods, {.ns = "ns", .name = name});
    pod["metadata"]["deletionTimestamp"] = api::format_time(now - 60 + 30);
    pod["metadata"]["deletionGracePeriodSeconds"] = 30;
    server->put(kube::kPods, pod);
  }
  settle();
  EXPECT_NE(phase_of(job()), "Suspended");
  now += 30;
  settle();
  EXPECT_NE(phase_of(job()), "Suspended");
  now += 10;
  settle();
  EXPECT_EQ(phase_of(job()), "Suspended") << "their kubelets do not answer";
}

TEST_F(ReconcilerTest, an_outage_is_counted_over_the_nodes_of_all_jobs) {
  nodes = std::make_unique<control::Cache<NodeView>>(view_of_node);
  start_operator();
  make_job();
  settle();
  int node_version = 1;
  const auto put_node = [&](const std::string& name, const char* ready, int64_t for_seconds) {
    Json condition{{"type", "Ready"}, {"status", ready}, {"lastTransitionTime", api::format_time(now - for_seconds)}};
    nodes->put({{"metadata", {{"name", name}, {"uid", name}, {"resourceVersion", std::to_string(++node_version)}}},
                {"status", {{"conditions", Json::array({condition})}}}});
  };
  control::replace(*nodes, {}, "1");
  all_ready();
  for (const std::string& name : pod_names()) {
    Json pod = *server->get(kube::kPods, {.ns = "ns", .name = name});
    pod["spec"]["nodeName"] = name == "sim-1-0" ? "node-1" : "node-0";
    server->put(kube::kPods, pod);
  }
  for (int i = 2; i < 5; ++i) {  // of other jobs
    server->put(kube::kPods, {{"metadata",
                               {{"name", "other-" + std::to_string(i)},
                                {"namespace", "elsewhere"},
                                {"uid", "other-" + std::to_string(i)},
                                {"labels", {{std::string(kJobLabel), "other"}}}}},
                              {"spec", {{"nodeName", "node-" + std::to_string(i)}}},
                              {"status", {{"phase", "Running"}}}});
  }
  put_node("node-0", "True", 0);
  put_node("node-1", "Unknown", 100);
  put_node("node-2", "Unknown", 100);
  put_node("node-3", "Unknown", 100);
  put_node("node-4", "True", 0);
  settle();
  EXPECT_EQ(made.count("sim-1-1"), 0U) << "3 of 5 nodes are silent";
  put_node("node-3", "True", 0);
  ++now;
  settle();
  EXPECT_EQ(made.count("sim-1-1"), 1U) << "2 of 5 are no outage";
}

TEST_F(ReconcilerTest, a_network_policy_that_somebody_changes_is_put_right_once) {
  make_job({{"networkPolicy", "IntraJob"}});
  settle();
  all_ready();
  settle();
  const Json right = (*server->get(kube::kNetworkPolicies, kJob))["spec"];
  Json changed = *server->get(kube::kNetworkPolicies, kJob);
  changed["spec"]["ingress"] = Json::array({Json::object()});
  server->put(kube::kNetworkPolicies, changed);
  settle();
  EXPECT_EQ((*server->get(kube::kNetworkPolicies, kJob))["spec"], right);
  const size_t before = writes;
  settle();
  EXPECT_EQ(writes, before);
}

TEST_F(ReconcilerTest, a_changed_configuration_suspends_the_job_until_its_spec_changes) {
  make_job();
  settle();
  all_ready();
  settle();
  const Json refusal = {{"exitCode", 2}, {"reason", "ConfigurationChanged"}, {"message", "--lr is 1 and was 2"}};
  set_pod("sim-0-0", {{"phase", "Failed"},
                      {"containerStatuses",
                       Json::array({{{"name", "trainer"},
                                     {"state", {{"terminated", {{"exitCode", 2}, {"message", refusal.dump()}}}}}}})}});
  settle();
  EXPECT_EQ(phase_of(job()), "Suspended");
  EXPECT_EQ(job()["spec"].contains("suspend"), false);  // the user's, and untouched
  EXPECT_EQ(reason_of(job(), "Suspended"), "ConfigurationChanged");
  EXPECT_NE(message_of(job(), "Suspended").find("--lr is 1 and was 2"), std::string::npos);
  EXPECT_EQ(pod_names(), Names{"sim-0-0"});  // for its logs
  settle();
  EXPECT_EQ(phase_of(job()), "Suspended");
  change_spec({{"trainer", {{"args", {"run", "sasrec", "--lr", "2"}}}}});
  settle();
  EXPECT_EQ(reason_of(job(), "Suspended"), "Resumed");
  EXPECT_EQ(made["sim-0-1"], 1);
  EXPECT_EQ(made["sim-1-1"], 1);
}

// A webhook that says no without a code is answered with 400, a ValidatingAdmissionPolicy with 422, as the API server
// itself answers.
TEST_F(ReconcilerTest, what_admission_refuses_waits_and_says_why_whatever_its_code) {
  const std::string no = "admission webhook \"policy.example\" denied the request: not before noon";
  for (const auto& [code, reason] :
       std::map<int, std::string>{{400, ""}, {403, "Forbidden"}, {404, "NotFound"}, {422, "Invalid"}}) {
    ReconcilerFixture fixture;
    fixture.make_job();
    fixture.fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
      if (request.method != "POST" || request.path.find("/pods") == std::string::npos) return std::nullopt;
      return MemoryApiServer::status(code, reason, no);
    };
    fixture.settle();
    EXPECT_EQ(phase_of(fixture.job()), "Pending") << code;
    EXPECT_EQ(reason_of(fixture.job(), "PodsReady"), "InvalidSpec") << code;
    EXPECT_NE(message_of(fixture.job(), "PodsReady").find(no), std::string::npos) << code;
    fixture.fault = {};
    fixture.now += 11;
    fixture.settle();
    EXPECT_EQ(fixture.pod_names(), (ReconcilerFixture::Names{"sim-0-0", "sim-1-0"})) << code;
  }
}

// The operator's own rights, which no edit of the spec changes: the spec may not be edited for them.
TEST_F(ReconcilerTest, a_right_that_the_operator_lacks_is_not_the_spec_s_fault) {
  make_job();
  fault = [](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!makes_pod(request)) return std::nullopt;
    return MemoryApiServer::status(
        403, "Forbidden",
        "pods is forbidden: User \"system:serviceaccount:a:b\" cannot create resource \"pods\" "
        "in API group \"\" in the namespace \"ns\"");
  };
  settle();
  EXPECT_EQ(reason_of(job(), "PodsReady"), "CreateRefused");
}

TEST_F(ReconcilerTest, a_service_that_may_not_be_changed_back_holds_no_pod_up) {
  make_job();
  settle();
  Json service = *server->get(kube::kServices, {.ns = "ns", .name = "sim"});
  service["spec"]["publishNotReadyAddresses"] = false;  // somebody's
  server->put(kube::kServices, service);
  size_t refused = 0;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (request.method != "PATCH" || request.path.find("/services/") == std::string::npos) return std::nullopt;
    ++refused;
    return MemoryApiServer::status(403, "Forbidden", "a policy keeps Services as they are");
  };
  server->remove(kube::kPods, {.ns = "ns", .name = "sim-1-0"});
  settle();
  EXPECT_GT(refused, 0U);
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-1"}));
}

TEST_F(ReconcilerTest, a_server_that_is_in_trouble_is_asked_again) {
  make_job();
  fault = [](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!makes_pod(request)) return std::nullopt;
    return MemoryApiServer::status(500, "InternalError", "etcd is away");
  };
  sync();
  const auto result = reconcile();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kRetry);
  fault = {};
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
}

TEST_F(ReconcilerTest, a_namespace_that_ends_is_left_alone) {
  make_job();
  fault = [](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (!is_write(request) || request.method != "POST") return std::nullopt;
    Json body = Json::parse(MemoryApiServer::status(403, "Forbidden", "namespace ns is being terminated").body);
    body["details"]["causes"] = Json::array({{{"reason", "NamespaceTerminating"}, {"message", "it ends"}}});
    return kube::HttpResponse{.status = 403, .headers = {}, .body = body.dump()};
  };
  settle();
  const size_t before = writes;
  now += 60;
  settle();
  EXPECT_EQ(writes, before);
}

TEST_F(ReconcilerTest, an_answer_that_was_lost_makes_no_second_pod) {
  make_job();
  bool lost = false;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (lost || !makes_pod(request) || request.body.find("\"sim-1-0\"") == std::string::npos) return std::nullopt;
    lost = true;
    server->put(kube::kPods, Json::parse(request.body));        // it was made …
    return Error{ErrorCode::kUnavailable, "connection reset"};  // … and nobody knows
  };
  sync();
  EXPECT_FALSE(reconcile().ok());
  ASSERT_TRUE(reconcile().ok());  // the cache has not seen it
  now += 2;
  ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
  EXPECT_EQ(job()["status"]["bookkeeping"]["created"], "0-1");
  EXPECT_FALSE(job()["status"].contains("recentFailures") && !job()["status"]["recentFailures"].empty());
}

TEST_F(ReconcilerTest, a_cache_that_lost_a_pod_is_not_believed_before_the_server_was_asked) {
  make_job();
  settle();
  all_ready();
  settle();
  sync();
  control::replace(*pods, {});  // a list from a server that is far behind
  ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
  EXPECT_EQ(job()["status"]["restarts"]["total"], 0);
}

TEST_F(ReconcilerTest, a_pod_that_really_went_is_followed_by_the_next_attempt) {
  make_job();
  settle();
  all_ready();
  settle();
  server->remove(kube::kPods, {"ns", "sim-1-0"});
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-1"}));
}

TEST_F(ReconcilerTest, what_has_lost_its_label_gets_it_back) {
  make_job();
  settle();
  all_ready();
  settle();
  remove_label(kube::kServices, kJob);
  remove_label(kube::kPods, {"ns", "sim-1-0"});
  settle();
  EXPECT_EQ(job_of(*server->get(kube::kServices, kJob)), kJob);
  EXPECT_EQ(job_of(*server->get(kube::kPods, {"ns", "sim-1-0"})), kJob);
  EXPECT_EQ(reason_of(job(), "PodsReady"), "AllPodsReady");
  EXPECT_EQ(job()["status"]["restarts"]["total"], 0);
}

TEST_F(ReconcilerTest, a_label_that_somebody_takes_away_again_is_said_and_not_raced) {
  make_job();
  settle();
  all_ready();
  settle();
  int patches = 0;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (request.method != "PATCH") return std::nullopt;
    ++patches;
    return kube::HttpResponse{
        .status = 200, .headers = {}, .body = server->get(kube::kPods, {"ns", "sim-1-0"})->dump()};
  };
  remove_label(kube::kPods, {"ns", "sim-1-0"});
  for (int i = 0; i < 5; ++i) settle();
  EXPECT_EQ(patches, 1);
  EXPECT_EQ(reason_of(job(), "PodsReady"), "LabelMissing");
  EXPECT_NE(message_of(job(), "PodsReady").find("pod sim-1-0 is this job's and lacks lockstep.dev/job=sim"),
            std::string::npos);
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
  fault = {};
  now += 11;
  settle();
  EXPECT_EQ(reason_of(job(), "PodsReady"), "AllPodsReady");
}

TEST_F(ReconcilerTest, does_not_delete_a_pod_twice_while_the_watch_lags) {
  make_job();
  settle();
  all_ready();
  settle();
  // The pods take their time to go.
  for (const std::string& name : pod_names()) {
    Json pod = *server->get(kube::kPods, {"ns", name});
    pod["metadata"]["finalizers"] = Json::array({"test/slow"});
    server->put(kube::kPods, pod);
  }
  change_spec({{"suspend", true}});
  sync();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(server->count("DELETE /api/v1/namespaces/ns/pods/sim-0-0"), 1);
  EXPECT_EQ(server->count("DELETE /api/v1/namespaces/ns/pods/sim-1-0"), 1);
  EXPECT_EQ(reason_of(job(), "Suspended"), "Suspending");
}

TEST_F(ReconcilerTest, a_pod_that_it_has_deleted_is_not_overdue_before_the_watch_says_by_when_it_is_to_be_gone) {
  make_job();
  settle();
  all_ready();
  settle();
  change_spec({{"suspend", true}});
  sync();
  ASSERT_TRUE(reconcile().ok());
  ASSERT_TRUE(reconcile().ok());
  now += 60;  // the watch hangs
  ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(reason_of(job(), "Suspended"), "Suspending");
  sync();
  ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(reason_of(job(), "Suspended"), "Suspended");
}

TEST_F(ReconcilerTest, pods_that_went_for_a_suspend_that_is_taken_back_are_no_failures) {
  make_job();
  settle();
  all_ready();
  settle();
  Json pod = *server->get(kube::kPods, {"ns", "sim-0-0"});
  pod["metadata"]["finalizers"] = Json::array({"test/slow"});
  server->put(kube::kPods, pod);
  change_spec({{"suspend", true}});
  sync();
  ASSERT_TRUE(reconcile().ok());
  change_spec({{"suspend", false}});
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-0-1", "sim-1-1"}));
  EXPECT_EQ(job()["status"]["restarts"]["total"], 0);
}

TEST_F(ReconcilerTest, a_node_that_the_cache_lacks_is_not_gone_before_the_server_was_asked) {
  nodes = std::make_unique<control::Cache<NodeView>>(view_of_node);
  control::replace(*nodes, {});
  server->put(kube::kNodes, {{"metadata", {{"name", "node-a"}}}});
  start_operator();
  make_job();
  settle();
  all_ready();
  for (const std::string& name : pod_names()) {
    Json pod = *server->get(kube::kPods, {"ns", name});
    pod["status"]["startTime"] = api::format_time(now - 600);
    server->put(kube::kPods, pod);
  }
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
  EXPECT_EQ(job()["status"]["restarts"]["total"], 0);
  EXPECT_EQ(server->count("GET /api/v1/nodes"), 1);

  server->remove(kube::kNodes, {"", "node-a"});
  control::replace(*nodes, {}, "1000000");
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-1", "sim-1-1"}));
  EXPECT_EQ(job()["status"]["restarts"]["total"], 2);
  EXPECT_EQ(server->count("GET /api/v1/nodes"), 2);
}

// The job has no pod on the node that its new pod avoids.
TEST_F(ReconcilerTest, a_node_that_a_waiting_pod_avoids_is_looked_at) {
  nodes = std::make_unique<control::Cache<NodeView>>(view_of_node);
  server->put(kube::kNodes, {{"metadata", {{"name", "node-a"}}}});
  control::replace(*nodes, server->list(kube::kNodes));
  start_operator();
  make_job({{"trainer", {{"numNodes", 1}}}});
  settle();
  all_ready();
  settle();
  exited("sim-0-0", 12);
  settle();
  ASSERT_EQ(pod_names(), (Names{"sim-0-0", "sim-0-1"}));
  const auto avoids = [this](const std::string& name) {
    return text_field(*server->get(kube::kPods, {"ns", name}), {"metadata", "annotations", kAvoidsAnnotation});
  };
  EXPECT_EQ(avoids("sim-0-1"), "node-a");

  Json node = *server->get(kube::kNodes, {"", "node-a"});
  node["spec"]["unschedulable"] = true;
  server->put(kube::kNodes, node);
  control::replace(*nodes, server->list(kube::kNodes));
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-0-2"}));
  EXPECT_EQ(avoids("sim-0-2"), "");
}

TEST_F(ReconcilerTest, a_pod_whose_sidecar_cannot_be_pulled_is_asked_for_its_report) {
  report = R"({"generation": 1, "phase": "Running", "nnodes": 1, "wantedNodes": 1, "progress": {"step": 3}})";
  start_operator();
  make_job({{"trainer", {{"numNodes", 1}}}});
  settle();
  set_pod("sim-0-0",
          {{"phase", "Pending"},
           {"podIP", "10.0.0.1"},
           {"containerStatuses",
            Json::array({{{"name", "logs"}, {"ready", false}, {"state", {{"waiting", {{"reason", "ErrImagePull"}}}}}},
                         {{"name", "trainer"}, {"ready", true}, {"state", {{"running", Json::object()}}}}})}});
  settle();
  reports.wait(0);  // until one was read
  EXPECT_EQ(reason_of(job(), "PodsReady"), "AllPodsReady");
}

TEST_F(ReconcilerTest, a_claim_is_asked_for_by_its_name) {
  make_job({{"checkpoint", {{"volume", {{"persistentVolumeClaim", {{"claimName", "ckpt"}}}}}}}});
  settle();
  EXPECT_EQ(reason_of(job(), "PodsReady"), "ClaimMissing");
  EXPECT_NE(message_of(job(), "PodsReady").find("ckpt"), std::string::npos);
  EXPECT_EQ(pod_names(), Names{});
  server->put(kube::kPersistentVolumeClaims, {{"metadata", {{"namespace", "ns"}, {"name", "ckpt"}}}});
  now += 10;
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
}

TEST_F(ReconcilerTest, agents_are_asked_at_the_port_of_the_job) {
  report = R"({"generation":1,"phase":"Running","nnodes":2,"wantedNodes":2,"progress":{"step":5}})";
  make_job({{"elastic", {{"minNodes", 1}, {"maxNodes", 4}}}, {"trainer", {{"statusPort", 9090}}}});
  settle();
  all_ready();
  settle();
  reports.wait(0);
  change_spec({{"trainer", {{"numNodes", 3}}}});
  settle();
  ASSERT_EQ(sent_nums_of_nodes.size(), 1U);
  EXPECT_EQ(read_port, 9090);
  const std::lock_guard lock(announced_mutex);
  EXPECT_EQ(ports, std::set<int>{9090});
}

TEST_F(ReconcilerTest, num_nodes_is_sent_to_pod_0) {
  report = R"({"generation":1,"phase":"Running","nnodes":2,"wantedNodes":2,"progress":{"step":5}})";
  make_job({{"elastic", {{"minNodes", 1}, {"maxNodes", 4}}}});
  settle();
  all_ready();
  settle();
  reports.wait(0);
  change_spec({{"trainer", {{"numNodes", 3}}}});
  settle();
  ASSERT_EQ(sent_nums_of_nodes.size(), 1U);
  EXPECT_EQ(sent_nums_of_nodes[0].substr(0, 9), "10.0.0.1 ");
  EXPECT_EQ(sent_nums_of_nodes[0].substr(sent_nums_of_nodes[0].size() - 2), " 3");
  EXPECT_EQ(job()["status"]["progress"]["step"], 5);
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0", "sim-2-0"}));
}

TEST_F(ReconcilerTest, the_address_of_pod_0_is_sent_to_the_others) {
  make_job({{"trainer", {{"numNodes", 3}}}});
  settle();
  ready("sim-1-0", "10.0.0.2");
  settle();
  EXPECT_EQ(announcements(), 0U);
  ready("sim-0-0", "10.0.0.1");
  settle();
  const std::string token = token_begin();
  ASSERT_TRUE(wait_until_announced("10.0.0.2 " + token + " 10.0.0.1"));
  ready("sim-2-0", "10.0.0.3");
  settle();
  ASSERT_TRUE(wait_until_announced("10.0.0.3 " + token + " 10.0.0.1"));

  // Pod 0 comes back elsewhere.
  exited("sim-0-0", 1);
  settle();
  ready("sim-0-1", "10.0.0.7");
  settle();
  ASSERT_TRUE(wait_until_announced("10.0.0.2 " + token + " 10.0.0.7"));
  ASSERT_TRUE(wait_until_announced("10.0.0.3 " + token + " 10.0.0.7"));
  EXPECT_EQ(announcements(), 4U);
}

TEST_F(ReconcilerTest, a_former_leader_sends_no_coordinator_address) {
  make_job();
  settle();
  leads = false;
  ready("sim-0-0", "10.0.0.1");
  ready("sim-1-0", "10.0.0.2");
  sync();
  EXPECT_FALSE(reconcile().ok());
  leads = true;
  ready("sim-0-0", "10.0.0.3");
  settle();
  ASSERT_TRUE(wait_until_announced("10.0.0.2 " + token_begin() + " 10.0.0.3"));
  EXPECT_EQ(announcements(), 1U);
}

TEST_F(ReconcilerTest, the_time_to_live_deletes_the_job_and_only_this_one) {
  make_job({{"ttlSecondsAfterFinished", 60}});
  settle();
  for (const std::string& name : pod_names()) exited(name, 0);
  settle();
  EXPECT_EQ(phase_of(job()), "Complete");
  sync();
  const auto waits = reconcile();
  ASSERT_TRUE(waits.ok());
  EXPECT_EQ(waits->requeue_after, std::chrono::seconds(60));
  now += 60;
  ASSERT_TRUE(reconcile().ok());
  EXPECT_FALSE(server->get(kube::kTrainJobs, kJob).has_value());
}

TEST_F(ReconcilerTest, a_finished_job_that_has_just_got_more_time_is_not_deleted) {
  make_job({{"ttlSecondsAfterFinished", 60}});
  settle();
  for (const std::string& name : pod_names()) exited(name, 0);
  settle();
  change_spec({{"ttlSecondsAfterFinished", 600}});  // the cache does not show it yet
  now += 60;
  ASSERT_TRUE(reconcile().ok());
  settle();
  EXPECT_TRUE(server->get(kube::kTrainJobs, kJob).has_value());
  now += 540;
  ASSERT_TRUE(reconcile().ok());
  EXPECT_FALSE(server->get(kube::kTrainJobs, kJob).has_value());
}

TEST_F(ReconcilerTest, a_job_without_time_to_live_is_deleted_in_the_pass_that_finishes_it) {
  make_job({{"ttlSecondsAfterFinished", 0}});
  settle();
  for (const std::string& name : pod_names()) exited(name, 0);
  sync();
  ASSERT_TRUE(reconcile().ok());
  EXPECT_FALSE(server->get(kube::kTrainJobs, kJob).has_value());
  EXPECT_EQ(server->count("DELETE /apis/lockstep.dev/v1/namespaces/ns/trainjobs/sim"), 1);
}

TEST_F(ReconcilerTest, jobs_are_counted_by_phase_until_they_are_gone) {
  make_job();
  settle();
  const auto text = [&] { return prometheus::TextSerializer().Serialize(metrics->Collect()); };
  EXPECT_NE(text().find("lockstep_trainjobs{phase=\"Starting\"} 1"), std::string::npos) << text();
  server->remove(kube::kTrainJobs, kJob);
  sync();
  ASSERT_TRUE(reconcile().ok());
  EXPECT_NE(text().find("lockstep_trainjobs{phase=\"Starting\"} 0"), std::string::npos) << text();
}

TEST_F(ReconcilerTest, the_metrics_name_a_job_its_restarts_and_why_it_failed_until_it_is_gone) {
  make_job();
  settle();
  const auto has = [&](const std::string& line) {
    const std::string text = prometheus::TextSerializer().Serialize(metrics->Collect());
    return text.find(line + "\n") != std::string::npos;
  };
  const std::string name = R"(trainjob="sim",trainjob_namespace="ns")";
  EXPECT_TRUE(has(R"(lockstep_trainjob_info{phase="Starting",reason="",)" + name + "} 1"));
  exited("sim-1-0", 1);
  settle();
  EXPECT_TRUE(has(R"(lockstep_trainjob_restarts_total{reason="Crash",scope="pod",)" + name + "} 1"));
  exited("sim-0-0", 2);
  settle();
  ASSERT_EQ(phase_of(job()), "Failed");
  EXPECT_TRUE(has(R"(lockstep_trainjob_info{phase="Failed",reason="InvalidUsage",)" + name + "} 1"));
  EXPECT_FALSE(has(R"(lockstep_trainjob_info{phase="Starting",reason="",)" + name + "} 1"));
  server->remove(kube::kTrainJobs, kJob);
  sync();
  ASSERT_TRUE(reconcile().ok());
  EXPECT_EQ(prometheus::TextSerializer().Serialize(metrics->Collect()).find("trainjob="), std::string::npos);
}

TEST_F(ReconcilerTest, a_job_that_cannot_be_read_says_why_once_and_is_taken_up_when_its_spec_is_mended) {
  make_job({{"trainer", {{"numNodes", "two"}}}});
  settle();
  EXPECT_EQ(writes, 1U);
  EXPECT_EQ(phase_of(job()), "Pending");
  EXPECT_EQ(reason_of(job(), "PodsReady"), "InvalidSpec");
  EXPECT_NE(message_of(job(), "PodsReady").find("spec.trainer.numNodes: is \"two\""), std::string::npos);
  EXPECT_EQ(job()["status"]["message"], message_of(job(), "PodsReady"));
  change_spec({{"trainer", {{"numNodes", 2}}}});
  settle();
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
  EXPECT_NE(reason_of(job(), "PodsReady"), "InvalidSpec");
}

TEST_F(ReconcilerTest, a_job_whose_spec_becomes_unreadable_keeps_its_pods_and_its_phase) {
  make_job();
  settle();
  all_ready();
  settle();
  const std::string phase = phase_of(job());
  const Json nodes = job()["spec"]["trainer"]["numNodes"];
  change_spec({{"trainer", {{"numNodes", "many"}}}});
  settle();
  EXPECT_EQ(phase_of(job()), phase);
  EXPECT_EQ(reason_of(job(), "PodsReady"), "InvalidSpec");
  EXPECT_EQ(pod_names(), (Names{"sim-0-0", "sim-1-0"}));
  change_spec({{"trainer", {{"numNodes", nodes}}}});
  settle();
  EXPECT_EQ(reason_of(job(), "PodsReady"), "AllPodsReady");
}

TEST_F(ReconcilerTest, nothing_is_written_about_an_unreadable_job_of_another_controller) {
  make_job({{"managedBy", "example.com/other"}, {"trainer", {{"numNodes", "two"}}}});
  settle();
  EXPECT_EQ(writes, 0U);
}

// The cached job may lack parts of its spec, so that no write may contain it.
TEST_F(ReconcilerTest, a_status_is_written_without_the_spec) {
  std::vector<Json> bodies;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (request.method == "PUT") bodies.push_back(Json::parse(request.body));
    return std::nullopt;
  };
  make_job();
  settle();
  ASSERT_FALSE(bodies.empty());
  for (const Json& body : bodies) {
    EXPECT_FALSE(body.contains("spec"));
    EXPECT_FALSE(api::meta_of(body).resource_version.empty());
    EXPECT_EQ(api::meta_of(body).uid, api::meta_of(job()).uid);
  }
  EXPECT_EQ(job()["spec"]["trainer"]["image"], "i");
}

// ---- the operator dies after its n-th write, for every n ----

// Make, fail, replace, suspend, resume, scale, finish.
class WholeLife : public ReconcilerFixture {
 public:
  void live() {
    make_job({{"elastic", {{"minNodes", 1}, {"maxNodes", 3}}}, {"networkPolicy", "IntraJob"}});
    settle();
    all_ready();
    settle();
    exited("sim-1-0", 1);
    settle();
    all_ready();
    settle();
    change_spec({{"trainer", {{"numNodes", 3}}}});
    settle();
    all_ready();
    settle();
    change_spec({{"suspend", true}});
    settle();
    change_spec({{"suspend", false}, {"trainer", {{"numNodes", 1}}}});
    settle();
    all_ready();
    settle();
    for (const std::string& name : pod_names()) exited(name, 0);
    settle();
  }

  // What is left, without its times, and without what the API server is asked again after a death: a first pod.
  Json end() {
    Json status = job()["status"];
    status["bookkeeping"].erase("checkedGeneration");
    status["bookkeeping"].erase("firstDoneAt");
    for (const char* times : {"startTime", "completionTime"}) status.erase(times);
    for (Json& condition : status["conditions"]) condition.erase("lastTransitionTime");
    for (Json& failure : status["recentFailures"]) failure.erase("time");
    return {{"status", status}, {"pods", pod_names()}, {"made", made}};
  }
};

TEST(ReconcilerDies, after_any_write_and_the_end_is_the_same) {
  WholeLife undisturbed;
  undisturbed.live();
  const Json expected = undisturbed.end();
  EXPECT_EQ(expected["status"]["phase"], "Complete") << expected.dump(2);
  EXPECT_EQ(expected["status"]["restarts"]["pod"], 1);
  const size_t all_writes = undisturbed.writes;
  ASSERT_GT(all_writes, 15U);
  for (size_t n = 0; n < all_writes; ++n) {
    WholeLife life;
    life.dies_after = n;
    life.live();
    EXPECT_EQ(life.end(), expected) << "died after write " << n << '\n' << life.end().dump(2) << expected.dump(2);
    for (const auto& [name, times] : life.made) EXPECT_EQ(times, 1) << name << " after write " << n;
    if (testing::Test::HasFailure()) return;
  }
}

// --- kinds that a cluster may lack

TEST_F(ReconcilerTest, a_job_whose_status_says_admitted_gets_no_pods_before_its_workload_can_be_read) {
  std::atomic<int> answer = 500;
  fault = [&](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (request.path.find("kueue.x-k8s.io") == std::string::npos) return std::nullopt;
    return MemoryApiServer::status(answer, "Error", "no answer");
  };
  control::Journal changes;
  control::OptionalInformer workloads(client, {.versions = kube::kKueueWorkloads,
                                               .poll_every = std::chrono::milliseconds(1),
                                               .on_kind_change = [&] { changes.write("changed"); }});
  optional[kube::kKueueWorkloads.front().crd_name()] = &workloads;
  start_operator();
  make_job({{"trainer", {{"numNodes", 4}}}});  // its queue's label was removed
  Json object = job();
  object["status"] = {
      {"phase", "Running"},
      {"nodes", {{"desired", 2}}},
      {"conditions", Json::array({{{"type", "Admitted"}, {"status", "True"}, {"reason", "Admitted"}}})}};
  server->put(kube::kTrainJobs, object);
  sync();
  const auto expect_waits = [this] {
    const auto result = reconcile();
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->requeue_after, std::chrono::seconds(1));
    EXPECT_EQ(pod_names(), Names{});
  };
  expect_waits();  // nobody has asked the API server yet
  workloads.start();
  ASSERT_TRUE(changes.wait_for("changed"));
  ASSERT_FALSE(workloads.wanted().trouble.empty());
  expect_waits();
  answer = 404;  // there is no Kueue
  ASSERT_TRUE(changes.wait_until([](const auto& lines) { return lines.size() > 1; }));
  settle();
  EXPECT_EQ(pod_names().size(), 4U);
}

}  // namespace
}  // namespace lockstep::train
