// Converts the model to and from the state dict of the guide's PyTorch module. The dict has all tensors of that module,
// also GPT-2's frozen weights and the tensors without influence on the score, so that load_state_dict accepts it with
// strict=True.
//
// Names: "user_emb.weight" …; GPT-2 as Python's peft wraps it, "gpt2.base_model.model.transformer.h.0.…", its adapted
// layers with ".base_layer", ".lora_A.default", ".lora_B.default", and the head "lm_head", whose weights are those of
// the token embedding.
// Threads: pure.
#pragma once

#include <cstdint>

#include "runner/models/gpt2rec/recommender_model.h"
#include "runner/models/gpt2rec/text_encoder.h"
#include "runner/models/workload.h"

namespace lockstep {

// `seed`: the run's, for the initial values of the tensors that are not part of the model.
TorchTree guide_state_dict(const RecommenderModel& model, const TextEncoder& encoder, uint64_t seed);

// The reverse: renames the tensors of a file to the model's names and drops those that are not trained. Tensors that
// already have the model's names are kept. trains_adapters: whether the run trains LoRA's weights; if not, those in the
// file are dropped, and must not have been trained either (lora_B must be 0).
// Errors (kInvalid): the file has weights of another GPT-2, or trained adapters when the run trains none.
Result<NamedTensors> without_guide_names(NamedTensors file, const RecommenderModel& model, const TextEncoder& encoder,
                                         bool trains_adapters);

}  // namespace lockstep
