#include "runner/models/jit/frechet_distance.h"

#include <torch/script.h>
#include <torch/types.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "runner/base/check.h"
#include "runner/formats/npz_file.h"

namespace lockstep {
namespace {

constexpr uint64_t kStatisticsBytesMax = uint64_t{1} << 31;

// The square root of a symmetric matrix whose eigenvalues are not negative, except for rounding errors.
at::Tensor square_root(const at::Tensor& matrix_FF) {
  const auto [values_F, vectors_FF] = at::linalg_eigh(matrix_FF);
  return (vectors_FF * values_F.clamp_min(0.0).sqrt()).matmul(vectors_FF.t());
}

// The first line of a torch exception; the rest is its location in torch's sources.
std::string first_line(const std::exception& e) {
  const std::string text = e.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

void FeatureSums::add(const at::Tensor& features_BF) {
  const at::Tensor features = features_BF.to(at::kCPU, at::kDouble);
  add({.count = features.size(0), .sum_F = features.sum(0), .products_FF = features.t().matmul(features)});
}

void FeatureSums::add(const FeatureSums& other) {
  if (other.count == 0) return;
  sum_F = count == 0 ? other.sum_F : sum_F + other.sum_F;
  products_FF = count == 0 ? other.products_FF : products_FF + other.products_FF;
  count += other.count;
}

FeatureStatistics statistics_of(const FeatureSums& sums) {
  LOCKSTEP_CHECK(sums.count >= 2, "a covariance needs two images");
  const auto n = static_cast<double>(sums.count);
  const at::Tensor mean_F = sums.sum_F / n;
  return {.mean_F = mean_F, .covariance_FF = (sums.products_FF - torch::outer(mean_F, mean_F) * n) / (n - 1.0)};
}

// The eigenvalues of Σ₁ Σ₂ are those of Σ₁^½ Σ₂ Σ₁^½, which is symmetric.
double frechet_distance(const FeatureStatistics& a, const FeatureStatistics& b) {
  const at::Tensor root_FF = square_root(a.covariance_FF);
  const at::Tensor product_FF = root_FF.matmul(b.covariance_FF).matmul(root_FF);
  const at::Tensor eigenvalues_F = at::linalg_eigvalsh((product_FF + product_FF.t()) * 0.5);
  const double common = eigenvalues_F.clamp_min(0.0).sqrt().sum().item<double>();
  const double means = (a.mean_F - b.mean_F).square().sum().item<double>();
  const double spreads = (a.covariance_FF.trace() + b.covariance_FF.trace()).item<double>();
  return std::max(0.0, means + spreads - 2.0 * common);
}

Result<FeatureStatistics> read_feature_statistics(FileSystem& fs, const std::string& path) {
  TRY_ASSIGN(const std::string bytes, read_file(fs, path, kStatisticsBytesMax));
  TRY_ASSIGN(NpyArray mean, read_npz_array(bytes, "mu", path));
  TRY_ASSIGN(NpyArray covariance, read_npz_array(bytes, "sigma", path));
  const bool fit = mean.shape.size() == 1 && mean.shape[0] >= 1 &&
                   covariance.shape == std::vector<int64_t>{mean.shape[0], mean.shape[0]};
  if (!fit) {
    return Error{ErrorCode::kInvalid, path +
                                          ": mu and sigma have other shapes than [F] and [F, F]; expected the mean "
                                          "of the features and their covariance"};
  }
  const auto tensor = [](const NpyArray& array) { return torch::tensor(array.values, at::kDouble).view(array.shape); };
  FeatureStatistics statistics{.mean_F = tensor(mean), .covariance_FF = tensor(covariance)};
  const bool is_finite =
      at::isfinite(statistics.mean_F).all().item<bool>() && at::isfinite(statistics.covariance_FF).all().item<bool>();
  if (!is_finite) return Error{ErrorCode::kInvalid, path + ": mu or sigma holds numbers that are not finite"};
  return statistics;
}

at::Tensor simple_features(const at::Tensor& pixels_BHHC) {
  constexpr int64_t kFields = 4;
  const at::Tensor images_BCHH = pixels_BHHC.permute({0, 3, 1, 2}).to(at::kFloat) / 255.0;
  const at::Tensor means = at::adaptive_avg_pool2d(images_BCHH, {kFields, kFields});
  const at::Tensor squares = at::adaptive_avg_pool2d(images_BCHH.square(), {kFields, kFields});
  const at::Tensor deviations = (squares - means.square()).clamp_min(0.0).sqrt();
  return torch::cat({means.flatten(1), deviations.flatten(1)}, 1);
}

struct FeatureNetwork::Module {
  torch::jit::Module module;
  at::Device device;
  std::string path;
  bool has_return_features;
};

FeatureNetwork::FeatureNetwork(std::unique_ptr<Module> module) : module_(std::move(module)) {}
FeatureNetwork::FeatureNetwork(FeatureNetwork&&) noexcept = default;
FeatureNetwork& FeatureNetwork::operator=(FeatureNetwork&&) noexcept = default;
FeatureNetwork::~FeatureNetwork() = default;

Result<FeatureNetwork> FeatureNetwork::load(const std::string& path, at::Device device) {
  try {
    torch::jit::Module module = torch::jit::load(path, device);
    module.eval();
    const auto& schema = module.get_method("forward").function().getSchema();
    const bool has = schema.argumentIndexWithName("return_features").has_value();
    return FeatureNetwork(std::make_unique<Module>(Module{std::move(module), device, path, has}));
  } catch (const std::exception& e) {
    return Error{ErrorCode::kInvalid, path + " is no TorchScript file that can be read (" + first_line(e) +
                                          "); write one with torch.jit.script(module).save(file)"};
  }
}

Result<at::Tensor> FeatureNetwork::operator()(const at::Tensor& pixels_BHHC) {
  const auto wrong = [&](const std::string& found) {
    return Error{ErrorCode::kInvalid, module_->path + ": given bytes [" + std::to_string(pixels_BHHC.size(0)) +
                                          ", 3, " + std::to_string(pixels_BHHC.size(1)) + ", " +
                                          std::to_string(pixels_BHHC.size(2)) + "], it " + found +
                                          "; expected floats [images, features]"};
  };
  try {
    const torch::NoGradGuard no_grad;
    const at::Tensor images_BCHH = pixels_BHHC.permute({0, 3, 1, 2}).contiguous().to(module_->device);
    torch::jit::Kwargs options;
    if (module_->has_return_features) options.emplace("return_features", true);
    const c10::IValue returned = module_->module.forward({images_BCHH}, options);
    if (!returned.isTensor()) return wrong("returned no tensor");
    const at::Tensor features = returned.toTensor();
    if (features.dim() != 2 || features.size(0) != pixels_BHHC.size(0) || !features.is_floating_point()) {
      return wrong("returned " + features.toString() + " of " + std::to_string(features.dim()) + " dimensions");
    }
    if (!at::isfinite(features).all().item<bool>()) return wrong("returned numbers that are not finite");
    return features;
  } catch (const c10::OutOfMemoryError&) {
    throw;  // the process's handler of out-of-memory errors reports it
  } catch (const std::exception& e) {
    return wrong("failed: " + first_line(e));
  }
}

}  // namespace lockstep
