#include "runner/models/jit/jit_sampling.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "runner/base/philox.h"
#include "runner/layers/initial_values.h"
#include "runner/models/jit/data/image_file.h"
#include "runner/models/jit/image_batch.h"

namespace lockstep {
namespace {

constexpr double kGuidedFrom = 0.1;
constexpr uint32_t kSampleStep = 0xFFFFFFFF;  // used instead of an epoch, so that no training image has this noise

at::Tensor velocity(const JitModel& model, const at::Tensor& z_BCHH, double t, const at::Tensor& classes_B,
                    const JitSampling& sampling) {
  const int64_t b = z_BCHH.size(0);
  const double rest = std::max(1.0 - t, sampling.t_eps);
  const bool is_guided = sampling.guidance != 1.0 && t > kGuidedFrom && t < 1.0;
  const auto predict = [&](const at::Tensor& z, const at::Tensor& classes) {
    const at::Tensor t_B = torch::full({z.size(0)}, t, z.options());
    return (model(z, t_B, classes).to(z.scalar_type()) - z) / rest;
  };
  if (!is_guided) return predict(z_BCHH, classes_B);
  const at::Tensor none_B = torch::full_like(classes_B, model.shape().num_classes);
  const at::Tensor both = predict(torch::cat({z_BCHH, z_BCHH}), torch::cat({classes_B, none_B}));
  const at::Tensor unconditional = both.slice(0, b);
  return unconditional + sampling.guidance * (both.slice(0, 0, b) - unconditional);
}

}  // namespace

at::Tensor image_noise(uint64_t seed, int64_t number, int64_t image_size) {
  at::Tensor noise = at::empty({kChannels, image_size, image_size}, at::kFloat);
  fill_normals({seed, static_cast<uint32_t>(RandomPurpose::kImageNoise), kSampleStep, static_cast<uint32_t>(number)},
               noise.mutable_data_ptr<float>(), noise.numel());
  return noise;
}

at::Tensor sample_images(const JitModel& model, const at::Tensor& noise_BCHH, const at::Tensor& classes_B,
                         const JitSampling& sampling) {
  const torch::NoGradGuard no_grad;
  at::Tensor z_BCHH = noise_BCHH * sampling.noise_scale;
  for (int64_t step = 0; step < sampling.steps; ++step) {
    if (!sampling.goes_on()) return {};
    const auto steps = static_cast<double>(sampling.steps);
    const double t = static_cast<double>(step) / steps;
    const double next_t = static_cast<double>(step + 1) / steps;
    const at::Tensor v_BCHH = velocity(model, z_BCHH, t, classes_B, sampling);
    const at::Tensor euler_BCHH = z_BCHH + (next_t - t) * v_BCHH;
    if (step + 1 == sampling.steps) {
      z_BCHH = euler_BCHH;
    } else {
      if (!sampling.goes_on()) return {};
      z_BCHH = z_BCHH + (next_t - t) * 0.5 * (v_BCHH + velocity(model, euler_BCHH, next_t, classes_B, sampling));
    }
  }
  return z_BCHH.clamp(-1.0, 1.0);
}

at::Tensor sampled_pixels(const JitModel& model, uint64_t seed, int64_t first, const std::vector<int64_t>& classes,
                          const JitSampling& sampling) {
  std::vector<at::Tensor> noise;
  for (int64_t i = 0; i < std::ssize(classes); ++i) {
    noise.push_back(image_noise(seed, first + i, model.shape().image_size));
  }
  const at::Device device = model.parameters().front().tensor.device();
  const at::Tensor images_BCHH =
      sample_images(model, torch::stack(noise).to(device), torch::tensor(classes, torch::kLong).to(device), sampling);
  if (!images_BCHH.defined()) return {};
  const at::Tensor values = ((images_BCHH + 1.0) * 127.5).round().clamp(0.0, 255.0);
  return values.to(at::kByte).permute({0, 2, 3, 1}).contiguous().cpu();
}

at::Tensor contact_sheet(const at::Tensor& pixels_BHHC, int64_t columns) {
  const int64_t b = pixels_BHHC.size(0);
  const int64_t h = pixels_BHHC.size(1);
  const int64_t rows = (b + columns - 1) / columns;
  constexpr int64_t kWhite = 255;
  at::Tensor sheet =
      torch::full({rows * (h + 1) - 1, columns * (h + 1) - 1, pixels_BHHC.size(3)}, kWhite, pixels_BHHC.options());
  for (int64_t i = 0; i < b; ++i) {
    const int64_t top = i / columns * (h + 1);
    const int64_t left = i % columns * (h + 1);
    sheet.slice(0, top, top + h).slice(1, left, left + h).copy_(pixels_BHHC[i]);
  }
  return sheet;
}

std::string contact_sheet_png(const at::Tensor& pixels_BHHC) {
  const auto count = static_cast<double>(pixels_BHHC.size(0));
  return png_of(contact_sheet(pixels_BHHC, static_cast<int64_t>(std::ceil(std::sqrt(count)))));
}

std::string png_of(const at::Tensor& pixels_HWC) {
  const at::Tensor pixels = pixels_HWC.contiguous();
  return png_bytes({pixels.data_ptr<uint8_t>(), static_cast<size_t>(pixels.numel())}, pixels.size(1), pixels.size(0));
}

}  // namespace lockstep
