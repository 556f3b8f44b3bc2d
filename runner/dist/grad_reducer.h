// GradReducer: sums gradients over the ranks while backward still runs (c10d::Reducer, the machinery behind Python's
// DistributedDataParallel; Li et al., VLDB'20).
//
// Role: one per generation. Buckets: 1 MiB first, then 25 MiB, in reverse order of the parameters; the gradients are
// views into the buckets. The stock Reducer averages over ranks; the step scales its loss by W / Σweight to make that a
// global weighted mean. Buckets are never rebuilt, because another layout would change the rounding. The first backward
// of a reducer rounds like every later one, so that a new generation continues with exactly the same bits.
// Threads: the training thread; autograd's own threads call the hooks.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runner/tensor/named_tensor.h"

namespace lockstep {

class ProcessGroup;

class GradReducer {
 public:
  // `group` must outlive the reducer. Gradients of `parameters` are dropped here and in the destructor, because they
  // are views into buckets.
  // `on_last_gradient` is called on autograd's thread when the last gradient of a prepared backward has been computed:
  // from then on the backward only waits for the reduction. May be empty.
  GradReducer(const NamedTensors& parameters, ProcessGroup& group, std::function<void()> on_last_gradient = {});
  ~GradReducer();
  GradReducer(const GradReducer&) = delete;
  GradReducer& operator=(const GradReducer&) = delete;

  // To be called before a backward whose gradients are to be summed over the ranks, that is, only for the last
  // micro-batch. Every rank must then run a backward that reaches every parameter, with weight zero if it has no
  // samples.
  void prepare(const at::Tensor& loss);

  // Names of the parameters that the last prepared backward has not reached. Their buckets are not complete, so other
  // ranks may wait for them for ever. For one rank: those without a gradient.
  [[nodiscard]] std::vector<std::string> unreached() const;

  // How long the last prepared backward went on after its last gradient had been computed: the part of the reduction
  // that did not overlap with computation, as the host sees it. Zero for one rank.
  [[nodiscard]] std::chrono::steady_clock::duration exposed_time() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // null for a solo group
  NamedTensors parameters_;
};

}  // namespace lockstep
