// Reconciler: gathers the input of make_plan and carries its plan out. make_plan makes every decision.
//
// One pass: observe (caches, pod 0's newest report) → plan → write the status → events and measurements → actions in
// their order. When the status write is refused (somebody else has written meanwhile), nothing of the plan is carried
// out: the TrainJob is read from the API server and planned for once more. A pass that learned something (a pod was
// created, or refused) is followed by another one at once.
//
// Between passes it remembers what requests have shown about a job; all of it may be lost at any time.
// Threads: reconcile() from several at a time, never for one job.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "operator/control/cache.h"
#include "operator/control/controller.h"
#include "operator/control/event_recorder.h"
#include "operator/control/optional_informer.h"
#include "operator/kube/client.h"
#include "operator/train/coordinator_announcer.h"
#include "operator/train/job_metrics.h"
#include "operator/train/observed.h"
#include "operator/train/progress_reader.h"
#include "operator/train/trim.h"
#include "runner/base/log.h"

namespace lockstep::train {

class Reconciler {
 public:
  // All of them outlive the reconciler.
  struct Context {
    kube::Client& client;
    control::Cache<JobView>& jobs;
    control::Cache<PodView>& pods;  // with pod_index
    control::Cache<Json>& services;
    control::Cache<Json>& network_policies;
    control::Cache<NodeView>* nodes =
        nullptr;  // nullptr: the operator may not read them (it manages one namespace only)
    std::map<std::string, control::OptionalInformer*> optional;  // by CRD name; each with job_index
    control::EventRecorder& events;
    ProgressReader& progress;
    CoordinatorAnnouncer& announcer;
    JobMetrics& metrics;
  };
  struct Options {
    Settings settings;
    // POST /nodes at this address.
    std::function<Status(const std::string& ip, int port, const std::string& token, int num_nodes)> send_num_nodes;
    std::function<api::UnixSeconds()> now;  // the system's clock when it is absent
    std::function<bool()> may_write;        // false: somebody else leads by now; absent: always
    Logger logger = Logger::silent();
  };
  Reconciler(Context context, Options options);
  ~Reconciler();
  Reconciler(const Reconciler&) = delete;
  Reconciler& operator=(const Reconciler&) = delete;

  // kRetry, kUnavailable and the like: look again, with backoff. kCancelled: we no longer lead.
  Result<control::ReconcileResult> reconcile(const api::ObjectKey& key);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train
