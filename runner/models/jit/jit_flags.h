// What the command line knows of JiT. Links no torch. Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

// One of the published sizes, "JiT-B/4": its letter says width and depth, its number the pixels of a patch's side.
struct JitSize {
  std::string name = "JiT-B/4";
  int64_t depth = 12;
  int64_t hidden_dim = 768;
  int64_t num_heads = 12;
  int64_t bottleneck = 128;
  int64_t in_context_start = 4;
  int64_t patch_size = 4;
};

// What the data are, and with them the model: images, or texts as images (the guide's variant).
enum class JitData { kAuto, kImages, kTokens };

struct JitOptions {
  std::string data_path;                 // required
  std::string cache_dir;                 // of the prepared images; empty: beside the data
  JitData data_format = JitData::kAuto;  // settled before a run begins; kAuto means images then
  std::string tokenizer_path;            // a folder; empty: bytes are tokens
  std::optional<int64_t> max_tokens;     // of a text; as many as there are pixels
  int64_t image_size = 64;
  bool flip = true;
  int64_t valid_images = 256;  // kept from training, as far as they are a tenth of all

  JitSize model;
  double dropout = 0.0;
  double class_dropout = 0.1;  // how often a training image has no class
  double t_mean = -0.8;        // of the normal whose logistic a time is
  double t_deviation = 0.8;
  double noise_scale = 1.0;
  double t_eps = 0.05;  // times count as at most 1 − this in the loss

  int64_t save_interval = 10;  // epochs between the guide's checkpoint files
  int64_t sample_images = 16;  // in the picture of samples; 0: none
  int64_t sample_steps = 50;
  double guidance = 2.9;
};

WorkloadFlags jit_flags();

// Where the prepared images go; empty: nowhere, they are made in memory.
std::string image_cache_folder(const JitOptions& options);

// Workload::memory_advice of both models.
std::string jit_memory_advice(const JitOptions& options);

// RunConfig::options of a run of this workload.
const JitOptions& jit_options(const RunConfig& config);
JitOptions& jit_options(RunConfig& config);

}  // namespace lockstep
