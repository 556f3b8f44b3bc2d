#include "runner/loop/training_state.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "runner/config/flag_table_builder.h"

namespace lockstep {
namespace {

// JSON has no infinity; "none yet" is null.
Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
double or_minus_infinity(const Json& value) {
  return value.is_null() ? -std::numeric_limits<double>::infinity() : value.get<double>();
}

Json named_figures(const std::vector<std::pair<std::string, double>>& figures) {
  Json list = Json::array();
  for (const auto& [name, value] : figures) list.push_back({name, finite_or_null(value)});
  return list;
}

Json sums_to_json(const std::vector<MetricSum>& sums) {
  Json list = Json::array();
  for (const MetricSum& sum : sums) list.push_back({sum.name, finite_or_null(sum.sum), sum.count});
  return list;
}

void add_to(std::vector<MetricSum>& sums, const std::string& name, double value) {
  const auto found =
      std::find_if(sums.begin(), sums.end(), [&](const MetricSum& candidate) { return candidate.name == name; });
  MetricSum& sum = found == sums.end() ? sums.emplace_back(MetricSum{.name = name}) : *found;
  sum.sum += value;
  sum.count += 1.0;
}

AdamOptions adam_options(const TrainingOptions& options) {
  return {.beta1 = options.adam_beta1,
          .beta2 = options.adam_beta2,
          .eps = options.adam_eps,
          .weight_decay = options.weight_decay,
          .decoupled_weight_decay = options.optimizer == OptimizerKind::kAdamw};
}

// The value of that figure, negated when lower is better, so that a higher score is always better.
std::optional<double> score_of(const DecidingFigure& figure, const EvaluationMetrics& metrics) {
  for (const auto& [name, value] : metrics) {
    if (name == figure.name) return figure.direction == Direction::kHigher ? value : -value;
  }
  return std::nullopt;
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
              {"epoch", c.position.epoch},
              {"index", c.position.index},
              {"epoch_steps", c.epoch_steps},
              {"phase", c.phase},
              {"phase_epoch", c.phase_epoch},
              {"skipped_in_row", c.skipped_in_row},
              {"skipped_total", c.skipped_total},
              {"plateau_best", finite_or_null(c.plateau.best)},
              {"plateau_bad_evaluations", c.plateau.bad_evaluations},
              {"plateau_factor", c.plateau.factor},
              {"loss_scale", c.loss_scale.scale},
              {"loss_scale_good_steps", c.loss_scale.good_steps},
              {"best_metric", finite_or_null(c.best_metric)},
              {"patience_best", finite_or_null(c.patience_best)},
              {"evaluations_without_best", c.evaluations_without_best},
              {"evaluated_step", c.evaluated_step},
              {"seconds_training", c.seconds_training},
              {"resumed_from", c.resumed_from},
              {"weights_from", c.weights_from},
              {"generation", c.generation},
              {"run", c.run},
              {"training", sums_to_json(c.training)}};
}

void count_figures(Counters& counters, const StepReport& report) {
  // Steps that were queued before the scale was halved still have the old scale. They are ignored, so that one overflow
  // halves the scale once, however many steps the device was ahead. A step that overflowed at a scale above 1 does not
  // count towards --max_skipped_steps, because a smaller scale may repair it.
  const bool has_current_scale = !report.loss_scale || *report.loss_scale == counters.loss_scale.scale;
  const bool is_overflow = report.loss_scale && *report.loss_scale > 1.0;
  if (report.loss_scale && has_current_scale) counters.loss_scale.update(report.skipped);
  if (!report.skipped) {
    counters.skipped_in_row = 0;
    add_to(counters.training, kTrainLoss, report.loss);
    for (const auto& [name, value] : report.terms) add_to(counters.training, "train_" + name, value);
  } else {
    counters.skipped_in_row += has_current_scale && !is_overflow ? 1 : 0;
    ++counters.skipped_total;
  }
}

std::optional<bool> count_evaluation(Counters& counters, const WorkloadInfo& info, const TrainingOptions& training,
                                     const EvaluationMetrics& metrics) {
  if (const std::optional<double> score = score_of(info.plateau.value_or(info.best), metrics)) {
    counters.plateau = plateau_after(counters.plateau, *score, plateau_options(training));
  }
  const std::optional<double> score = score_of(info.best, metrics);
  if (!score) return std::nullopt;
  const bool is_best = *score > counters.best_metric;
  counters.best_metric = std::max(counters.best_metric, *score);
  const bool is_improvement = *score > counters.patience_best + training.early_stop_min_delta;
  if (is_improvement) counters.patience_best = *score;
  counters.evaluations_without_best = is_improvement ? 0 : counters.evaluations_without_best + 1;
  return is_best;
}

void Journal::add(const StepReport& report) {
  steps.push_back(report);
  if (steps.size() > kStepsMax) steps.pop_front();
}

Json to_json(const Journal& journal) {
  Json steps = Json::array();
  for (const StepReport& r : journal.steps) {
    steps.push_back({{"step", r.step},
                     {"epoch", r.epoch},
                     {"samples", r.samples},
                     {"loss", finite_or_null(r.loss)},
                     {"terms", named_figures(r.terms)},
                     {"grad_norm", finite_or_null(r.grad_norm)},
                     {"lr", r.lr},
                     {"skipped", r.skipped}});
  }
  Json evaluation = nullptr;
  if (const auto& e = journal.evaluation) {
    evaluation = {{"step", e->report.step},
                  {"epoch", e->report.epoch},
                  {"seconds_training", e->report.seconds_training},
                  {"metrics", named_figures(e->report.metrics)},
                  {"outputs", e->outputs},
                  {"lr", e->lr}};
  }
  return {{"steps", std::move(steps)}, {"evaluation", std::move(evaluation)}, {"improved", journal.improved}};
}

Result<Journal> journal_from_json(const Json& json) {
  const auto number = [](const Json& j) {
    return j.is_null() ? std::numeric_limits<double>::quiet_NaN() : j.get<double>();
  };
  const auto named = [&](const Json& list) {
    std::vector<std::pair<std::string, double>> figures;
    for (const Json& entry : list) figures.emplace_back(entry.at(0).get<std::string>(), number(entry.at(1)));
    return figures;
  };
  try {
    Journal journal;
    for (const Json& r : json.at("steps")) {
      journal.add({.step = r.at("step").get<int64_t>(),
                   .epoch = r.at("epoch").get<int64_t>(),
                   .samples = r.at("samples").get<int64_t>(),
                   .loss = number(r.at("loss")),
                   .terms = named(r.at("terms")),
                   .grad_norm = number(r.at("grad_norm")),
                   .lr = r.at("lr").get<double>(),
                   .skipped = r.at("skipped").get<bool>()});
    }
    if (const Json& e = json.at("evaluation"); !e.is_null()) {
      EvaluationNote note{.report = {.step = e.at("step").get<int64_t>(),
                                     .epoch = e.at("epoch").get<int64_t>(),
                                     .seconds_training = e.at("seconds_training").get<double>(),
                                     .metrics = named(e.at("metrics"))},
                          .outputs = e.at("outputs").get<std::vector<std::string>>(),
                          .lr = e.at("lr").get<double>()};
      journal.evaluation = std::move(note);
    }
    journal.improved = json.at("improved").get<bool>();
    return journal;
  } catch (const Json::exception& e) {
    return Error{ErrorCode::kCorrupt, std::string("journal: ") + e.what()};
  }
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
    c.position.epoch = json.at("epoch").get<int64_t>();
    c.position.index = json.at("index").get<int64_t>();
    c.epoch_steps = json.at("epoch_steps").get<int64_t>();
    c.phase = json.at("phase").get<int64_t>();
    c.phase_epoch = json.at("phase_epoch").get<int64_t>();
    c.skipped_in_row = json.at("skipped_in_row").get<int64_t>();
    c.skipped_total = json.at("skipped_total").get<int64_t>();
    c.plateau.best = or_minus_infinity(json.at("plateau_best"));
    c.plateau.bad_evaluations = json.at("plateau_bad_evaluations").get<int64_t>();
    c.plateau.factor = json.at("plateau_factor").get<double>();
    c.loss_scale.scale = json.at("loss_scale").get<double>();
    c.loss_scale.good_steps = json.at("loss_scale_good_steps").get<int64_t>();
    c.best_metric = or_minus_infinity(json.at("best_metric"));
    // Checkpoints of earlier versions do not have it.
    c.patience_best = json.contains("patience_best") ? or_minus_infinity(json.at("patience_best")) : c.best_metric;
    c.evaluations_without_best = json.at("evaluations_without_best").get<int64_t>();
    c.evaluated_step = json.at("evaluated_step").get<int64_t>();
    c.seconds_training = json.at("seconds_training").get<double>();
    c.resumed_from = json.at("resumed_from").get<std::string>();
    c.weights_from = json.value("weights_from", std::string());  // missing in checkpoints of earlier versions
    c.generation = json.at("generation").get<uint64_t>();
    c.run = json.at("run").get<uint64_t>();
    for (const Json& sum : json.at("training")) {
      const double value = sum.at(1).is_null() ? std::numeric_limits<double>::quiet_NaN() : sum.at(1).get<double>();
      c.training.push_back({.name = sum.at(0).get<std::string>(), .sum = value, .count = sum.at(2).get<double>()});
    }
    if (c.batch.global_batch < 1 || c.batch.micro_batch_max < 1 || c.batch.declared_world_size < 1 || c.step < 0 ||
        c.position.epoch < 0 || c.position.index < 0 || c.position.index >= c.epoch_steps || c.phase < 0 ||
        c.phase_epoch < 0) {
      return Error{
          ErrorCode::kCorrupt,
          "progress holds a batch, world size, step, phase or place in the data out of range: " + dump_line(json)};
    }
    return c;
  } catch (const Json::exception& e) {
    return Error{ErrorCode::kCorrupt, std::string("progress: ") + e.what()};
  }
}

TrainingState::TrainingState(Workload& workload, const TrainingOptions& options)
    : workload_(workload),
      parameters_(parameters_of(workload)),
      trained_(parameters_),
      loss_probe_(torch::zeros({static_cast<int64_t>(workload.info().loss_terms.size())},
                               parameters_.front().tensor.options().dtype(torch::kFloat32).requires_grad(true))),
      adam_(workload.groups(), adam_options(options)) {
  for (const double decay : options.ema_decays) {
    emas_.emplace_back(options.ema_decays.size() == 1 ? "" : number_text(decay), Ema(parameters_, decay));
  }
}

void TrainingState::freeze(const std::vector<std::string>& groups) {
  trained_.clear();
  for (const ParameterGroup& group : workload_.groups()) {
    const bool is_trained = std::find(groups.begin(), groups.end(), group.name) == groups.end();
    for (const NamedTensor& p : group.parameters) {
      at::Tensor(p.tensor).mutable_grad() = at::Tensor();
      at::Tensor(p.tensor).set_requires_grad(is_trained);
      if (is_trained) trained_.push_back(p);
    }
  }
  adam_.freeze(groups);
}

NamedTensors TrainingState::reduced() const {
  NamedTensors all = trained_;
  all.push_back({"loss probe", loss_probe_});
  return all;
}

NamedTensors TrainingState::model_tensors() const {
  NamedTensors all = parameters_;
  const NamedTensors buffers = workload_.buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  return all;
}

NamedTensors TrainingState::optimizer_tensors() const { return adam_.state(); }

std::optional<Ema::SwapIn> TrainingState::swap_in_average() {
  if (emas_.empty()) return std::nullopt;
  return std::optional<Ema::SwapIn>(std::in_place, emas_.front().second);
}

NamedTensors TrainingState::all_tensors() const {
  NamedTensors all;
  append_prefixed(all, "model.", model_tensors());
  append_prefixed(all, "optimizer.", optimizer_tensors());
  for (const auto& [name, ema] : emas_) append_prefixed(all, "ema." + (name.empty() ? name : name + "."), ema.state());
  return all;
}

}  // namespace lockstep
