// Which jobs are reconciled when an object changes.
#include "operator/caches.h"

#include <gtest/gtest.h>

#include <set>

#include "operator/train/object_names.h"
#include "tests/operator/control/memory_api_server.h"

namespace lockstep {
namespace {

TEST(Caches, an_object_whose_label_is_changed_concerns_both_jobs) {
  const auto server = std::make_shared<control::MemoryApiServer>();
  server->intercept([](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
    if (request.path.find("kueue") == std::string::npos) return std::nullopt;
    return control::MemoryApiServer::status(404, "NotFound", "no such thing");
  });
  kube::Client client(server, {.retry_for = std::chrono::milliseconds(0)});
  control::Workqueue queue;
  Caches caches(client, queue, "ns", Logger::silent());
  caches.start();
  caches.wait_until_synced({});
  // Pods that have failed are reported without delay.
  const auto put = [&](const kube::Resource& resource, const std::string& name, const std::string& job) {
    server->put(resource, {{"metadata",
                            {{"namespace", "ns"}, {"name", name}, {"labels", {{std::string(train::kJobLabel), job}}}}},
                           {"status", {{"phase", "Failed"}}}});
  };
  // All that concerns other jobs, up to the next change of job `last`.
  const auto jobs_before = [&](const std::string& last) {
    std::set<std::string> jobs;
    while (true) {
      const std::string job = queue.get({})->name;
      queue.done({.ns = "ns", .name = job});
      if (job == last) return jobs;
      jobs.insert(job);
    }
  };
  for (const kube::Resource& resource : {kube::kPods, kube::kServices}) {
    put(resource, "object", "a");
    put(resource, "first", "first");
    EXPECT_EQ(jobs_before("first"), std::set<std::string>{"a"}) << resource.kind;
    put(resource, "object", "b");
    put(resource, "second", "second");
    EXPECT_EQ(jobs_before("second"), (std::set<std::string>{"a", "b"})) << resource.kind;
  }
}

}  // namespace
}  // namespace lockstep
