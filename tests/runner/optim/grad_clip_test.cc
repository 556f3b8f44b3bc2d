#include "runner/optim/grad_clip.h"

#include <torch/nn/utils/clip_grad.h>

#include <limits>

#include "tests/runner/optim/optim_fixture.h"

namespace lockstep {
namespace {

class GradClip : public OnEachDevice {
 protected:
  static NamedTensors gradients(const NamedTensors& parameters) {
    NamedTensors gradients;
    for (const NamedTensor& entry : parameters) gradients.push_back({entry.name, entry.tensor.grad().clone()});
    return gradients;
  }
};

TEST_P(GradClip, clips_as_torch_does) {
  for (const double max_norm : {0.5, 1e6}) {
    const NamedTensors ours = make_parameters();
    const NamedTensors theirs = make_parameters();
    set_gradients(ours, 3);
    set_gradients(theirs, 3);
    std::vector<at::Tensor> reference;
    for (const NamedTensor& entry : theirs) reference.push_back(entry.tensor);
    const double norm = torch::nn::utils::clip_grad_norm_(reference, max_norm);
    const GradClipResult result = clip_gradients(ours, {.max_norm = max_norm});
    EXPECT_NEAR(result.norm.item<double>(), norm, 1e-6 * norm);
    EXPECT_EQ(result.found_inf.item<float>(), 0.0F);
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_TRUE(torch::allclose(ours[i].tensor.grad(), theirs[i].tensor.grad(), 1e-6, 1e-9)) << ours[i].name;
  }
}

TEST_P(GradClip, only_measures_without_a_limit) {
  const NamedTensors parameters = make_parameters();
  set_gradients(parameters, 1);
  const NamedTensors before = gradients(parameters);
  const GradClipResult result = clip_gradients(parameters, {});
  expect_equal(gradients(parameters), before);
  double squares = 0.0;
  for (const NamedTensor& entry : before) squares += entry.tensor.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(result.norm.item<double>(), std::sqrt(squares), 1e-5 * std::sqrt(squares));
}

TEST_P(GradClip, takes_the_loss_scale_out_before_it_clips) {
  for (const double max_norm : {0.0, 0.5}) {
    const NamedTensors scaled = make_parameters();
    const NamedTensors plain = make_parameters();
    set_gradients(scaled, 2, 1024.0);
    set_gradients(plain, 2);
    const GradClipResult of_scaled = clip_gradients(scaled, {.max_norm = max_norm, .loss_scale = 1024.0});
    const GradClipResult of_plain = clip_gradients(plain, {.max_norm = max_norm});
    EXPECT_NEAR(of_scaled.norm.item<double>(), of_plain.norm.item<double>(), 1e-4);
    for (size_t i = 0; i < scaled.size(); ++i)
      EXPECT_TRUE(torch::allclose(scaled[i].tensor.grad(), plain[i].tensor.grad(), 1e-5, 1e-8)) << scaled[i].name;
  }
}

TEST_P(GradClip, finds_a_single_value_that_is_not_finite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    const NamedTensors parameters = make_parameters();
    set_gradients(parameters, 1);
    parameters[1].tensor.grad()[17] = bad;
    EXPECT_EQ(clip_gradients(parameters, {.max_norm = 1.0}).found_inf.item<float>(), 1.0F) << bad;
  }
}

TEST_P(GradClip, gives_fp32_scalars_on_the_parameters_device) {
  const NamedTensors parameters = make_parameters();
  set_gradients(parameters, 1);
  const GradClipResult result = clip_gradients(parameters, {.max_norm = 1.0});
  for (const at::Tensor& figure : {result.norm, result.found_inf}) {
    EXPECT_EQ(figure.dim(), 0);
    EXPECT_EQ(figure.scalar_type(), at::kFloat);
    EXPECT_EQ(figure.device().type(), GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, GradClip, testing::ValuesIn(devices()), device_name);

}  // namespace
}  // namespace lockstep
