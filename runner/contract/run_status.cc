#include "runner/contract/run_status.h"

#include <cmath>

namespace lockstep {
namespace {

OrderedJson finite_or_null(double value) { return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr); }

OrderedJson known_or_null(double value) { return value >= 0 ? finite_or_null(value) : OrderedJson(nullptr); }

OrderedJson to_json(const Progress& p) {
  return {
      {"step", p.step},
      {"totalSteps", p.total_steps},
      {"epoch", p.epoch},
      {"numEpochs", p.num_epochs},
      {"percent", p.total_steps > 0 ? OrderedJson(p.step * 100 / p.total_steps) : OrderedJson(nullptr)},
      {"loss", finite_or_null(p.loss)},
      {"learningRate", finite_or_null(p.lr)},
      {"gradientNorm", known_or_null(p.grad_norm)},
      {"samplesPerSecond", known_or_null(p.samples_per_second)},
      {"estimatedRemainingSeconds", known_or_null(p.eta_seconds)},
      {"dataWaitRatio", known_or_null(p.data_wait_ratio)},
      {"deviceMemoryBytes", p.device_memory_bytes >= 0 ? OrderedJson(p.device_memory_bytes) : OrderedJson(nullptr)},
  };
}

OrderedJson to_json(const WorkerStatus& w) {
  return {{"rank", w.rank}, {"pid", w.pid}, {"state", w.state}, {"step", w.step}, {"phase", w.phase}};
}

OrderedJson to_json(const WorkerFailure& f) {
  return {{"rank", f.rank},       {"pid", f.pid},   {"exitCode", f.exit_code},    {"reason", f.reason},
          {"message", f.message}, {"step", f.step}, {"generation", f.generation}, {"time", f.time_unix_seconds}};
}

template <typename T>
OrderedJson array_of(const std::vector<T>& items) {
  OrderedJson array = OrderedJson::array();
  for (const T& item : items) array.push_back(to_json(item));
  return array;
}

}  // namespace

const char* to_string(RunPhase phase) {
  switch (phase) {
    case RunPhase::kStarting:
      return "Starting";
    case RunPhase::kRunning:
      return "Running";
    case RunPhase::kRecovering:
      return "Recovering";
    case RunPhase::kStopping:
      return "Stopping";
    case RunPhase::kComplete:
      return "Complete";
    case RunPhase::kFailed:
      return "Failed";
  }
  return "Unknown";
}

OrderedJson to_json(const RunStatus& s) {
  OrderedJson metrics = OrderedJson::object();
  for (const auto& [name, value] : s.metrics) metrics[name] = finite_or_null(value);
  OrderedJson checkpoint = nullptr;
  if (s.last_checkpoint) checkpoint = {{"step", s.last_checkpoint->step}, {"path", s.last_checkpoint->path}};
  return {
      {"job", s.job},
      {"workload", s.workload},
      {"generation", s.generation},
      {"phase", to_string(s.phase)},
      {"startTime", s.start_time_unix_seconds},
      {"workers", array_of(s.workers)},
      {"progress", s.progress ? to_json(*s.progress) : OrderedJson(nullptr)},
      {"metrics", std::move(metrics)},
      {"lastCheckpoint", std::move(checkpoint)},
      {"restarts", s.restarts},
      {"recentFailures", array_of(s.recent_failures)},
  };
}

}  // namespace lockstep
