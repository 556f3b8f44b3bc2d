// A folder as Hugging Face keeps GPT-2 in: config.json and model.safetensors, whole or in shards.
//
// Threads: functions. Errors: kNotFound, kInvalid and kCorrupt name the file and the tensor or field, what was found,
// what was expected and what to do.
#pragma once

#include <string>

#include "runner/base/result.h"
#include "runner/models/gpt2rec/gpt2.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

// By config.json. kInvalid too where it asks for what Gpt2 does not do: another activation, epsilon or scale.
Result<Gpt2Shape> read_gpt2_shape(const std::string& folder);

// Into `weights` (Gpt2::weights), from F32, F16, BF16 or F64. Names may begin with "transformer."; a language-model
// head and the masks of older files are passed over.
Status read_gpt2_weights(const std::string& folder, const NamedTensors& weights);

}  // namespace lockstep
