#include "runner/kernels/radial_basis.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>

namespace lockstep {
namespace {

using namespace radial_basis_detail;

// Pairs of residues in a chunk: few enough that their values stay in a core's cache, or enough to occupy a GPU.
constexpr int64_t kPairsOnCpu = 1024;
constexpr int64_t kPairsOnDevice = int64_t{1} << 16;

// For each chunk of pairs calls use(number of its first pair, bases of its pairs).
template <typename Use>
void for_each_chunk(const at::Tensor& atoms_NA3, const at::Tensor& from_E, const at::Tensor& to_E,
                    const at::Tensor& alpha_E, const Use& use) {
  const int64_t chunk = atoms_NA3.is_cpu() ? kPairsOnCpu * at::get_num_threads() : kPairsOnDevice;
  for (int64_t begin = 0; begin < from_E.numel(); begin += chunk) {
    const int64_t pairs = std::min(chunk, from_E.numel() - begin);
    use(begin, radial_basis(atoms_NA3, from_E.narrow(0, begin, pairs), to_E.narrow(0, begin, pairs),
                            alpha_E.narrow(0, begin, pairs)));
  }
}

// Turns autocast off: distances need fp32, whatever the precision of the run.
class NoAutocast {
 public:
  explicit NoAutocast(at::Device device)
      : type_(device.type()), was_enabled_(at::autocast::is_autocast_enabled(device.type())) {
    at::autocast::set_autocast_enabled(type_, false);
  }
  ~NoAutocast() { at::autocast::set_autocast_enabled(type_, was_enabled_); }
  NoAutocast(const NoAutocast&) = delete;
  NoAutocast& operator=(const NoAutocast&) = delete;

 private:
  at::DeviceType type_;
  bool was_enabled_;
};

class ProjectionFunction : public torch::autograd::Function<ProjectionFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& atoms_NA3,
                            const at::Tensor& from_E, const at::Tensor& to_E, const at::Tensor& alpha_E,
                            const at::Tensor& weight_DF) {
    const NoAutocast fp32(atoms_NA3.device());
    const at::Tensor weight_FD = weight_DF.detach().t();
    const at::Tensor out_ED = at::empty({from_E.numel(), weight_DF.size(0)}, weight_DF.options().requires_grad(false));
    for_each_chunk(atoms_NA3, from_E, to_E, alpha_E, [&](int64_t begin, const at::Tensor& basis_EF) {
      at::Tensor part = out_ED.narrow(0, begin, basis_EF.size(0));
      at::mm_out(part, basis_EF, weight_FD);
    });
    context->save_for_backward({atoms_NA3, from_E, to_E, alpha_E});
    return out_ED;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const NoAutocast fp32(saved[0].device());
    const at::Tensor grad_ED = grads[0].to(at::kFloat).contiguous();
    at::Tensor weight_grad = at::zeros({grad_ED.size(1), kRadialFeatures}, grad_ED.options());
    for_each_chunk(saved[0], saved[1], saved[2], saved[3], [&](int64_t begin, const at::Tensor& basis_EF) {
      weight_grad.addmm_(grad_ED.narrow(0, begin, basis_EF.size(0)).t(), basis_EF);
    });
    return {at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), weight_grad};
  }
};

}  // namespace

at::Tensor radial_basis(const at::Tensor& atoms_NA3, const at::Tensor& from_E, const at::Tensor& to_E,
                        const at::Tensor& alpha_E) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(atoms_NA3.scalar_type() == at::kFloat && atoms_NA3.is_contiguous() && atoms_NA3.size(1) == kBackboneAtoms,
              "radial_basis: the atoms must be contiguous fp32 [N, 5, 3]");
  const at::Tensor from = from_E.contiguous();
  const at::Tensor to = to_E.contiguous();
  const at::Tensor alpha = alpha_E.contiguous();
  at::Tensor out = at::empty({from.numel(), kRadialFeatures}, atoms_NA3.options());
#ifdef LOCKSTEP_CUDA
  if (atoms_NA3.is_cuda()) {
    fill_on_cuda(atoms_NA3, from, to, alpha, out);
    return out;
  }
#endif
  TORCH_CHECK(atoms_NA3.is_cpu(), "radial_basis: this build has no kernel for device ", atoms_NA3.device());
  fill_on_cpu(atoms_NA3.const_data_ptr<float>(), from.const_data_ptr<int64_t>(), to.const_data_ptr<int64_t>(),
              alpha.const_data_ptr<float>(), from.numel(), out.mutable_data_ptr<float>());
  return out;
}

at::Tensor radial_projection(const at::Tensor& atoms_NA3, const at::Tensor& from_E, const at::Tensor& to_E,
                             const at::Tensor& alpha_E, const at::Tensor& weight_DF) {
  return ProjectionFunction::apply(atoms_NA3, from_E, to_E, alpha_E, weight_DF);
}

}  // namespace lockstep
