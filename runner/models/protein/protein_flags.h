// Flags of the protein models. Links no torch. Threads: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

// kMpnn: ProteinMPNN, which predicts sequences that fold into a backbone. kMdm: the guide's masked side-chain model.
enum class ProteinVariant { kMpnn, kMdm };

// The divisor of a step's loss: the constant 2000 of the public script, or the number of residues in the loss.
enum class LossNorm { kConstant, kTokens };

// Which fragment tokens of a structure are masked: a share of them, or three runs of five.
enum class MaskingStrategy { kRandom, kBlock };

// Flags of --variant mpnn. Its --batch_tokens (residues in a step) is stored in TrainingOptions::batch_size.
struct MpnnOptions {
  int64_t num_neighbors = 48;
  double backbone_noise = 0.2;  // standard deviation of the noise on each coordinate in training, in Å
  double label_smoothing = 0.1;
  LossNorm loss_norm = LossNorm::kConstant;
  int64_t max_protein_length = 10000;          // longer structures are left out
  int64_t num_examples_per_epoch = 1'000'000;  // at most
};

// Flags of --variant mdm.
struct MdmOptions {
  int64_t num_heads = 8;
  double mask_ratio = 0.15;  // fraction of a structure's fragments that is masked, at least one fragment
  MaskingStrategy masking_strategy = MaskingStrategy::kRandom;
};

struct ProteinOptions {
  std::string pdb_path;   // required: a file, a folder, or generated[:COUNT[:LENGTH]]
  std::string cache_dir;  // folder of the prepared structures; empty: see cache_folder in prepare_cache.h
  ProteinVariant variant = ProteinVariant::kMpnn;
  double val_split = 0.1;
  bool use_predefined_split = false;  // split by train.txt, val.txt and test.txt in the folder of the structures
  int64_t hidden_dim = 128;           // 256 with --variant mdm, set by its preset
  int64_t num_encoder_layers = 3;
  int64_t num_decoder_layers = 3;
  double dropout = 0.1;
  MpnnOptions mpnn;
  MdmOptions mdm;
};

WorkloadFlags protein_flags();

}  // namespace lockstep
