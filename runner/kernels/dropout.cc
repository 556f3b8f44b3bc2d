#include "runner/kernels/dropout.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <cmath>

#include "runner/base/philox.h"

namespace lockstep {
namespace {

using dropout_detail::MaskPlan;

MaskPlan plan_mask(double p, const DropoutKey& key, const DropoutRows& rows, bool of_relu) {
  constexpr double kWords = 4294967296.0;
  return MaskPlan{.seed = key.seed,
                  .purpose = static_cast<uint32_t>(RandomPurpose::kDropout) + key.layer,
                  .step = static_cast<uint32_t>(key.step),
                  .first_slot = static_cast<uint32_t>(key.first_slot),
                  .drop_below = static_cast<uint32_t>(std::llround(std::fmin(p * kWords, kWords - 1.0))),
                  .scale = static_cast<float>(1.0 / (1.0 - p)),
                  .of_relu = of_relu,
                  .samples = rows.samples_R.defined() ? rows.samples_R.const_data_ptr<int64_t>() : nullptr,
                  .parts = rows.parts_R.defined() ? rows.parts_R.const_data_ptr<int64_t>() : nullptr};
}

void draw_and_apply(const at::Tensor& x, const at::Tensor& mask, const at::Tensor& out, const MaskPlan& plan) {
#ifdef LOCKSTEP_CUDA
  if (x.is_cuda()) {
    dropout_detail::draw_and_apply_cuda(x, mask, out, plan);
    return;
  }
#endif
  TORCH_CHECK(x.is_cpu(), "philox_dropout: this build has no kernel for device ", x.device());
  dropout_detail::draw_and_apply_cpu(x, mask, out, plan);
}

class DropoutFunction : public torch::autograd::Function<DropoutFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, double p,
                            const DropoutKey& key, const DropoutRows& rows, bool of_relu) {
    const at::Tensor input = x.contiguous();
    const at::Tensor mask = at::empty(input.sizes(), input.options().dtype(at::kByte));
    at::Tensor out = at::empty_like(input);
    const MaskPlan plan = plan_mask(p, key, rows, of_relu);
    draw_and_apply(input, mask, out, plan);
    context->save_for_backward({mask});
    context->saved_data["scale"] = static_cast<double>(plan.scale);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const at::Tensor mask = context->get_saved_variables()[0];
    const double scale = context->saved_data["scale"].toDouble();
    at::Tensor grad_x;
    if (mask.is_cpu()) {
      grad_x = at::empty(mask.sizes(), grads[0].options());
      dropout_detail::apply_mask_cpu(grads[0].contiguous(), mask, scale, grad_x);
    } else {
      grad_x = at::native_dropout_backward(grads[0], mask.view(at::kBool), scale);
    }
    return {grad_x, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void check_rate(double p) {
  TORCH_CHECK(p >= 0.0 && p < 1.0, "philox_dropout: p is ", p, ", expected a value in [0, 1)");
}

void check_has_samples(const at::Tensor& x) {
  TORCH_CHECK(x.dim() > 0, "philox_dropout: x has no dimension, expected the sample as dimension 0");
}

}  // namespace

at::Tensor philox_dropout(const at::Tensor& x, double p, const DropoutKey& key) {
  check_rate(p);
  check_has_samples(x);
  if (p == 0.0 || x.numel() == 0) return x;
  return DropoutFunction::apply(x, p, key, DropoutRows(), /*of_relu=*/false);
}

at::Tensor philox_dropout_of_relu(const at::Tensor& x, double p, const DropoutKey& key) {
  check_rate(p);
  check_has_samples(x);
  if (p == 0.0 || x.numel() == 0) return at::relu(x);
  return DropoutFunction::apply(x, p, key, DropoutRows(), /*of_relu=*/true);
}

at::Tensor philox_dropout(const at::Tensor& x_RD, double p, const DropoutKey& key, const DropoutRows& rows) {
  check_rate(p);
  TORCH_CHECK(x_RD.dim() == 2, "philox_dropout: x has ", x_RD.dim(), " dimensions, expected rows of elements");
  for (const at::Tensor& of_rows : {rows.samples_R, rows.parts_R}) {
    TORCH_CHECK(of_rows.sizes() == x_RD.sizes().slice(0, 1) && of_rows.scalar_type() == at::kLong &&
                    of_rows.is_contiguous() && of_rows.device() == x_RD.device(),
                "philox_dropout: expected one int64 for each row, contiguous and on the rows' device");
  }
  if (p == 0.0 || x_RD.numel() == 0) return x_RD;
  return DropoutFunction::apply(x_RD, p, key, rows, /*of_relu=*/false);
}

}  // namespace lockstep
