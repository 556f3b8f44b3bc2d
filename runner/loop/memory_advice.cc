#include "runner/loop/memory_advice.h"

#include <torch/types.h>

#include <algorithm>
#include <vector>

#include "runner/dist/fault.h"
#include "runner/loop/device.h"

namespace lockstep {
namespace {

void drop_gradients(const TrainingState& state) {
  for (const NamedTensor& p : state.reduced()) at::Tensor(p.tensor).mutable_grad() = at::Tensor();
}

// The first samples of the next batch whose costs add up to at most cost_max; at least one sample.
BatchShare share_of_cost(const Counters& counters, BatchSource& source, uint64_t seed, int64_t cost_max) {
  BatchShare share{.seed = seed,
                   .step = counters.step,
                   .epoch = counters.position.epoch,
                   .phase = counters.phase,
                   .first_slot = 0,
                   .samples = {}};
  int64_t cost = 0;
  for (const int64_t sample : source.batch(counters.position.epoch, counters.position.index)) {
    cost += source.cost(sample);
    if (cost > cost_max && !share.samples.empty()) break;
    share.samples.push_back(sample);
  }
  return share;
}

void run_forward_and_backward(Workload& workload, const HostBatch& batch, const BatchShare& share, at::Device device,
                              Precision precision) {
  at::Tensor loss;
  {
    const AutocastScope autocast(precision, device);
    for (const at::Tensor& sum : workload.loss({.share = share, .tensors = workload.upload(batch, device)})) {
      loss = loss.defined() ? loss + sum : sum;
    }
  }
  loss.backward();
  static_cast<void>(loss.item<float>());  // waits for the device, where memory may run out late
}

}  // namespace

std::optional<int64_t> micro_batch_that_fits(Workload& workload, const TrainingState& state, BatchSource& source,
                                             uint64_t seed, at::Device device, Precision precision) {
  for (int64_t cost = state.counters.batch.micro_batch_max / 2; cost >= 1; cost /= 2) {
    drop_gradients(state);
    try {
      const BatchShare share = share_of_cost(state.counters, source, seed, cost);
      const Result<HostBatch> fetched = workload.fetch(share);
      if (!fetched.ok()) return std::nullopt;
      // Twice, because with gradient accumulation the second backward adds to existing gradients.
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        run_forward_and_backward(workload, *fetched, share, device, precision);
      }
      drop_gradients(state);
      return cost;
    } catch (const std::exception& e) {  // torch's
      if (classify_fault(e).code != ExitCode::kOutOfMemory) break;
    }
  }
  drop_gradients(state);
  return std::nullopt;
}

std::string memory_advice(const BatchShape& batch, const TrainingOptions& training, std::optional<int64_t> fits,
                          const std::string& batch_flag, const std::string& of_workload) {
  const int64_t now = batch.micro_batch_max;
  const std::string flag = "--" + batch_flag + " ";
  std::string text = "; a rank took " + std::to_string(now) + " at once";
  if (!fits) {
    text += now > 1 ? ", and a smaller batch did not fit either: free memory by other means" : "";
  } else {
    const int64_t times = (now + *fits - 1) / *fits;
    const bool is_per_device = training.batch_scope == BatchScope::kPerDevice;
    const int64_t smaller = is_per_device ? *fits : std::max<int64_t>(training.batch_size / times, 1);
    text += ", and " + std::to_string(*fits) + " fit: give " +
            (is_per_device ? flag + std::to_string(*fits) + " " : "") + "--grad_accum_steps " +
            std::to_string(training.grad_accum_steps * times) + " for the same result, or " + flag +
            std::to_string(smaller) + " alone for a smaller batch";
  }
  if (!of_workload.empty()) text += "; " + of_workload;
  return text;
}

}  // namespace lockstep
