#include "runner/optim/ema.h"

#include <limits>

#include "tests/runner/optim/optim_fixture.h"

namespace lockstep {
namespace {

class EmaOf : public OnEachDevice {
 protected:
  static void shift(const NamedTensors& parameters, double by) {
    const torch::NoGradGuard no_grad;
    for (const NamedTensor& entry : parameters) {
      at::Tensor tensor = entry.tensor;
      tensor.add_(by);
    }
  }
};

TEST_P(EmaOf, begins_as_a_copy) {
  const NamedTensors parameters = make_parameters();
  const Ema ema(parameters, 0.9);
  expect_equal(ema.state(), copies(parameters));
  shift(parameters, 1.0);
  EXPECT_FALSE(torch::equal(ema.state()[0].tensor, parameters[0].tensor));
}

TEST_P(EmaOf, follows_its_formula) {
  const NamedTensors parameters = make_parameters();
  Ema ema(parameters, 0.9);
  at::Tensor expected = parameters[0].tensor.detach().to(at::kDouble);
  for (int step = 0; step < 10; ++step) {
    shift(parameters, 0.25);
    ema.update(flag(0.0));
    expected = 0.9 * expected + 0.1 * parameters[0].tensor.detach().to(at::kDouble);
  }
  EXPECT_LT((ema.state()[0].tensor - expected).abs().max().item<double>(), 1e-6);
}

TEST_P(EmaOf, a_skipped_step_leaves_it_bit_for_bit) {
  const NamedTensors parameters = make_parameters();
  Ema ema(parameters, 0.9);
  shift(parameters, 1.0);
  ema.update(flag(0.0));
  const NamedTensors before = copies(ema.state());
  shift(parameters, 1.0);
  ema.update(flag(1.0));
  expect_equal(ema.state(), before);
}

TEST_P(EmaOf, swaps_in_for_a_scope_and_back) {
  const NamedTensors parameters = make_parameters();
  Ema ema(parameters, 0.9);
  shift(parameters, 1.0);
  const NamedTensors own = copies(parameters);
  const void* address = parameters[0].tensor.data_ptr();
  {
    const Ema::SwapIn swapped(ema);
    expect_equal(copies(parameters), ema.state());
    EXPECT_EQ(parameters[0].tensor.data_ptr(), address);
  }
  expect_equal(copies(parameters), own);
}

TEST_P(EmaOf, reset_takes_the_parameters_as_they_are) {
  const NamedTensors parameters = make_parameters();
  Ema ema(parameters, 0.9);
  shift(parameters, 3.0);
  ema.reset();
  expect_equal(ema.state(), copies(parameters));
}

INSTANTIATE_TEST_SUITE_P(Devices, EmaOf, testing::ValuesIn(devices()), device_name);

}  // namespace
}  // namespace lockstep
