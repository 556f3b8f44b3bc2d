#include "operator/caches.h"

#include <chrono>
#include <optional>
#include <utility>

#include "operator/train/object_names.h"
#include "operator/train/observed.h"
#include "operator/train/trim.h"
#include "runner/base/mutex.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kSyncLook{200};

api::ObjectKey job_behind(const control::Cache::Change& change) {
  return train::job_of(change.after != nullptr ? *change.after : *change.before);
}

// Kubernetes writes the status of a PodDisruptionBudget whenever a pod gets ready or ceases to be; no job's plan reads
// it.
bool is_only_status_of_budget(const control::Cache::Change& change) {
  if (change.before == nullptr || change.after == nullptr) return false;
  if (text_field(*change.after, {"kind"}) != kube::disruption_budgets().front().kind) return false;
  const api::ObjectMeta before = api::meta_of(*change.before);
  const api::ObjectMeta after = api::meta_of(*change.after);
  return before.generation == after.generation && before.deletion_time == after.deletion_time;
}

}  // namespace

Caches::Caches(kube::Client& client, control::Workqueue& queue, const std::string& ns, const Logger& logger)
    : client_(client), queue_(queue), logger_(logger) {
  const std::string of_a_job(train::kJobLabel);
  jobs_ = informer(kube::train_jobs(), ns, "", train::trim_job);
  pods_ = informer(kube::pods(), ns, of_a_job, train::trim_pod, train::pod_index);
  services_ = informer(kube::services(), ns, of_a_job, train::trim_service);
  policies_ = informer(kube::network_policies(), ns, of_a_job, train::trim_network_policy);
  if (ns.empty()) nodes_ = informer(kube::nodes(), "", "", train::trim_node);
  // A change that a pass has put into the cache itself needs no new pass: that pass, or the one after it, has planned
  // with it.
  jobs_->on_change([this](const control::Cache::Change& change) {
    if (change.was_assumed) return;
    queue_.add(api::key_of(change.after != nullptr ? *change.after : *change.before));
  });
  pods_->on_change([this](const control::Cache::Change& change) { enqueue_job_of_pod(change); });
  for (control::Informer* const owned : {services_.get(), policies_.get()}) {
    owned->on_change([this](const control::Cache::Change& change) { enqueue_job_of(change); });
  }
  for (const kube::Versions* const kinds :
       {&kube::native_pod_groups(), &kube::volcano_pod_groups(), &kube::coscheduling_pod_groups(),
        &kube::kueue_workloads(), &kube::disruption_budgets()}) {
    add_optional(*kinds, ns, of_a_job);
  }
  if (nodes_) nodes_->on_change([this](const control::Cache::Change& change) { enqueue_jobs_of_node(change); });
}

std::unique_ptr<control::Informer> Caches::informer(const kube::Resource& resource, const std::string& ns,
                                                    const std::string& selector, control::Cache::Trim trim,
                                                    control::Cache::Index index) {
  const std::string& what = resource.plural;
  auto made = std::make_unique<control::Informer>(
      client_, resource,
      control::Informer::Options{.ns = ns,
                                 .label_selector = selector,
                                 .trim = std::move(trim),
                                 .index = std::move(index),
                                 .logger = logger_.with({{"resource", what}}),
                                 .on_problem = [this, what](const control::ReflectorProblem& problem) {
                                   const MutexLock lock(mutex_);
                                   problems_[what] = problem.line;
                                 }});
  all_[what] = made.get();
  return made;
}

void Caches::add_optional(const kube::Versions& versions, const std::string& ns, const std::string& selector) {
  const std::string name = versions.front().crd_name();
  auto made = std::make_unique<control::OptionalInformer>(
      client_, control::OptionalInformer::Options{.versions = versions,
                                                  .informer = {.ns = ns,
                                                               .label_selector = selector,
                                                               .trim = train::trim_whole,
                                                               .index = train::job_index,
                                                               .logger = logger_.with({{"resource", name}}),
                                                               .on_problem = {}},
                                                  .on_kind_change = [this] {
                                                    for (const control::ObjectPtr& job : jobs().list()) {
                                                      queue_.add(api::key_of(*job));
                                                    }
                                                  }});
  made->on_change([this](const control::Cache::Change& change) {
    if (!is_only_status_of_budget(change)) enqueue_job_of(change);
  });
  optional_.emplace(name, std::move(made));
}

std::map<std::string, control::OptionalInformer*> Caches::optional() {
  std::map<std::string, control::OptionalInformer*> all;
  for (const auto& [name, informer] : optional_) all.emplace(name, informer.get());
  return all;
}

void Caches::enqueue_job_of(const control::Cache::Change& change) {
  if (change.was_assumed) return;
  if (const api::ObjectKey job = job_behind(change); !job.name.empty()) queue_.add(job);
}

void Caches::enqueue_job_of_pod(const control::Cache::Change& change) {
  const api::ObjectKey job = job_behind(change);
  if (job.name.empty()) return;
  const bool is_gone = change.after == nullptr;
  const auto turn = pod_event_delay_.turn_after(is_gone ? *change.before : *change.after, is_gone);
  if (change.was_assumed) return;
  turn.goes_first ? queue_.add_first(job) : queue_.add_within(job, turn.wait);
}

// Kubelets write their node's status all the time; jobs are reconciled only when a field that is read has changed.
void Caches::enqueue_jobs_of_node(const control::Cache::Change& change) {
  const bool is_same = change.before != nullptr && change.after != nullptr &&
                       train::view_of_node(*change.before) == train::view_of_node(*change.after);
  if (is_same || change.before == nullptr) return;
  const std::string name = api::key_of(*change.before).name;
  for (const control::ObjectPtr& pod : pods().find(train::node_index_value(name))) queue_.add(train::job_of(*pod));
}

void Caches::start() {
  // Workloads may have outlived their TrainJobs, and wait for the operator to remove its finalizer.
  optional_.at(kube::kueue_workloads().front().crd_name())->wanted();
  for (const auto& [what, informer] : all_) informer->start();
  for (const auto& [name, informer] : optional_) informer->start();
}

void Caches::stop_and_join() {
  for (const auto& [name, informer] : optional_) informer->stop_and_join();
  for (const auto& [what, informer] : all_) informer->stop_and_join();
}

void Caches::wait_until_synced(const std::stop_token& ended) {
  for (const auto& [what, informer] : all_) {
    while (!ended.stop_requested() && !informer->wait_until_synced(kSyncLook)) continue;
  }
}

std::vector<control::HealthCheck> Caches::readiness() {
  std::vector<control::HealthCheck> checks;
  for (const auto& [what, informer] : all_) {
    checks.push_back(
        {.name = what, .trouble = [this, what = what, informer = informer]() -> std::optional<std::string> {
           if (informer->cache().synced()) return std::nullopt;
           const MutexLock lock(mutex_);
           const auto why = problems_.find(what);
           return "no list of " + what + " yet" + (why == problems_.end() ? "" : ": " + why->second);
         }});
  }
  return checks;
}

}  // namespace lockstep
