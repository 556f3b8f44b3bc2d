#include "runner/optim/fused_adam.h"

#include <torch/optim.h>

#include <limits>

#include "tests/runner/optim/optim_fixture.h"

namespace lockstep {
namespace {

class FusedAdam : public OnEachDevice {};

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& entry : named) tensors.push_back(entry.tensor);
  return tensors;
}

std::vector<ParameterGroup> one_group(const NamedTensors& parameters) {
  return {{.name = "", .parameters = parameters, .weight_decay = std::nullopt}};
}

void expect_close(const NamedTensors& a, const NamedTensors& b) {
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_LT((a[i].tensor - b[i].tensor).abs().max().item<float>(), 1e-6F) << a[i].name;
}

TEST_P(FusedAdam, follows_torch_adam_with_l2_decay) {
  const NamedTensors ours = make_parameters();
  const NamedTensors theirs = make_parameters();
  Adam adam(one_group(ours), {.beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8, .weight_decay = 0.1});
  torch::optim::Adam reference(tensors_of(theirs),
                               torch::optim::AdamOptions(1e-2).betas({0.9, 0.98}).eps(1e-8).weight_decay(0.1));
  for (int64_t step = 0; step < 20; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    adam.step(1e-2, flag(0.0));
    reference.step();
    expect_close(ours, theirs);
  }
  EXPECT_GT((ours[0].tensor - make_parameters()[0].tensor).abs().max().item<float>(), 1e-2F);
}

TEST_P(FusedAdam, follows_torch_adamw_with_decoupled_decay) {
  const NamedTensors ours = make_parameters();
  const NamedTensors theirs = make_parameters();
  Adam adam(one_group(ours),
            {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .decoupled_weight_decay = true});
  torch::optim::AdamW reference(tensors_of(theirs),
                                torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
  for (int64_t step = 0; step < 20; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    adam.step(1e-2, flag(0.0));
    reference.step();
  }
  expect_close(ours, theirs);
}

TEST_P(FusedAdam, gives_each_group_its_rate_and_decay_as_torch_does) {
  const NamedTensors ours = make_parameters();
  const NamedTensors theirs = make_parameters();
  Adam adam({{.name = "decay", .parameters = {ours[0]}, .lr_factor = 0.5, .weight_decay = std::nullopt},
             {.name = "rest", .parameters = {ours[1], ours[2]}, .lr_factor = 1.0, .weight_decay = 0.0}},
            {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .decoupled_weight_decay = true});
  const auto options = [](double lr, double decay) {
    return torch::optim::AdamWOptions(lr).betas({0.9, 0.95}).eps(1e-8).weight_decay(decay);
  };
  torch::optim::AdamW first({theirs[0].tensor}, options(0.5e-2, 0.1));
  torch::optim::AdamW second({theirs[1].tensor, theirs[2].tensor}, options(1e-2, 0.0));
  for (int64_t step = 0; step < 20; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    adam.step(1e-2, flag(0.0));
    first.step();
    second.step();
  }
  expect_close(ours, theirs);
  const NamedTensors state = adam.state();
  ASSERT_EQ(state.size(), 8U);
  EXPECT_EQ(state[2].name, "step.decay");
  EXPECT_EQ(state[7].name, "step.rest");
}

TEST_P(FusedAdam, a_skipped_step_changes_nothing_and_does_not_count) {
  const NamedTensors parameters = make_parameters();
  Adam adam(one_group(parameters), {});
  set_gradients(parameters, 0);
  adam.step(1e-2, flag(0.0));
  const NamedTensors parameters_before = copies(parameters);
  const NamedTensors state_before = copies(adam.state());
  set_gradients(parameters, 1, std::numeric_limits<double>::quiet_NaN());
  adam.step(1e-2, flag(1.0));
  expect_equal(parameters, parameters_before);
  expect_equal(adam.state(), state_before);
  set_gradients(parameters, 1);
  adam.step(1e-2, flag(0.0));
  EXPECT_EQ(adam.state().back().tensor.item<float>(), 2.0F);
  EXPECT_FALSE(torch::equal(parameters[0].tensor, parameters_before[0].tensor));
}

TEST_P(FusedAdam, state_is_named_after_the_parameters) {
  const Adam adam(one_group(make_parameters()), {});
  const NamedTensors state = adam.state();
  ASSERT_EQ(state.size(), 7U);
  EXPECT_EQ(state[0].name, "exp_avg.item_emb.weight");
  EXPECT_EQ(state[1].name, "exp_avg_sq.item_emb.weight");
  EXPECT_EQ(state[6].name, "step");
  EXPECT_EQ(state[0].tensor.sizes(), (std::vector<int64_t>{37, 50}));
}

TEST_P(FusedAdam, goes_on_bit_for_bit_from_loaded_state) {
  const NamedTensors whole = make_parameters();
  const NamedTensors second_half = make_parameters();
  Adam uninterrupted(one_group(whole), {});
  for (int64_t step = 0; step < 5; ++step) {
    set_gradients(whole, step);
    uninterrupted.step(1e-2, flag(0.0));
  }
  for (size_t i = 0; i < whole.size(); ++i) second_half[i].tensor.detach().copy_(whole[i].tensor.detach());
  Adam resumed(one_group(second_half), {});
  const NamedTensors state = resumed.state();
  for (size_t i = 0; i < state.size(); ++i) at::Tensor(state[i].tensor).copy_(uninterrupted.state()[i].tensor);
  for (int64_t step = 5; step < 10; ++step) {
    set_gradients(whole, step);
    set_gradients(second_half, step);
    uninterrupted.step(1e-2, flag(0.0));
    resumed.step(1e-2, flag(0.0));
  }
  expect_equal(whole, second_half);
}

INSTANTIATE_TEST_SUITE_P(Devices, FusedAdam, testing::ValuesIn(devices()), device_name);

}  // namespace
}  // namespace lockstep
