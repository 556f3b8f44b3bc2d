// Caches: what the operator watches, and which jobs are reconciled when a watched object changes.
//
// Threads: made by one, which also starts and ends it; one thread per informer, which puts keys into the queue. The
// caches may be read from all threads, also after the end.
#pragma once

#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "operator/control/health_server.h"
#include "operator/control/informer.h"
#include "operator/control/optional_informer.h"
#include "operator/control/workqueue.h"
#include "operator/kube/client.h"
#include "operator/train/observed.h"
#include "operator/train/pod_event_delay.h"
#include "operator/train/trim.h"
#include "runner/base/log.h"
#include "runner/base/mutex.h"

namespace lockstep {

class Caches {
 public:
  // `ns`: empty for all namespaces. `client` and `queue` outlive the caches.
  Caches(kube::Client& client, control::Workqueue& queue, const std::string& ns, const Logger& logger);

  void start();
  void stop_and_join();
  // Blocks until every cache has received its first complete list, or a stop is requested on `ended`.
  void wait_until_synced(const std::stop_token& ended);
  // One per informer.
  std::vector<control::HealthCheck> readiness();

  [[nodiscard]] control::Cache<train::JobView>& jobs() { return jobs_->cache(); }
  [[nodiscard]] control::Cache<train::PodView>& pods() { return pods_->cache(); }
  [[nodiscard]] control::Cache<Json>& services() { return services_->cache(); }
  [[nodiscard]] control::Cache<Json>& network_policies() { return policies_->cache(); }
  // Kinds that the cluster may lack, by CRD name. A missing kind does not make the operator unready.
  [[nodiscard]] std::map<std::string, control::OptionalInformer*> optional();
  // nullptr: an operator of a single namespace has no rights on Kubernetes nodes.
  [[nodiscard]] control::Cache<train::NodeView>* nodes() { return nodes_ ? &nodes_->cache() : nullptr; }

 private:
  template <typename View>
  using InformerPtr = std::unique_ptr<control::Informer<View>>;

  template <typename View>
  InformerPtr<View> informer(const kube::Resource& resource, const std::string& ns, const std::string& selector,
                             typename control::Cache<View>::Read read, typename control::Cache<View>::Index index = {});
  void add_optional(const kube::Versions& versions, const std::string& ns, const std::string& selector);
  void enqueue_job_of(const control::Cache<Json>::Change& change);
  void enqueue_job_of_pod(const control::Cache<train::PodView>::Change& change);
  void enqueue_jobs_of_node(const control::Cache<train::NodeView>::Change& change);
  template <typename Act>
  void for_each_informer(Act act);

  kube::Client& client_;
  control::Workqueue& queue_;
  const Logger logger_;
  Mutex mutex_;
  std::map<std::string, std::string> problems_ GUARDED_BY(mutex_);  // by resource, the newest
  train::PodEventDelay pod_event_delay_;                            // of the pods' informer's thread
  // By CRD name; not changed after the constructor.
  std::map<std::string, std::unique_ptr<control::OptionalInformer>> optional_;
  InformerPtr<train::JobView> jobs_;
  InformerPtr<train::PodView> pods_;
  InformerPtr<Json> services_, policies_;
  InformerPtr<train::NodeView> nodes_;
};

}  // namespace lockstep
