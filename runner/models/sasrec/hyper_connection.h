// HyperConnection: what --no_mhc=false puts in the place of a residual x + f (manifold-constrained hyper-connections,
// as the guide's training code has them).
//
// n identical copies of x are mixed by a matrix H_res that Sinkhorn iterations make doubly stochastic, f is added to
// copy i with the weight H_post,i, and the copies are summed:
//   x̂ = x / rms(x)   H_post = 2 σ(α_post x̂ φ_post + b_post)   H_res = Sinkhorn(exp(clamp(α_res x̂ φ_res + b_res, ±10)))
//   out = (Σ_ij H_res,ij) x + (Σ_i H_post,i) f
// The copies begin equal at each connection, so all that is left of H_res is its sum, which is n: out = n x + s(x) f.
// More than one gate per position is not learned, and φ_res and α_res get gradients of rounding size (with no Sinkhorn
// iteration they do count). It is here for the guide's command lines; there is no reason to use it. Threads: one.
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
  double initial_gate = 0.01;  // α_post and α_res at the start
  int64_t sinkhorn_iterations = 20;
  bool full_precision = false;  // no autocast inside
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

// x + f, or the connection's form of it.
at::Tensor residual(const std::optional<HyperConnection>& connection, const at::Tensor& x_BTD, const at::Tensor& f_BTD);

}  // namespace lockstep
