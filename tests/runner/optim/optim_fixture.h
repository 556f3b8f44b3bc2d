// Small parameters with gradients, on every device that this build and machine have.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "runner/tensor/named_tensor.h"
#include "tests/runner/support/devices.h"

namespace lockstep {

class OnEachDevice : public testing::TestWithParam<at::DeviceType> {
 protected:
  // Deterministic values; a matrix, a vector, a scalar-like vector: sizes that do not divide any vector width.
  [[nodiscard]] static NamedTensors make_parameters() {
    NamedTensors parameters;
    const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes{
        {"item_emb.weight", {37, 50}}, {"norm.weight", {50}}, {"out.bias", {1}}};
    for (const auto& [name, shape] : shapes) {
      at::Tensor value = values(shape, static_cast<double>(parameters.size()) + 0.5);
      parameters.push_back({name, value.to(GetParam()).requires_grad_(true)});
    }
    return parameters;
  }

  static void set_gradients(const NamedTensors& parameters, int64_t step, double scale = 1.0) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor parameter = parameters[i].tensor;
      const double phase = static_cast<double>(step) * 1.7 + static_cast<double>(i);
      parameter.mutable_grad() = values(parameter.sizes().vec(), phase).mul(scale).to(GetParam());
    }
  }

  static at::Tensor flag(double value) { return torch::full({}, value, torch::kFloat32).to(GetParam()); }

  static at::Tensor values(const std::vector<int64_t>& shape, double phase) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return torch::arange(count, torch::kFloat64).mul(0.7).add(phase).sin().reshape(shape).to(torch::kFloat32);
  }

  static NamedTensors copies(const NamedTensors& source) {
    NamedTensors copy;
    for (const NamedTensor& entry : source) copy.push_back({entry.name, entry.tensor.detach().clone()});
    return copy;
  }

  static void expect_equal(const NamedTensors& a, const NamedTensors& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i].tensor, b[i].tensor)) << a[i].name;
  }
};

}  // namespace lockstep
