#include "runner/models/registry.h"

#include <string>
#include <utility>

#include "runner/data/dataset.h"
#include "runner/models/sasrec/recommend.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/sasrec/sasrec_workload.h"

namespace lockstep {
namespace {

Result<Dataset> load_interactions(const SasrecOptions& options, const OnDataProgress& on_progress) {
  return load_dataset(options.dataset, options.data_dir,
                      {.min_count = options.min_count, .max_bad_lines = options.max_bad_lines},
                      [&] { on_progress(0, 0); });
}

WorkloadOrFailure make_sasrec(const RunConfig& config, at::Device device, const OnDataProgress& on_progress) {
  const Status flags = sasrec_flags().check(config);
  if (!flags.ok()) return Failure{ExitCode::kUsage, flags.error().message};
  Result<Dataset> dataset = load_interactions(sasrec_options(config), on_progress);
  if (!dataset.ok()) return Failure{ExitCode::kData, dataset.error().message};
  Result<std::unique_ptr<SasrecWorkload>> workload = SasrecWorkload::create(config, std::move(dataset).value(), device);
  if (!workload.ok()) return Failure{ExitCode::kData, workload.error().message};
  return std::unique_ptr<Workload>(std::move(workload).value());
}

}  // namespace

WorkloadOrFailure make_workload(const RunConfig& config, at::Device device, const OnDataProgress& on_progress) {
  if (config.workload == "sasrec") return make_sasrec(config, device, on_progress);
  return Failure{ExitCode::kUsage, "workload " + config.workload + " is not known, expected sasrec"};
}

std::optional<Failure> run_task(const TaskInput& input) {
  if (input.config.workload == "sasrec" && input.config.task.name == "recommend") return recommend(input);
  return Failure{ExitCode::kUsage, "workload " + input.config.workload + " has no task " + input.config.task.name};
}

}  // namespace lockstep
