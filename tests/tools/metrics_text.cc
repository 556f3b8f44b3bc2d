// metrics_text: for tests/python/test_metrics_lint.py, the Prometheus text of a RunMetrics in which everything is set.
#include <iostream>

#include "runner/agent/metrics_text.h"
#include "runner/telemetry/metrics.h"

namespace lockstep {

namespace {

void set_everything(RunMetrics& metrics) {
  metrics.set_target_steps(100);
  metrics.on_step({.step = 7, .samples = 128, .epoch = 0.7, .seconds = 0.02, .unix_time = 1700000000.5});
  metrics.on_log({.loss = 1.25,
                  .grad_norm = 0.5,
                  .lr = 1e-3,
                  .loss_scale = 65536.0,
                  .samples_per_second = 6400.0,
                  .remaining_seconds = 12.0,
                  .flops = FlopsFigures{.model_flops_per_second = 1e9, .peak_flops_per_second = 1e12, .mfu = 1e-3}});
  metrics.on_skipped_step("not_finite");
  metrics.on_evaluation({{"valid_ndcg@10", 0.4}});
  PhaseSeconds phases;
  phases[Phase::kForward] = 1.5;
  metrics.on_phase_seconds(phases);
  metrics.on_memory({.resident_bytes = 1e8, .device = MemoryFigures::Device{1e9, 2e9, 3e9, 8e10}});
  metrics.on_checkpoint({.step = 5, .stage_seconds = 0.01, .write_seconds = 0.2, .bytes = 1e6, .unix_time = 1.7e9});
  metrics.on_checkpoint_failure("unavailable");
  metrics.on_restore(0.1);
  metrics.on_startup(StartupPart::kFirstStep, 0.3);
  metrics.on_rendezvous(0.05);
}

}  // namespace

}  // namespace lockstep

int main() {
  using namespace lockstep;
  RunMetrics metrics(0, 1.7e9);
  set_everything(metrics);
  const std::vector<MetricFamily> families = metrics.families();
  std::cout << metrics_text({&families});
  return 0;
}
