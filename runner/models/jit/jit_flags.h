// Flags of JiT. Links no torch. Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

// A model size. In a published one such as "JiT-B/4", the letter stands for depth and width, the number is the side of
// a patch in pixels.
struct JitSize {
  std::string name = "JiT-B/4";
  int64_t depth = 12;
  int64_t hidden_dim = 768;
  int64_t num_heads = 12;
  int64_t bottleneck = 128;
  int64_t in_context_start = 4;
  int64_t patch_size = 4;
};

// The kind of data, which also selects the model: images, or texts as images (the guide's variant).
enum class JitData { kAuto, kImages, kTokens };

struct JitOptions {
  std::string data_path;                 // required
  std::string cache_dir;                 // folder of the prepared images; empty: see cache_folder in prepare_cache.h
  JitData data_format = JitData::kAuto;  // chosen before a run begins; what is still kAuto then means images
  std::string tokenizer_path;            // a folder; empty: each byte is a token
  std::optional<int64_t> max_tokens;     // per text; unset: one per pixel
  int64_t image_size = 64;
  bool flip = true;
  int64_t valid_images = 256;  // validation images, at most a tenth of all

  JitSize model;
  double dropout = 0.0;
  double class_dropout = 0.1;  // probability that a training image is shown without its class
  double t_mean = -0.8;        // a time is the logistic function of a normal with this mean
  double t_deviation = 0.8;    // and this standard deviation
  double noise_scale = 1.0;
  double t_eps = 0.05;  // lower bound of 1 − t, by which loss and sampling divide

  int64_t save_interval = 10;  // epochs between the guide's checkpoint files
  int64_t sample_images = 16;  // in the contact sheet of each evaluation; 0: none
  int64_t sample_steps = 50;
  double guidance = 2.9;
};

// Of the sampled images of an evaluation, which one rank may make alone and send (kPartBytesMax of workload.h, whose
// headers of torch the flags do without).
inline constexpr int64_t kSheetBytesMax = int64_t{256} << 20;

WorkloadFlags jit_flags();

// The number of tokens that a text needs so that its first patch is predicted: more than half of the patch's pixels
// must hold a token, and tokens fill the picture row by row.
int64_t tokens_of_first_patch(const JitOptions& options);

// The Workload::memory_advice of both models.
std::string jit_memory_advice(const JitOptions& options, bool uses_amp);

}  // namespace lockstep
