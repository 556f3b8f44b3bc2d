#include "runner/models/sasrec/hyper_connection.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>

#include "runner/layers/initial_values.h"

namespace lockstep {
namespace {

constexpr double kLogitMax = 10.0;
constexpr double kRmsEps = 1e-8;

// Each iteration normalises the rows of weights_BTNN to sum to 1, and then the columns.
at::Tensor sinkhorn(at::Tensor weights_BTNN, int64_t iterations) {
  for (int64_t i = 0; i < iterations; ++i) {
    weights_BTNN = weights_BTNN / weights_BTNN.sum(-1, /*keepdim=*/true);
    weights_BTNN = weights_BTNN / weights_BTNN.sum(-2, /*keepdim=*/true);
  }
  return weights_BTNN;
}

}  // namespace

HyperConnection::HyperConnection(const HyperConnectionOptions& options, int64_t hidden_units, at::Device device)
    : options_(options),
      phi_post_(trained({options.copies, hidden_units}, device)),
      alpha_post_(trained({1}, device)),
      bias_post_(trained({options.copies}, device)),
      phi_res_(trained({options.copies * options.copies, hidden_units}, device)),
      alpha_res_(trained({1}, device)),
      bias_res_(trained({options.copies * options.copies}, device)) {}

void HyperConnection::add_parameters(NamedTensors& all, const std::string& name) const {
  all.push_back({name + ".phi_post", phi_post_});
  all.push_back({name + ".alpha_post", alpha_post_});
  all.push_back({name + ".bias_post", bias_post_});
  all.push_back({name + ".phi_res", phi_res_});
  all.push_back({name + ".alpha_res", alpha_res_});
  all.push_back({name + ".bias_res", bias_res_});
}

at::Tensor HyperConnection::operator()(const at::Tensor& x_BTD, const at::Tensor& f_BTD) const {
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_autocast;
  if (options_.full_precision) no_autocast.emplace(c10::autocast_dispatch_keyset);
  const int64_t n = options_.copies;
  const at::Tensor wide_BTD = x_BTD.to(at::kFloat);
  const at::Tensor unit_BTD = wide_BTD * (wide_BTD.square().mean(-1, /*keepdim=*/true) + kRmsEps).rsqrt();
  const at::Tensor post_BTN = 2.0 * at::sigmoid(alpha_post_ * at::linear(unit_BTD, phi_post_) + bias_post_);
  const at::Tensor logits_BTM = (alpha_res_ * at::linear(unit_BTD, phi_res_) + bias_res_).clamp(-kLogitMax, kLogitMax);
  const at::Tensor mixing_BTNN =
      sinkhorn(at::exp(logits_BTM).view({x_BTD.size(0), x_BTD.size(1), n, n}), options_.sinkhorn_iterations);
  return mixing_BTNN.sum({-2, -1}).unsqueeze(-1) * x_BTD + post_BTN.sum(-1, /*keepdim=*/true) * f_BTD;
}

at::Tensor residual(const std::optional<HyperConnection>& connection, const at::Tensor& x_BTD,
                    const at::Tensor& f_BTD) {
  return connection ? (*connection)(x_BTD, f_BTD) : x_BTD + f_BTD;
}

}  // namespace lockstep
