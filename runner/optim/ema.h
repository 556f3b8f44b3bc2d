// Ema: exponential moving average of the parameters, updated after the optimizer.
//
// Role: average = decay * average + (1 - decay) * parameter; found_inf other than 0 leaves it as it is, on the device.
// Threads: the training thread. Ownership: owns the averages; shares the parameters.
// Errors: what torch throws passes through to the train step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "runner/tensor/named_tensor.h"

namespace lockstep {

class Ema {
 public:
  // Begins as a copy of the parameters. 0 < decay < 1.
  Ema(NamedTensors parameters, double decay);

  // found_inf: fp32, one element, 0 or 1, on the parameters' device.
  void update(const at::Tensor& found_inf);
  // Sets the averages to copies of the parameters, for weights that were loaded without averages.
  void reset();

  // By the parameters' names. The tensors share memory with the EMA: copying values into them loads a state.
  [[nodiscard]] NamedTensors state() const;

  // While it lives, the parameters hold the averages (for an evaluation); its destructor restores their values. The Ema
  // must outlive it and must not be updated meanwhile.
  class [[nodiscard]] SwapIn {
   public:
    explicit SwapIn(const Ema& ema);
    ~SwapIn();
    SwapIn(const SwapIn&) = delete;
    SwapIn& operator=(const SwapIn&) = delete;

   private:
    const Ema& ema_;
    std::vector<at::Tensor> saved_;
  };

 private:
  NamedTensors parameters_;
  std::vector<at::Tensor> averages_;
  double decay_;
};

}  // namespace lockstep
