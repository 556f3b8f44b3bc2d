#include "runner/optim/ema.h"

#include <torch/types.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "runner/base/check.h"
#include "runner/kernels/moving_average.h"

namespace lockstep {

namespace {

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(named.size());
  for (const NamedTensor& entry : named) tensors.push_back(entry.tensor);
  return tensors;
}

}  // namespace

Ema::Ema(NamedTensors parameters, double decay) : parameters_(std::move(parameters)), decay_(decay) {
  LOCKSTEP_CHECK(decay_ > 0.0 && decay_ < 1.0, "decay must lie between 0 and 1");
  LOCKSTEP_CHECK(!parameters_.empty(), "an average needs parameters");
  for (const NamedTensor& parameter : parameters_) averages_.push_back(parameter.tensor.detach().clone());
}

void Ema::update(const at::Tensor& found_inf) {
  const torch::NoGradGuard no_grad;
  const at::Tensor weight = found_inf.reshape({}).neg().add_(1.0).mul_(1.0 - decay_);
  move_averages(averages_, tensors_of(parameters_), weight);
}

void Ema::reset() {
  const torch::NoGradGuard no_grad;
  at::_foreach_copy_(averages_, tensors_of(parameters_));
}

NamedTensors Ema::state() const {
  NamedTensors state;
  for (size_t i = 0; i < parameters_.size(); ++i) state.push_back({parameters_[i].name, averages_[i]});
  return state;
}

Ema::SwapIn::SwapIn(const Ema& ema) : ema_(ema) {
  const torch::NoGradGuard no_grad;
  // Copies the values instead of swapping storage, because the reducer and captured graphs hold the parameters'
  // addresses.
  for (const NamedTensor& parameter : ema_.parameters_) saved_.push_back(parameter.tensor.detach().clone());
  at::_foreach_copy_(tensors_of(ema_.parameters_), ema_.averages_);
}

Ema::SwapIn::~SwapIn() {
  const torch::NoGradGuard no_grad;
  try {
    at::_foreach_copy_(tensors_of(ema_.parameters_), saved_);
  } catch (const std::exception& e) {
    // This copy fails only on a broken device. The exception that reported that is already being thrown and will end
    // the process.
    std::fprintf(stderr, "worker: the parameters could not be restored after the evaluation: %s\n", e.what());
  }
}

}  // namespace lockstep
