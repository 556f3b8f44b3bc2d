// Sampling: noise becomes images along the flow that the model was trained on.
//
// dz/dt = v(z, t) = (image(z, t) − z) / (1 − t), from t = 0 (noise) to 1 (image), in equal steps: Heun's method, and
// Euler's for the last step, where v has no value at its end. Guidance (Ho and Salimans, 2022) in an interval of t
// (Kynkäänniemi et al., 2024): v = v_none + w (v_class − v_none) for 0.1 < t < 1.
// Threads: one. Shapes as in jit_model.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "runner/models/jit/jit_model.h"

namespace lockstep {

struct JitSampling {
  int64_t steps = 50;     // at least 1
  double guidance = 1.0;  // w; 1: none
  double t_eps = 0.05;    // v divides by no less
  double noise_scale = 1.0;
  // Asked before each step. False: it ends, and there are no images.
  std::function<bool()> goes_on = [] { return true; };
};

// The noise of image `number` of a run of `seed`: [C, H, H], normal with deviation 1, on the host. The same whatever is
// sampled beside it.
at::Tensor image_noise(uint64_t seed, int64_t number, int64_t image_size);

// noise_BCHH with deviation 1, classes_B as JitModel has them. Returns [B, C, H, H] in [-1, 1]; undefined when it was
// ended. Without gradients.
at::Tensor sample_images(const JitModel& model, const at::Tensor& noise_BCHH, const at::Tensor& classes_B,
                         const JitSampling& sampling);

// As bytes: [B, H, H, C] of 0 to 255.
at::Tensor to_pixels(const at::Tensor& images_BCHH);

// A contact sheet, row by row, `columns` images wide, with a line of white between them: [rows · (H + 1) − 1, …, C].
at::Tensor contact_sheet(const at::Tensor& pixels_BHHC, int64_t columns);

}  // namespace lockstep
