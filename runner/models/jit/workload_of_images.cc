#include "runner/models/jit/workload_of_images.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "runner/models/guide_files.h"

namespace lockstep {
namespace {

constexpr char kBestLossField[] = "best_loss";

}  // namespace

ImageWorkload::ImageWorkload(const RunConfig& config, PreparedImages images, at::Device device)
    : info_({.name = "jit",
             .version = 1,
             .loss_terms = {{.name = "loss"}},
             .best = {.name = "valid_loss", .direction = Direction::kLower}}),
      options_(options_of<JitOptions>(config)),
      training_(config.training),
      device_(device),
      images_(std::move(images)),
      split_(training_.seed, images_.cache.size(), options_.valid_images) {}

std::vector<std::string> ImageWorkload::evaluation_lines(const EvaluationReport& report) {
  if (!has_metric(report.metrics, info_.best.name)) return {};
  std::array<char, 80> line{};
  std::snprintf(line.data(), line.size(), "Epoch %lld: valid loss %.4f", static_cast<long long>(report.epoch),
                metric_value(report.metrics, info_.best.name));
  return {line.data()};
}

std::vector<std::string> ImageWorkload::outputs(const EvaluationReport& report) {
  const double value = metric_or_nan(report.metrics, info_.best.name);
  const bool is_best = std::isfinite(value) && (!best_loss_ || value < *best_loss_);
  if (is_best) best_loss_ = value;
  return guide_files(report, is_best, options_.save_interval, "pth");
}

TorchTree ImageWorkload::guide_file(const NamedTensors& parameters, const OutputState& state) const {
  // The state of torch's LambdaLR, which takes the base rate from the optimizer.
  const PickleDict scheduler = {{"last_epoch", {state.step}},
                                {"_step_count", {state.step + 1}},
                                {"_last_lr", {PickleList{{state.lr}}}},
                                {"lr_lambdas", {PickleList(1)}}};
  TorchTree tree =
      guide_tree({{"epoch", {state.epoch - 1}}}, {{"model_state_dict", state.model}}, parameters, training_, state);
  tree.root.emplace_back("scheduler_state_dict", PickleValue{scheduler});
  tree.root.emplace_back("loss", PickleValue{metric_or_nan(state.metrics, info_.best.name)});
  return tree;
}

Json ImageWorkload::progress_state() const {
  return Json{{kBestLossField, best_loss_ ? Json(*best_loss_) : Json(nullptr)}};
}

Status ImageWorkload::restore_progress(const Json& state) {
  const auto field = state.find(kBestLossField);
  if (field == state.end()) {  // the checkpoint is from a version that did not write these files
    best_loss_.reset();
    return {};
  }
  if (!field->is_number() && !field->is_null()) {
    return Error{ErrorCode::kCorrupt, std::string("workload progress: field ") + kBestLossField +
                                          " is neither a number nor null; the checkpoint is damaged"};
  }
  best_loss_ = field->is_null() ? std::nullopt : std::optional(field->get<double>());
  return {};
}

// The file holds the figure of its own evaluation, but not of earlier ones.
Result<Workload::TrainingSoFar> ImageWorkload::restore_from_file(const Json& fields) {
  TRY_ASSIGN(const double last_epoch, figure_in(fields, "epoch"));
  TRY_ASSIGN(const double loss, figure_in(fields, "loss"));
  best_loss_ = std::isfinite(loss) ? std::optional(loss) : std::nullopt;
  return TrainingSoFar{.epochs = static_cast<int64_t>(last_epoch) + 1, .figures = {loss}};
}

}  // namespace lockstep
