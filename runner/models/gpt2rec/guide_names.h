// The trained model as a state dict of the guide's module, written and read: all its tensors by its names, GPT-2's
// frozen ones and those that reach no score among them, so that the guide's Python loads it strictly.
//
// Names: "user_emb.weight" …; GPT-2 as Python's peft wraps it, "gpt2.base_model.model.transformer.h.0.…", its adapted
// layers with ".base_layer", ".lora_A.default", ".lora_B.default", and the head "lm_head" that it ties to the tokens.
// Threads: pure.
#pragma once

#include <cstdint>

#include "runner/models/gpt2rec/recommender_model.h"
#include "runner/models/gpt2rec/text_encoder.h"
#include "runner/models/workload.h"

namespace lockstep {

// `seed`: of the run, for the tensors that were never trained.
TorchTree guide_state_dict(const RecommenderModel& model, const TextEncoder& encoder, uint64_t seed);

// The other way round: by our names, without what is not trained. Tensors that have our names already stay.
// trains_adapters: else those of the file must be as good as none.
// Errors (kInvalid): another GPT-2; adapters that were trained where none are.
Result<NamedTensors> without_guide_names(NamedTensors file, const RecommenderModel& model, const TextEncoder& encoder,
                                         bool trains_adapters);

}  // namespace lockstep
