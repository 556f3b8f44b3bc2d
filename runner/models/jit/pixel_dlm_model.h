// PixelDlmModel: the guide's own variant of JiT for texts as images (PixelDLM). Each pixel is a token, and the network
// predicts the clean picture from a noisy one.
//
// Role: predicts clean pictures from noisy ones, their times, and the mask of the pixels that hold a token. Names and
// layouts of the weights are those of the guide's state dicts ("blocks.0.attn.qkv.weight"). The guide's sequences begin
// with 256 patches of a condition. Its training gives no condition: these patches are then masked for all others and
// dropped from the output. They are therefore not computed here; their parameters exist only in the state dict.
// Threads: one.
// Shapes: B pictures, C = 3 channels, H × H pixels, patches of P × P pixels, S = (H/P)² patches, D width, A heads,
// F = 4D hidden width of SwiGLU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "runner/layers/linear.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct PixelDlmShape {
  int64_t image_size = 64;  // pixels, a multiple of patch_size
  int64_t patch_size = 4;
  int64_t depth = 12;
  int64_t hidden_dim = 768;  // even, divisible by num_heads
  int64_t num_heads = 12;

  [[nodiscard]] int64_t grid() const { return image_size / patch_size; }
};

struct PixelDlmBlock {
  at::Tensor qkv;   // [3D, D], without a bias
  Linear proj;      // D → D
  Linear mlp_in;    // D → 2F: gate and value
  Linear mlp_out;   // F → D
  at::Tensor norm;  // [D]; like scale and shift, used before the attention and before SwiGLU
  Linear scale;     // D → D
  Linear shift;
};

class PixelDlmModel {
 public:
  // Parameters are zeros until initialize is called or weights are loaded.
  PixelDlmModel(const PixelDlmShape& shape, at::Device device);

  void initialize(uint64_t seed);

  // z_BCHH: (1 − t/1000) · picture + t/1000 · noise. t_B: int64, in [0, 1000). is_token_BHH: bool. Returns the
  // predicted pictures, [B, C, H, H]; they are 0 in patches where at most half of the pixels hold a token.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& z_BCHH, const at::Tensor& t_B,
                                      const at::Tensor& is_token_BHH) const;

  // In the order of the guide's module.
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  // The parameters that training changes: all except those of the condition.
  [[nodiscard]] NamedTensors trained() const;
  // The condition's parameters, and "time_embed.emb", the frequencies of the time embedding. Together with trained(),
  // they form the guide's state dict.
  [[nodiscard]] NamedTensors buffers() const;
  [[nodiscard]] const PixelDlmShape& shape() const { return shape_; }
  // Floating-point operations of one picture's forward pass.
  [[nodiscard]] double flops_per_image() const;

 private:
  [[nodiscard]] at::Tensor attention(const PixelDlmBlock& block, const at::Tensor& x_BSD,
                                     const at::Tensor& attended_B11S) const;

  PixelDlmShape shape_;
  at::Tensor pos_embed_h_;  // [1, H/P, D]
  at::Tensor pos_embed_w_;
  at::Tensor patch_embed_;  // [D, C · P · P]
  std::vector<PixelDlmBlock> blocks_;
  Linear output_proj_;  // D → C · P · P
  NamedTensors parameters_;
  at::Tensor frequencies_;  // [D/2]
};

}  // namespace lockstep
