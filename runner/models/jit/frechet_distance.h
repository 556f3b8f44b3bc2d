// The Fréchet distance between two sets of images (Heusel et al., 2017): how far apart the normal distributions are
// that have the means and covariances of their features.
//
//   d² = |μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2 (Σ₁ Σ₂)^½)
//
// Features come from a network that the user has as a TorchScript file (with Inception's it is the FID), or else from
// simple_features; distances on different features say nothing beside each other.
// Threads: pure functions; each thread has a FeatureNetwork of its own. All statistics are float64, on the CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

// Sums from which the statistics of a set follow. Those of its parts add up.
struct FeatureSums {
  int64_t count = 0;
  at::Tensor sum_F;        // undefined while count is 0
  at::Tensor products_FF;  // Σ f fᵀ

  void add(const at::Tensor& features_BF);
  void add(const FeatureSums& other);
};

struct FeatureStatistics {
  at::Tensor mean_F;
  at::Tensor covariance_FF;  // unbiased, as numpy.cov
};

// sums.count >= 2.
FeatureStatistics statistics_of(const FeatureSums& sums);

// Both have the same number of features. At least 0.
double frechet_distance(const FeatureStatistics& a, const FeatureStatistics& b);

// --fid_stats: "mu" [F] and "sigma" [F, F] of an .npz, as the public tools for the FID write them.
// Errors: those of the disk and of read_npz_array; kInvalid (other shapes, numbers that are not finite).
Result<FeatureStatistics> read_feature_statistics(FileSystem& fs, const std::string& path);

// Mean and deviation of each colour in each of 4 x 4 fields of the image, 0 to 1: 96 features. They see colours and
// coarse shapes, no things. pixels_BHHC: bytes, side at least 4.
at::Tensor simple_features(const at::Tensor& pixels_BHHC);

// --fid_features. The module is given bytes [B, 3, H, W] of 0 to 255 and returns [B, F], F >= 1; where its forward has
// an argument `return_features`, that is true.
class FeatureNetwork {
 public:
  // Errors (kInvalid): no TorchScript file, or one that this LibTorch does not read; names it.
  static Result<FeatureNetwork> load(const std::string& path, at::Device device);
  FeatureNetwork(FeatureNetwork&&) noexcept;
  FeatureNetwork& operator=(FeatureNetwork&&) noexcept;
  ~FeatureNetwork();

  // Without gradients. Errors (kInvalid): it failed, or returned something else.
  [[nodiscard]] Result<at::Tensor> operator()(const at::Tensor& pixels_BHHC);

 private:
  struct Module;
  explicit FeatureNetwork(std::unique_ptr<Module> module);
  std::unique_ptr<Module> module_;
};

}  // namespace lockstep
