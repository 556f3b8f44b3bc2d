// RunReport: the part of pod 0's /status that the plan reads (runner/contract/run_status.h writes it). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "operator/api/trainjob.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::train {

inline constexpr size_t kReportedMetricsMax = 20;  // figures of the last evaluation, for the status

// Workers that load their data and have made no progress for this long may hang.
inline constexpr double kLoadingSilentSeconds = 60.0;

// The agent's status calls an agent a node, as torchrun does.
struct ReportedAgent {
  int node_rank = 0;
  int attempt = 0;
  std::string state;  // "member", "waiting", "lost", "leaving", "done"
  bool operator==(const ReportedAgent&) const = default;
};

struct SlowestRank {
  int rank = 0;
  int node_rank = -1;  // -1: not known
  bool operator==(const SlowestRank&) const = default;
};

// Workers load or prepare their data before the first group.
struct ReportedLoading {
  int64_t prepared = 0;  // in pod 0
  int64_t to_prepare = 0;
  double seconds_unchanged = 0.0;  // since the newest sign of progress in any pod
  bool operator==(const ReportedLoading&) const = default;
};

struct RunReport {
  // Of the TrainJob; each is empty in a report that does not say it.
  std::string job;  // its name
  std::string job_namespace;
  std::string job_uid;
  std::string pod_uid;           // of the pod 0 that the report is from
  api::UnixSeconds read_at = 0;  // when it was read
  uint64_t generation = 0;
  std::string phase;   // "Starting", "Running", "Recovering", "Stopping", "Complete", "Failed"
  std::string reason;  // of the last membership decision
  std::string origin;  // "resumed from /checkpoints/…": of the state, in the agent's first group
  int num_nodes = 0;   // in the group
  std::optional<int> wanted_nodes;
  std::vector<ReportedAgent> agents;  // of node ranks 0 … num_nodes - 1, each at most once
  std::optional<ReportedLoading> loading;
  std::optional<api::JobProgress> progress;  // without metrics, the last checkpoint's step and the time
  std::vector<api::MetricValue> metrics;
  std::optional<int64_t> checkpoint_step;
  int64_t process_restarts = 0;              // by the agent that the report is from, since its start
  std::vector<api::RecentFailure> failures;  // the newest ten, without attempt and host; node -1: not known
  std::optional<SlowestRank> slowest;

  bool operator==(const RunReport&) const = default;
  // Workers load their data and make progress with it; this may take hours.
  [[nodiscard]] bool is_loading() const { return loading && loading->seconds_unchanged < kLoadingSilentSeconds; }
  [[nodiscard]] bool is_running() const { return phase == "Running"; }
  [[nodiscard]] bool is_ending() const { return phase == "Stopping" || phase == "Complete"; }
};

// `num_nodes`: how many agents the job can have. kCorrupt when it is no JSON object, or one of more than 100,000
// values. Parts that are missing, have another type, or are a number that no agent writes, stay empty: an agent may be
// older or newer than the operator. Texts are cut at 1,024 bytes; a time outside of the years 1970 to 9999 is none.
Result<RunReport> parse_run_report(const std::string& body, int num_nodes);

}  // namespace lockstep::train
