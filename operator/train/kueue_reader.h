// KueueReader: reads from the API server what kueue.h's decisions look at: Workloads from their cache, flavours and
// priority classes by their names, when a Workload needs them.
//
// Threads: read() and release_orphans() may run on several threads at a time, but only one may use a KueueMemory.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "operator/api/trainjob.h"
#include "operator/control/optional_informer.h"
#include "operator/kube/client.h"
#include "operator/train/kueue_workload.h"
#include "operator/train/pod_view.h"
#include "runner/base/result.h"

namespace lockstep::train {

// Seconds between two looks at what no watch reports: flavours and priority classes, pods that get overdue.
inline constexpr api::UnixSeconds kReadAgainSeconds = 10;

// What was read for one TrainJob. Losing it costs a request or two.
struct KueueMemory {
  std::string admission;  // which one `flavors` are of; all its pods get the same
  std::map<std::string, std::optional<Json>> flavors;
  api::UnixSeconds flavors_read_at = 0;
  std::string priority_class;  // which one `priority` is of
  std::optional<WorkloadPriority> priority;
  api::UnixSeconds priority_read_at = 0;
};

class KueueReader {
 public:
  // `workloads` may be nullptr: then there is no Kueue. Both outlive the reader.
  KueueReader(kube::Client& client, control::OptionalInformer* workloads) : client_(client), workloads_(workloads) {}

  // nullopt: it is not known whether the job has a Workload. One that may have one (may_have_workload) must then be
  // reconciled again soon.
  Result<std::optional<KueueView>> read(const api::TrainJob& job, KueueMemory& memory, api::UnixSeconds now) const;

  // Carries out what release_orphans (kueue.h) says of Workloads of the name `job`. `pods`: those of all jobs. True: an
  // orphan still waits for pods. Call again after kReadAgainSeconds, because nothing tells when a pod gets overdue.
  Result<bool> release_orphans(const api::ObjectKey& job, const std::string& job_uid,
                               const control::Cache<PodView>& pods, api::UnixSeconds now) const;

  // Puts the answer to a patch of a Workload into the cache. A Workload that has lost its last finalizer is gone.
  static void assume(const Json& stored, control::Cache<Json>& cache);

 private:
  Status read_flavors(const Workload& workload, KueueMemory& memory, api::UnixSeconds now, KueueView& view) const;
  Status read_priority(const api::TrainJob& job, KueueMemory& memory, api::UnixSeconds now, KueueView& view) const;
  Result<WorkloadPriority> priority_of(const api::TrainJob& job, const std::string& version) const;

  kube::Client& client_;
  control::OptionalInformer* const workloads_;
};

}  // namespace lockstep::train
