// Flags of the recommender with GPT-2. Links no torch. Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

// Shares of the ratings; they sum to 1.
struct SplitRatio {
  double train = 0.8;
  double valid = 0.1;
  double test = 0.1;
};

// When the negatives of each rating (films that the user has not rated) are drawn: once, or anew in each epoch.
enum class NegativeDraw { kStatic, kResample };

// --gpt2_config LAYERSxWIDTH
struct Gpt2Size {
  int64_t num_layers = 2;
  int64_t width = 64;  // below 64, or a multiple of it: there is one attention head for each 64
};

enum class TextPool {
  kMaskedMean,  // mean over the text's own tokens
  kPadded,      // mean over all places of the batch, including padding, as in the guide's code
};

// Flags of one of the two phases of --preset two_phase.
struct PhaseOptions {
  int64_t num_epochs = 0;
  double lr = 0.0;
  double clip_grad_norm = 0.0;
};

struct Gpt2recOptions {
  std::string data_path;  // required
  SplitRatio split_ratio;
  NegativeDraw negatives = NegativeDraw::kStatic;
  int64_t num_negatives = 1;  // of each rating

  std::string gpt2_path;       // a folder; empty: a small random one
  std::string tokenizer_path;  // a folder; empty: gpt2_path, and if that is empty too, bytes are tokens
  std::optional<Gpt2Size> gpt2_config;
  int64_t lora_rank = 8;
  double lora_alpha = 32.0;
  double lora_dropout = 0.1;
  int64_t max_length = 128;  // tokens of a text
  TextPool pool = TextPool::kMaskedMean;

  int64_t embed_dim = 64;
  bool use_attention = true;
  double dropout = 0.2;

  bool use_cache = true;
  double gpt2_lr_factor = 0.2;  // learning rate of LoRA's weights, as a multiple of the step's
  PhaseOptions phase1 = {.num_epochs = 15, .lr = 1e-4, .clip_grad_norm = 1.0};
  PhaseOptions phase2 = {.num_epochs = 30, .lr = 5e-5, .clip_grad_norm = 0.5};
  bool phase2_cache = false;

  bool valid_seen = true;  // the validation's candidates include the user's training films
  bool save_model = true;
  std::string model_path = "model.pth";
};

WorkloadFlags gpt2rec_flags();

// A phase of a run. In a cached phase all texts are encoded once, and LoRA's weights are not trained.
struct RecommenderPhase {
  std::string name;
  int64_t num_epochs = 0;
  std::string epochs_flag;  // the flag that sets num_epochs
  double lr = 0.0;
  double clip_grad_norm = 0.0;
  bool is_cached = true;
};
// The only phase, or the two of --preset two_phase.
std::vector<RecommenderPhase> recommender_phases(const RunConfig& config);

}  // namespace lockstep
