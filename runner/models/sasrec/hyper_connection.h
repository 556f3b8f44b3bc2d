// HyperConnection: replaces a residual connection x + f with --no_mhc=false (manifold-constrained hyper-connections,
// mHC, in the form of the guide's training code).
//
// n identical copies of x are mixed by a matrix H_res that Sinkhorn iterations make doubly stochastic, f is added to
// copy i with the weight H_post,i, and the copies are summed:
//   x̂ = x / rms(x)
//   H_post = 2 σ(α_post x̂ φ_post + b_post)   H_res = Sinkhorn(exp(clamp(α_res x̂ φ_res + b_res, ±10)))
//   out = (Σ_ij H_res,ij) x + (Σ_i H_post,i) f
// The copies are equal at the start of each connection, so that only the sum of H_res matters, which is n:
// out = n x + s(x) f. The connection therefore learns one gate per position and no more, and the gradients of φ_res and
// α_res are rounding errors (except with 0 Sinkhorn iterations). It exists so that the guide's command lines work;
// there is no other reason to use it.
// Threads: one.
// Shapes: B samples, T positions, D = hidden_units, N copies.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct HyperConnectionOptions {
  int64_t copies = 4;
  int64_t sinkhorn_iterations = 20;
  bool full_precision = false;  // compute in fp32 even under autocast
};

class HyperConnection {
 public:
  HyperConnection(const HyperConnectionOptions& options, int64_t hidden_units, at::Device device);

  // "NAME.phi_post", …
  void add_parameters(NamedTensors& all, const std::string& name) const;
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x_BTD, const at::Tensor& f_BTD) const;

 private:
  HyperConnectionOptions options_;
  at::Tensor phi_post_;    // [N, D]
  at::Tensor alpha_post_;  // [1]
  at::Tensor bias_post_;   // [N]
  at::Tensor phi_res_;     // [N N, D]
  at::Tensor alpha_res_;   // [1]
  at::Tensor bias_res_;    // [N N]
};

// Joins x and f by `connection`, or returns x + f if there is none.
at::Tensor residual(const std::optional<HyperConnection>& connection, const at::Tensor& x_BTD, const at::Tensor& f_BTD);

}  // namespace lockstep
