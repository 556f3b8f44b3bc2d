// JitModel: "Just image Transformers" (Li and He, "Back to Basics: Let Denoising Generative Models Denoise", 2025): a
// Transformer on large patches of pixels that predicts the clean image from a noisy one.
//
// Role: predicts clean images from noisy ones, their times and classes. The loss is in jit_workload.cc, sampling in
// jit_sampling.cc. Names and layouts of the weights are those of the published code's state dicts ("net.blocks.0.…").
// Threads: one.
// Shapes: B images, C = 3 channels, H × H pixels, patches of P × P pixels, S = (H/P)² patches, N tokens (S; 32 more
// from the block on where the class is added as tokens), D width, A heads of E = D/A, F hidden width of SwiGLU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "runner/kernels/block_passes.h"
#include "runner/layers/dropouts.h"
#include "runner/layers/linear.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct JitShape {
  int64_t image_size = 64;  // pixels, a multiple of patch_size
  int64_t patch_size = 4;
  int64_t num_classes = 1;
  int64_t depth = 12;
  int64_t hidden_dim = 768;  // divisible by 4 * num_heads
  int64_t num_heads = 12;
  int64_t bottleneck = 128;      // width of the patch embedding's bottleneck
  int64_t in_context_start = 4;  // the first block that sees the class as tokens
  int64_t in_context_tokens = 32;

  [[nodiscard]] int64_t grid() const { return image_size / patch_size; }
  [[nodiscard]] int64_t swiglu_dim() const { return hidden_dim * 4 * 2 / 3; }
};

struct JitBlock {
  at::Tensor norm1;   // [D]
  Linear qkv;         // D → 3D
  at::Tensor q_norm;  // [E]
  at::Tensor k_norm;
  Linear proj;
  at::Tensor norm2;
  Linear w12;               // D → 2F: gate and value
  Linear w3;                // F → D
  Linear adaLN_modulation;  // D → 6D: shift, scale and gate of the attention, and of SwiGLU
};

class JitModel {
 public:
  // Parameters are zeros until initialize is called or weights are loaded.
  JitModel(const JitShape& shape, at::Device device);

  void initialize(uint64_t seed);

  // z_BCHH: t · image + (1 − t) · noise. t_B in [0, 1]. classes_B: int64; num_classes means no class. Returns the
  // predicted images, [B, C, H, H]. Dropout acts in the middle half of the blocks.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& z_BCHH, const at::Tensor& t_B, const at::Tensor& classes_B,
                                      Dropouts dropouts = {}) const;

  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  // The fixed position embedding, which the published code's state dicts contain as "net.pos_embed": [1, S, D].
  [[nodiscard]] at::Tensor pos_embed() const { return pos_embed_SD_.unsqueeze(0); }
  [[nodiscard]] const JitShape& shape() const { return shape_; }
  // The shifts, scales and gates of each block, [B, 6D], computed with one matrix product for all blocks or one for
  // each.
  [[nodiscard]] std::vector<at::Tensor> modulations(const at::Tensor& condition_BD, bool in_one_product) const;
  // Floating-point operations of one image's forward pass.
  [[nodiscard]] double flops_per_image() const;

 private:
  [[nodiscard]] at::Tensor embed_times(const at::Tensor& t_B) const;
  [[nodiscard]] at::Tensor embed_patches(const at::Tensor& z_BCHH) const;
  [[nodiscard]] at::Tensor attention(const JitBlock& block, const at::Tensor& x_BND,
                                     const HeadRotation& rotation) const;
  [[nodiscard]] at::Tensor unpatchify(const at::Tensor& x_BSF) const;

  JitShape shape_;
  at::Tensor proj1_;  // [bottleneck, C, P, P]
  Linear proj2_;      // weight [D, bottleneck, 1, 1]
  Linear time_mlp_0_;
  Linear time_mlp_2_;
  at::Tensor class_embedding_;    // [classes + 1, D]; the last row stands for "no class"
  at::Tensor in_context_posemb_;  // [1, 32, D]
  std::vector<JitBlock> blocks_;
  at::Tensor final_norm_;
  Linear final_adaLN_modulation_;  // D → 2D: shift and scale
  Linear final_linear_;            // D → P · P · C
  NamedTensors parameters_;

  at::Tensor time_frequencies_;  // not trained, as all that follows
  at::Tensor pos_embed_SD_;
  HeadRotation patches_;       // [S, E]
  HeadRotation with_context_;  // [32 + S, E]: the first 32 tokens are not rotated
};

}  // namespace lockstep
