#include "operator/caches.h"

#include <chrono>
#include <optional>
#include <utility>

#include "operator/train/object_names.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kSyncPollInterval{200};

// Kubernetes writes the status of a PodDisruptionBudget whenever a pod gets ready or ceases to be; no job's plan reads
// it.
bool is_only_status_of_budget(const control::Cache<Json>::Change& change) {
  if (change.before == nullptr || change.after == nullptr) return false;
  if (text_field(*change.after, {"kind"}) != kube::kDisruptionBudgets.front().kind) return false;
  const api::ObjectMeta before = api::meta_of(*change.before);
  const api::ObjectMeta after = api::meta_of(*change.after);
  return before.generation == after.generation && before.deletion_time == after.deletion_time;
}

}  // namespace

Caches::Caches(kube::Client& client, control::Workqueue& queue, const std::string& ns, const Logger& logger)
    : client_(client), queue_(queue), logger_(logger) {
  const std::string of_a_job(train::kJobLabel);
  jobs_ = informer<train::JobView>(kube::kTrainJobs, ns, "", train::view_of_job);
  pods_ = informer<train::PodView>(kube::kPods, ns, of_a_job, train::view_of_pod, train::pod_index);
  services_ = informer<Json>(kube::kServices, ns, of_a_job, train::trim_service);
  policies_ = informer<Json>(kube::kNetworkPolicies, ns, of_a_job, train::trim_network_policy);
  if (ns.empty()) nodes_ = informer<train::NodeView>(kube::kNodes, "", "", train::view_of_node);
  // A change that a pass has put into the cache itself needs no new pass: that pass, or the one after it, has planned
  // with it.
  jobs_->on_change([this](const control::Cache<train::JobView>::Change& change) {
    if (!change.was_assumed) queue_.add(change.key);
  });
  pods_->on_change([this](const control::Cache<train::PodView>::Change& change) { enqueue_job_of_pod(change); });
  for (control::Informer<Json>* const owned : {services_.get(), policies_.get()}) {
    owned->on_change([this](const control::Cache<Json>::Change& change) { enqueue_job_of(change); });
  }
  for (const kube::Versions* const kinds :
       {&kube::kNativePodGroups, &kube::kVolcanoPodGroups, &kube::kCoschedulingPodGroups, &kube::kKueueWorkloads,
        &kube::kDisruptionBudgets}) {
    add_optional(*kinds, ns, of_a_job);
  }
  if (nodes_) {
    nodes_->on_change([this](const control::Cache<train::NodeView>::Change& change) { enqueue_jobs_of_node(change); });
  }
}

template <typename View>
Caches::InformerPtr<View> Caches::informer(const kube::Resource& resource, const std::string& ns,
                                           const std::string& selector, typename control::Cache<View>::Read read,
                                           typename control::Cache<View>::Index index) {
  const std::string& what = resource.plural;
  return std::make_unique<control::Informer<View>>(
      client_, resource,
      typename control::Informer<View>::Options{.ns = ns,
                                                .label_selector = selector,
                                                .read = std::move(read),
                                                .index = std::move(index),
                                                .logger = logger_.with({{"resource", what}}),
                                                .on_problem = [this, what](const control::ReflectorProblem& problem) {
                                                  const MutexLock lock(mutex_);
                                                  problems_[what] = problem.line;
                                                }});
}

template <typename Act>
void Caches::for_each_informer(Act act) {
  act(*jobs_);
  act(*pods_);
  act(*services_);
  act(*policies_);
  if (nodes_) act(*nodes_);
}

void Caches::add_optional(const kube::Versions& versions, const std::string& ns, const std::string& selector) {
  const std::string name = versions.front().crd_name();
  auto made = std::make_unique<control::OptionalInformer>(
      client_, control::OptionalInformer::Options{.versions = versions,
                                                  .informer = {.ns = ns,
                                                               .label_selector = selector,
                                                               .read = train::trim_whole,
                                                               .index = train::job_index,
                                                               .logger = logger_.with({{"resource", name}}),
                                                               .on_problem = {}},
                                                  .on_kind_change = [this] {
                                                    for (const auto& job : jobs().list()) queue_.add(job->meta.key());
                                                  }});
  made->on_change([this](const control::Cache<Json>::Change& change) {
    if (!is_only_status_of_budget(change)) enqueue_job_of(change);
  });
  optional_.emplace(name, std::move(made));
}

std::map<std::string, control::OptionalInformer*> Caches::optional() {
  std::map<std::string, control::OptionalInformer*> all;
  for (const auto& [name, informer] : optional_) all.emplace(name, informer.get());
  return all;
}

void Caches::enqueue_job_of(const control::Cache<Json>::Change& change) {
  if (change.was_assumed) return;
  for (const control::ObjectPtr& object : {change.before, change.after}) {  // its label may have been changed
    if (object == nullptr) continue;
    if (const api::ObjectKey job = train::job_of(*object); !job.name.empty()) queue_.add(job);
  }
}

void Caches::enqueue_job_of_pod(const control::Cache<train::PodView>::Change& change) {
  const bool has_both = change.before != nullptr && change.after != nullptr;
  if (has_both && change.before->job != change.after->job) {  // its label was changed: gone for one, new to the other
    enqueue_job_of_pod({.key = change.key, .before = change.before});
    enqueue_job_of_pod({.key = change.key, .after = change.after, .was_assumed = change.was_assumed});
    return;
  }
  const api::ObjectKey job = (change.after != nullptr ? change.after : change.before)->job;
  if (job.name.empty()) return;
  if (change.was_only_assumed) return queue_.add_first(job);  // no event has brought it, so it is not counted
  const auto turn = pod_event_delay_.turn_after(change.before.get(), change.after.get());
  if (change.was_assumed) return;
  turn.goes_first ? queue_.add_first(job) : queue_.add_within(job, turn.wait);
}

// Kubelets write their node's status all the time; jobs are reconciled only when a field that is read has changed.
void Caches::enqueue_jobs_of_node(const control::Cache<train::NodeView>::Change& change) {
  const bool is_same = change.before != nullptr && change.after != nullptr && *change.before == *change.after;
  if (is_same || change.before == nullptr) return;
  for (const auto& pod : pods().find(train::node_index_value(change.key.name))) queue_.add(pod->job);
}

void Caches::start() {
  // Workloads may have outlived their TrainJobs, and wait for the operator to remove its finalizer.
  optional_.at(kube::kKueueWorkloads.front().crd_name())->wanted();
  for_each_informer([](auto& informer) { informer.start(); });
  for (const auto& [name, informer] : optional_) informer->start();
}

void Caches::stop_and_join() {
  for (const auto& [name, informer] : optional_) informer->stop_and_join();
  for_each_informer([](auto& informer) { informer.stop_and_join(); });
}

void Caches::wait_until_synced(const std::stop_token& ended) {
  for_each_informer([&](auto& informer) {
    while (!ended.stop_requested() && !informer.wait_until_synced(kSyncPollInterval)) continue;
  });
}

std::vector<control::HealthCheck> Caches::readiness() {
  std::vector<control::HealthCheck> checks;
  for_each_informer([&](auto& informer) {
    const std::string what = informer.resource().plural;
    checks.push_back({.name = what, .trouble = [this, what, &informer]() -> std::optional<std::string> {
                        if (informer.cache().synced()) return std::nullopt;
                        const MutexLock lock(mutex_);
                        const auto why = problems_.find(what);
                        return "no list of " + what + " yet" + (why == problems_.end() ? "" : ": " + why->second);
                      }});
  });
  return checks;
}

}  // namespace lockstep
