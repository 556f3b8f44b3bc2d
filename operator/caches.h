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
#include "operator/train/pod_event_delay.h"
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

  [[nodiscard]] control::Cache& jobs() { return jobs_->cache(); }
  [[nodiscard]] control::Cache& pods() { return pods_->cache(); }
  [[nodiscard]] control::Cache& services() { return services_->cache(); }
  [[nodiscard]] control::Cache& network_policies() { return policies_->cache(); }
  // Kinds that the cluster may lack, by CRD name. A missing kind does not make the operator unready.
  [[nodiscard]] std::map<std::string, control::OptionalInformer*> optional();
  // nullptr: an operator of a single namespace has no rights on Kubernetes nodes.
  [[nodiscard]] control::Cache* nodes() { return nodes_ ? &nodes_->cache() : nullptr; }

 private:
  std::unique_ptr<control::Informer> informer(const kube::Resource& resource, const std::string& ns,
                                              const std::string& selector, control::Cache::Trim trim,
                                              control::Cache::Index index = {});
  void add_optional(const kube::Versions& versions, const std::string& ns, const std::string& selector);
  void enqueue_job_of(const control::Cache::Change& change);
  void enqueue_job_of_pod(const control::Cache::Change& change);
  void enqueue_jobs_of_node(const control::Cache::Change& change);

  kube::Client& client_;
  control::Workqueue& queue_;
  const Logger logger_;
  Mutex mutex_;
  std::map<std::string, std::string> problems_ GUARDED_BY(mutex_);  // by resource, the newest
  train::PodEventDelay pod_event_delay_;                            // of the pods' informer's thread
  std::map<std::string, control::Informer*> all_;                   // by resource; not changed after the constructor
  std::map<std::string, std::unique_ptr<control::OptionalInformer>> optional_;  // by CRD name; likewise
  std::unique_ptr<control::Informer> jobs_, pods_, services_, policies_, nodes_;
};

}  // namespace lockstep
