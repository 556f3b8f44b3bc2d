// GradReducer: sums gradients over the ranks while backward still runs (c10d::Reducer, the machinery behind Python's
// DistributedDataParallel; Li et al., VLDB'20).
//
// Role: one per generation. Buckets: 1 MiB first, then 25 MiB, in reverse order of the parameters, gradients live in
// the buckets. The stock Reducer averages over ranks; the step scales its loss by W / Σweight to make that a global
// weighted mean. Buckets are never rebuilt: another layout would change the rounding. The first backward of a reducer
// rounds as every later one does, so that a new generation goes on bit for bit.
// Threads: the training thread; autograd's own threads call the hooks.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>

#include "runner/tensor/named_tensor.h"

namespace lockstep {

class ProcessGroup;

class GradReducer {
 public:
  // `group` must outlive the reducer. Gradients of `parameters` are dropped here and in the destructor, because they
  // are views into buckets.
  // `on_last_gradient` is called on autograd's thread when the last gradient of a prepared backward is there: from
  // then on the backward only waits for the reduction. May be empty.
  GradReducer(const NamedTensors& parameters, ProcessGroup& group, std::function<void()> on_last_gradient = {});
  ~GradReducer();
  GradReducer(const GradReducer&) = delete;
  GradReducer& operator=(const GradReducer&) = delete;

  // Before a backward whose gradients are to be summed over the ranks; leave it out for all micro-batches but the
  // last. Every rank must then run a backward that reaches every parameter, with a zero weight if it has no samples.
  void prepare(const at::Tensor& loss);

  // What the last prepared backward spent after its last gradient was there: the part of the reduction that the
  // computation did not hide, as the host sees it. Zero for one rank.
  [[nodiscard]] std::chrono::steady_clock::duration exposed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // null for a solo group
  NamedTensors parameters_;
};

}  // namespace lockstep
