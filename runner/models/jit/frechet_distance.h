// The Fréchet distance between two sets of images (Heusel et al., 2017): the distance of the two normal distributions
// that have the means and covariances of the sets' features.
//
//   d² = |μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2 (Σ₁ Σ₂)^½)
//
// Features come from a network that the user gives as a TorchScript file (with Inception's features, the distance is
// the FID), or else from simple_features. Distances on different features cannot be compared.
// Threads: pure functions; each thread needs its own FeatureNetwork. All statistics are float64, on the CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

// The sums from which a set's statistics are computed. The sums of parts can be added.
struct FeatureSums {
  int64_t count = 0;
  at::Tensor sum_F;        // undefined while count is 0
  at::Tensor products_FF;  // Σ f fᵀ

  void add(const at::Tensor& features_BF);
  void add(const FeatureSums& other);
};

struct FeatureStatistics {
  at::Tensor mean_F;
  at::Tensor covariance_FF;  // unbiased (divided by count − 1), like numpy.cov
};

// sums.count >= 2.
FeatureStatistics statistics_of(const FeatureSums& sums);

// Both have the same number of features. At least 0.
double frechet_distance(const FeatureStatistics& a, const FeatureStatistics& b);

// Reads --fid_stats: "mu" [F] and "sigma" [F, F] in an .npz file, as the public FID tools write it.
// Errors: those of the disk and of read_npz_array; kInvalid (other shapes, numbers that are not finite).
Result<FeatureStatistics> read_feature_statistics(FileSystem& fs, const std::string& path);

// The mean and standard deviation, 0 to 1, of each colour in each of the image's 4 x 4 fields: 96 features. They
// respond to colours and coarse shapes, not to objects. pixels_BHHC: bytes, side at least 4.
at::Tensor simple_features(const at::Tensor& pixels_BHHC);

// The network of --fid_features. Its module is given bytes [B, 3, H, W] from 0 to 255 and returns [B, F], F >= 1. If
// its forward has an argument `return_features`, true is passed.
class FeatureNetwork {
 public:
  // Errors (kInvalid): the file is not TorchScript, or this LibTorch cannot read it; the message names it.
  static Result<FeatureNetwork> load(const std::string& path, at::Device device);
  FeatureNetwork(FeatureNetwork&&) noexcept;
  FeatureNetwork& operator=(FeatureNetwork&&) noexcept;
  ~FeatureNetwork();

  // Computes the features, without gradients. Errors (kInvalid): the module failed, or returned something else.
  [[nodiscard]] Result<at::Tensor> operator()(const at::Tensor& pixels_BHHC);

 private:
  struct Module;
  explicit FeatureNetwork(std::unique_ptr<Module> module);
  std::unique_ptr<Module> module_;
};

}  // namespace lockstep
