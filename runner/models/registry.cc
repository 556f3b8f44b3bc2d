#include "runner/models/registry.h"

#include <string>
#include <utility>

#include "runner/data/dataset.h"
#include "runner/models/sasrec/sasrec_workload.h"

namespace lockstep {
namespace {

Status check_sasrec_flags(const SasrecOptions& options) {
  if (options.variant != "sasrec") {
    return Error{ErrorCode::kInvalid, "--variant is " + options.variant + ", expected sasrec (the only variant)"};
  }
  if (options.num_heads < 1 || options.hidden_units % options.num_heads != 0) {
    return Error{ErrorCode::kInvalid, "--num_heads is " + std::to_string(options.num_heads) +
                                          " and does not divide --hidden_units " +
                                          std::to_string(options.hidden_units) + "; choose a divisor"};
  }
  return {};
}

Result<Dataset> load_interactions(const SasrecOptions& options, const std::function<void()>& on_progress) {
  return load_dataset(options.dataset, options.data_dir,
                      {.min_count = options.min_count, .max_bad_lines = options.max_bad_lines}, on_progress);
}

WorkloadOrFailure make_sasrec(const RunConfig& config, at::Device device, const std::function<void()>& on_progress) {
  const Status flags = check_sasrec_flags(config.sasrec);
  if (!flags.ok()) return Failure{ExitCode::kUsage, flags.error().message};
  Result<Dataset> dataset = load_interactions(config.sasrec, on_progress);
  if (!dataset.ok()) return Failure{ExitCode::kData, dataset.error().message};
  Result<std::unique_ptr<SasrecWorkload>> workload = SasrecWorkload::create(config, std::move(dataset).value(), device);
  if (!workload.ok()) return Failure{ExitCode::kData, workload.error().message};
  return std::unique_ptr<Workload>(std::move(workload).value());
}

}  // namespace

WorkloadOrFailure make_workload(const RunConfig& config, at::Device device, const std::function<void()>& on_progress) {
  if (config.workload == "sasrec") return make_sasrec(config, device, on_progress);
  return Failure{ExitCode::kUsage, "workload " + config.workload + " is not known, expected sasrec"};
}

}  // namespace lockstep
