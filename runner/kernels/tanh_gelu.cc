#include "runner/kernels/tanh_gelu.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "runner/base/check.h"

namespace lockstep {
namespace {

constexpr int64_t kRowsAtLeast = 16;  // of a thread

class TanhGeluFunction : public torch::autograd::Function<TanhGeluFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_SF,
                            const at::Tensor& bias_F) {
    const at::Tensor x = x_SF.contiguous();
    const at::Tensor bias = bias_F.contiguous();
    const at::Tensor out = at::empty_like(x);
    const int64_t f = x.size(1);
    at::parallel_for(0, x.size(0), kRowsAtLeast, [&](int64_t begin, int64_t end) {
      tanh_gelu_detail::forward(end - begin, f, x.const_data_ptr<float>() + begin * f, bias.const_data_ptr<float>(),
                                out.mutable_data_ptr<float>() + begin * f);
    });
    context->save_for_backward({x, bias});
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor grad = grads[0].contiguous();
    const at::Tensor grad_x = at::empty_like(x);
    const int64_t f = x.size(1);
    at::parallel_for(0, x.size(0), kRowsAtLeast, [&](int64_t begin, int64_t end) {
      tanh_gelu_detail::backward(end - begin, f, grad.const_data_ptr<float>() + begin * f,
                                 x.const_data_ptr<float>() + begin * f, saved[1].const_data_ptr<float>(),
                                 grad_x.mutable_data_ptr<float>() + begin * f);
    });
    return {grad_x, at::Tensor()};
  }
};

}  // namespace

at::Tensor tanh_gelu(const at::Tensor& x_SF, const at::Tensor& bias_F) {
  LOCKSTEP_CHECK(!bias_F.requires_grad(), "the bias is not trained");
  const bool has_kernel = x_SF.is_cpu() && x_SF.scalar_type() == at::kFloat && bias_F.scalar_type() == at::kFloat;
  if (has_kernel) return TanhGeluFunction::apply(x_SF, bias_F);
  return at::gelu(x_SF + bias_F.to(x_SF.scalar_type()), "tanh");
}

}  // namespace lockstep
