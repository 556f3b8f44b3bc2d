// PixelDlmModel: the guide's own variant of JiT for texts as images (PixelDLM): each pixel is a token, and the network
// says what the picture is that it is shown with noise on it.
//
// Role: noisy pictures, their times and which pixels hold a token → clean pictures. Names and layouts of the weights
// are those of the guide's state dicts ("blocks.0.attn.qkv.weight"). In the guide a sequence is 256 patches of a
// condition and those of the picture. Its training gives no condition: those patches are then hidden from all others
// and left out at the end, so that nothing here computes them; their parameters stand in the state alone. Threads: one.
// Shapes: B pictures, C = 3 channels, H × H pixels, P × P pixels a patch, S = (H/P)² patches, D width, A heads, F = 4D
// hidden width of SwiGLU.
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
  at::Tensor norm;  // [D], before the attention and before SwiGLU, as scale and shift
  Linear scale;     // D → D
  Linear shift;
};

class PixelDlmModel {
 public:
  // Parameters are zeros; initialize, or weights from a file, comes next.
  PixelDlmModel(const PixelDlmShape& shape, at::Device device);

  void initialize(uint64_t seed);

  // z_BCHH: (1 − t/1000) · picture + t/1000 · noise. t_B: int64, in [0, 1000). is_token_BHH: bool. Returns the
  // pictures, [B, C, H, H]; 0 in a patch of which no more than half of the pixels hold a token.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& z_BCHH, const at::Tensor& t_B,
                                      const at::Tensor& is_token_BHH) const;

  // In the order of the guide's module.
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  // Those that training without a condition reaches.
  [[nodiscard]] NamedTensors trained() const;
  // The other ones, and "time_embed.emb", the frequencies of the times: with trained() the guide's state dict.
  [[nodiscard]] NamedTensors buffers() const;
  [[nodiscard]] const PixelDlmShape& shape() const { return shape_; }
  // Multiplications and additions of one picture's way forward.
  [[nodiscard]] double flops_per_image() const;

 private:
  [[nodiscard]] at::Tensor patches(const at::Tensor& x_BCHH) const;
  [[nodiscard]] at::Tensor attention(const PixelDlmBlock& block, const at::Tensor& x_BSD,
                                     const at::Tensor& heard_B11S) const;

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
