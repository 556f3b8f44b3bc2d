#include "runner/loop/training_state.h"

#include <cmath>

namespace lockstep {
namespace {

// JSON has no infinity; "none yet" is null.
Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
double or_minus_infinity(const Json& value) {
  return value.is_null() ? -std::numeric_limits<double>::infinity() : value.get<double>();
}

AdamOptions adam_options(const TrainingOptions& options) {
  return {.beta1 = options.adam_beta1,
          .beta2 = options.adam_beta2,
          .eps = options.adam_eps,
          .weight_decay = options.weight_decay};
}

void append_prefixed(NamedTensors& all, const std::string& prefix, const NamedTensors& tensors) {
  for (const NamedTensor& t : tensors) all.push_back({prefix + t.name, t.tensor});
}

}  // namespace

Json to_json(const Counters& c) {
  return Json{{"step", c.step},
              {"lineage", c.lineage},
              {"global_batch", c.batch.global_batch},
              {"micro_batch_max", c.batch.micro_batch_max},
              {"declared_world_size", c.batch.declared_world_size},
              {"skipped_in_row", c.skipped_in_row},
              {"skipped_total", c.skipped_total},
              {"plateau_best", finite_or_null(c.plateau.best)},
              {"plateau_bad_evaluations", c.plateau.bad_evaluations},
              {"plateau_factor", c.plateau.factor},
              {"loss_scale", c.loss_scale.scale},
              {"loss_scale_good_steps", c.loss_scale.good_steps},
              {"best_metric", finite_or_null(c.best_metric)},
              {"evaluations_without_best", c.evaluations_without_best},
              {"evaluated_step", c.evaluated_step},
              {"seconds_training", c.seconds_training},
              {"resumed_from", c.resumed_from}};
}

Result<Counters> counters_from_json(const Json& json) {
  try {
    Counters c;
    c.step = json.at("step").get<int64_t>();
    c.lineage = json.at("lineage").get<uint64_t>();
    c.has_state = true;
    c.batch.global_batch = json.at("global_batch").get<int64_t>();
    c.batch.micro_batch_max = json.at("micro_batch_max").get<int64_t>();
    c.batch.declared_world_size = json.at("declared_world_size").get<int>();
    c.skipped_in_row = json.at("skipped_in_row").get<int64_t>();
    c.skipped_total = json.at("skipped_total").get<int64_t>();
    c.plateau.best = or_minus_infinity(json.at("plateau_best"));
    c.plateau.bad_evaluations = json.at("plateau_bad_evaluations").get<int64_t>();
    c.plateau.factor = json.at("plateau_factor").get<double>();
    c.loss_scale.scale = json.at("loss_scale").get<double>();
    c.loss_scale.good_steps = json.at("loss_scale_good_steps").get<int64_t>();
    c.best_metric = or_minus_infinity(json.at("best_metric"));
    c.evaluations_without_best = json.at("evaluations_without_best").get<int64_t>();
    c.evaluated_step = json.at("evaluated_step").get<int64_t>();
    c.seconds_training = json.at("seconds_training").get<double>();
    c.resumed_from = json.at("resumed_from").get<std::string>();
    if (c.batch.global_batch < 1 || c.batch.micro_batch_max < 1 || c.batch.declared_world_size < 1 || c.step < 0) {
      return Error{ErrorCode::kCorrupt, "progress holds a batch, world size or step out of range: " + dump_line(json)};
    }
    return c;
  } catch (const Json::exception& e) {
    return Error{ErrorCode::kCorrupt, std::string("progress: ") + e.what()};
  }
}

TrainingState::TrainingState(Workload& workload, const TrainingOptions& options)
    : workload_(workload), parameters_(workload.parameters()), adam_(parameters_, adam_options(options)) {
  if (options.ema_decay > 0.0) ema_.emplace(parameters_, options.ema_decay);
}

NamedTensors TrainingState::model_tensors() const {
  NamedTensors all = parameters_;
  const NamedTensors buffers = workload_.buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  return all;
}

NamedTensors TrainingState::optimizer_tensors() const { return adam_.state(); }

NamedTensors TrainingState::ema_tensors() const { return ema_ ? ema_->state() : NamedTensors{}; }

NamedTensors TrainingState::all_tensors() const {
  NamedTensors all;
  append_prefixed(all, "model.", model_tensors());
  append_prefixed(all, "optimizer.", optimizer_tensors());
  append_prefixed(all, "ema.", ema_tensors());
  return all;
}

}  // namespace lockstep
