#include "runner/contract/run_status.h"

#include <array>
#include <cmath>

namespace lockstep {
namespace {

OrderedJson text_or_null(const std::string& text) { return text.empty() ? OrderedJson(nullptr) : OrderedJson(text); }

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
      {"stepsPerSecond", known_or_null(p.steps_per_second)},
      {"estimatedRemainingSeconds", known_or_null(p.eta_seconds)},
      {"dataWaitRatio", known_or_null(p.data_wait_ratio)},
      {"deviceMemoryBytes", p.device_memory_bytes >= 0 ? OrderedJson(p.device_memory_bytes) : OrderedJson(nullptr)},
  };
}

OrderedJson to_json(const WorkerStatus& w) {
  return {{"rank", w.rank},
          {"node", w.node},
          {"pid", w.pid > 0 ? OrderedJson(w.pid) : OrderedJson(nullptr)},
          {"state", w.state},
          {"step", w.step},
          {"activity", to_string(w.activity)},
          {"phase", to_string(w.phase)},
          {"secondsUnchanged", known_or_null(w.seconds_unchanged)}};
}

OrderedJson to_json(const NodeStatus& n) {
  return {{"node", n.node}, {"host", n.host}, {"attempt", n.attempt}, {"state", n.state}, {"ready", n.ready}};
}

OrderedJson to_json(const RestartStatus& l) {
  return {
      {"rung", l.level}, {"restarts", l.restarts}, {"budgetLeft", l.budget_left}, {"lastDecision", l.last_decision}};
}

OrderedJson to_json(const GoodputStatus& g) {
  OrderedJson parts = OrderedJson::array();
  for (const GoodputPart& part : g.parts) {
    parts.push_back({{"kind", part.kind}, {"cause", part.cause}, {"seconds", part.seconds}});
  }
  return {{"ratio", finite_or_null(g.ratio)}, {"seconds", std::move(parts)}};
}

OrderedJson to_json(const SlowestStatus& s) {
  return {{"rank", s.rank}, {"node", s.node}, {"lagSeconds", finite_or_null(s.lag_seconds)}};
}

OrderedJson to_json(const LoadingStatus& l) {
  return {
      {"prepared", l.prepared}, {"toPrepare", l.to_prepare}, {"secondsUnchanged", finite_or_null(l.seconds_unchanged)}};
}

OrderedJson to_json(const WorkerFailure& f) {
  return {{"rank", f.rank},
          {"node", f.node},
          {"pid", f.pid},
          {"exitCode", f.exit_code},
          {"reason", f.reason},
          {"message", f.message},
          {"step", f.step},
          {"generation", f.generation},
          {"time", f.time_unix_seconds}};
}

template <typename T>
OrderedJson object_or_null(const std::optional<T>& value) {
  return value ? to_json(*value) : OrderedJson(nullptr);
}

template <typename T>
OrderedJson array_of(const std::vector<T>& items) {
  OrderedJson array = OrderedJson::array();
  for (const T& item : items) array.push_back(to_json(item));
  return array;
}

}  // namespace

const char* to_string(RunPhase phase) {
  constexpr std::array kNames{"Starting", "Running", "Recovering", "Stopping", "Complete", "Failed"};
  static_assert(kNames.size() == static_cast<size_t>(RunPhase::kFailed) + 1);
  return kNames.at(static_cast<size_t>(phase));
}

OrderedJson to_json(const Recovery& r) {
  return {{"cause", r.cause},
          {"rank", r.rank >= 0 ? OrderedJson(r.rank) : OrderedJson(nullptr)},
          {"detectionSeconds", known_or_null(r.detection_seconds)},
          {"respawnSeconds", known_or_null(r.respawn_seconds)},
          {"formingSeconds", known_or_null(r.forming_seconds)},
          {"syncSeconds", known_or_null(r.sync_seconds)},
          {"totalSeconds", known_or_null(r.total_seconds)},
          {"redoneSteps", r.redone_steps},
          {"lostSeconds", known_or_null(r.lost_seconds)},
          {"step", r.step},
          {"worldSize", r.world_size},
          {"origin", r.origin},
          {"generation", r.generation},
          {"time", r.time_unix_seconds},
          {"brokenNanoseconds", r.broken_ns},
          {"committedNanoseconds", r.committed_ns}};
}

OrderedJson figures_of(const RunStatus& s) {
  OrderedJson metrics = OrderedJson::object();
  for (const auto& [name, value] : s.metrics) metrics[name] = finite_or_null(value);
  OrderedJson checkpoint = nullptr;
  if (s.last_checkpoint) checkpoint = {{"step", s.last_checkpoint->step}, {"path", s.last_checkpoint->path}};
  return {{"progress", object_or_null(s.progress)}, {"lastCheckpoint", std::move(checkpoint)},
          {"origin", text_or_null(s.origin)},       {"restarts", s.restarts},
          {"metrics", std::move(metrics)},          {"recentFailures", array_of(s.recent_failures)}};
}

OrderedJson summary_of(const RunStatus& s) {
  OrderedJson json = {
      {"job", s.job},
      {"namespace", text_or_null(s.job_namespace)},
      {"jobUid", text_or_null(s.job_uid)},
      {"workload", s.workload},
      {"node", s.node},
      {"coordinator", text_or_null(s.coordinator)},
      {"generation", s.generation},
      {"phase", to_string(s.phase)},
      {"reason", s.reason},
      {"startTime", s.start_time_unix_seconds},
      {"worldSize", s.world_size},
      {"nnodes", s.nnodes},
      {"wantedNodes", s.wanted_nodes},
      {"nodes", array_of(s.nodes)},
  };
  json.update(figures_of(s));
  const OrderedJson rest = {
      {"recoveriesTotal", s.recoveries_total}, {"redoneSteps", s.redone_steps},
      {"recoveries", array_of(s.recoveries)},  {"ladder", to_json(s.restart_level)},
      {"goodput", object_or_null(s.goodput)},  {"slowest", object_or_null(s.slowest)},
      {"loading", object_or_null(s.loading)},
  };
  json.update(rest);
  return json;
}

OrderedJson to_json(const RunStatus& s) {
  OrderedJson json = summary_of(s);
  json["workers"] = array_of(s.workers);
  return json;
}

}  // namespace lockstep
