#include "runner/models/workload.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "runner/base/plural.h"

namespace lockstep {

namespace {

NamedTensors::const_iterator find_tensor(const NamedTensors& tensors, std::string_view name) {
  return std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& entry) { return entry.name == name; });
}

EvaluationMetrics::const_iterator find_metric(const EvaluationMetrics& metrics, std::string_view name) {
  return std::find_if(metrics.begin(), metrics.end(), [&](const auto& entry) { return entry.first == name; });
}

}  // namespace

const at::Tensor& DeviceBatch::operator[](std::string_view name) const {
  const auto found = find_tensor(tensors, name);
  if (found != tensors.end()) return found->tensor;
  throw std::out_of_range("the batch has no tensor " + std::string(name) + ", only " +
                          joined(tensors, ", ", &NamedTensor::name));
}

bool DeviceBatch::has(std::string_view name) const { return find_tensor(tensors, name) != tensors.end(); }

Result<Workload::TrainingSoFar> Workload::restore_from_file(const Json& /*fields*/) {
  return invalid(
      "runs of this workload can only resume from checkpoint folders; give a weights file with "
      "--state_dict_path");
}

Status check_frozen(const Json& progress, const Workload& workload, const std::string& path) {
  const Json saved = progress.value("frozen", Json::object());
  for (const FrozenInput& here : workload.frozen()) {
    const std::string there = saved.value(here.name, here.sha256);
    if (there == here.sha256) continue;
    return Error{ErrorCode::kInvalid, path + " was trained with another version of " + here.name + " (sha256 " + there +
                                          ") than the one given now (" + here.sha256 +
                                          "); give the files that it was trained with"};
  }
  return {};
}

Result<double> figure_in(const Json& fields, const std::string& name) {
  const auto found = fields.find(name);
  if (found != fields.end() && found->is_number()) return found->get<double>();
  return Error{ErrorCode::kInvalid, "field " + name + " is missing or no number"};
}

NamedTensors parameters_of(const Workload& workload) {
  NamedTensors all;
  for (const ParameterGroup& group : workload.groups()) {
    all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  }
  return all;
}

double metric_value(const EvaluationMetrics& metrics, std::string_view name) {
  const auto found = find_metric(metrics, name);
  if (found != metrics.end()) return found->second;
  throw std::out_of_range("the evaluation has no figure " + std::string(name) + ", only " +
                          joined(metrics, ", ", [](const auto& metric) { return metric.first; }));
}

bool has_metric(const EvaluationMetrics& metrics, std::string_view name) {
  return find_metric(metrics, name) != metrics.end();
}

double metric_or_nan(const EvaluationMetrics& metrics, std::string_view name) {
  const auto found = find_metric(metrics, name);
  return found != metrics.end() ? found->second : std::numeric_limits<double>::quiet_NaN();
}

Result<std::vector<MetricSum>> Workload::evaluate(const EvaluationShard& shard) {
  const Workload& data = shard.data == nullptr ? *this : *shard.data;
  TRY_ASSIGN(const std::unique_ptr<BatchSource> source,
             data.batches({.split = Split::kValidation, .seed = shard.seed, .global_batch = shard.samples_at_once}));
  const std::vector<LossTerm>& terms = info().loss_terms;
  std::vector<MetricSum> sums;
  for (const LossTerm& term : terms) sums.push_back({.name = "valid_" + term.name});
  // Rank r evaluates the batches r, r + world_size, r + 2 * world_size, ...
  const int64_t steps = source->steps(0);
  for (int64_t index = shard.rank; index < steps && shard.goes_on(); index += shard.world_size) {
    const BatchShare share{.split = Split::kValidation,
                           .seed = shard.seed,
                           .step = index,
                           .epoch = 0,
                           .phase = shard.phase,
                           .first_slot = 0,
                           .samples = source->batch(0, index)};
    TRY_ASSIGN(const HostBatch fetched, data.fetch(share));
    const std::vector<at::Tensor> losses =
        shard.loss({.share = share, .tensors = upload(fetched, shard.device), .is_training = false});
    for (size_t term = 0; term < terms.size(); ++term) {
      sums[term].sum += losses[term].item<double>();
      sums[term].count += fetched.weights[term];
    }
  }
  return sums;
}

EvaluationMetrics Workload::figures(const std::vector<MetricSum>& totals) const {
  EvaluationMetrics means;
  for (const MetricSum& total : totals) means.emplace_back(total.name, total.mean());
  return means;
}

OutputContent Workload::output(const std::string& name, const OutputState& state) const {
  if (const auto part = state.parts.find(name); part != state.parts.end()) return part->second;
  TorchTree tree;
  tree.root = std::get<PickleDict>(tree.value(state.model).value);
  return tree;
}

NamedTensors Workload::upload(const HostBatch& batch, at::Device device) const {
  NamedTensors tensors = batch.tensors;
  if (device.is_cpu()) return tensors;
  for (NamedTensor& entry : tensors) entry.tensor = entry.tensor.to(device, /*non_blocking=*/true);
  return tensors;
}

}  // namespace lockstep
