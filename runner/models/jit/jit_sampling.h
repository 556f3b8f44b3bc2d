// Sampling: turns noise into images by integrating the flow that the model was trained on.
//
// dz/dt = v(z, t) = (image(z, t) − z) / (1 − t), from t = 0 (noise) to 1 (image), in equal steps of Heun's method. The
// last step is Euler's, as v is not defined at t = 1. Guidance (Ho and Salimans, 2022) is limited to an interval of t
// (Kynkäänniemi et al., 2024): v = v_none + w (v_class − v_none) for 0.1 < t < 1.
// Threads: one. Shapes as in jit_model.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runner/models/jit/jit_model.h"

namespace lockstep {

struct JitSampling {
  int64_t steps = 50;     // at least 1
  double guidance = 1.0;  // w; 1: none
  double t_eps = 0.05;    // lower bound of the divisor 1 − t in v
  double noise_scale = 1.0;
  // Called before each step; when it returns false, sampling ends without images.
  std::function<bool()> goes_on = [] { return true; };
};

// The noise of image `number` in a run with `seed`: [C, H, H], standard normals, on the host. It does not depend on
// which other images are sampled.
at::Tensor image_noise(uint64_t seed, int64_t number, int64_t image_size);

// noise_BCHH: standard normals. classes_B: as in JitModel. Returns images [B, C, H, H] in [-1, 1], without gradients;
// undefined when goes_on returned false.
at::Tensor sample_images(const JitModel& model, const at::Tensor& noise_BCHH, const at::Tensor& classes_B,
                         const JitSampling& sampling);

// Images first, first + 1, … of a run with `seed`, one for each of the `classes`, as bytes: [B, H, H, C], 0 to 255, on
// the host. Undefined when goes_on returned false.
at::Tensor sampled_pixels(const JitModel& model, uint64_t seed, int64_t first, const std::vector<int64_t>& classes,
                          const JitSampling& sampling);

// A contact sheet, row by row, `columns` images wide, with a white line of 1 pixel between images:
// [rows · (H + 1) − 1, columns · (H + 1) − 1, C].
at::Tensor contact_sheet(const at::Tensor& pixels_BHHC, int64_t columns);
// A contact sheet that is about as wide as high, as a PNG.
std::string contact_sheet_png(const at::Tensor& pixels_BHHC);
// Bytes on the host, [height, width, C].
std::string png_of(const at::Tensor& pixels_HWC);

}  // namespace lockstep
