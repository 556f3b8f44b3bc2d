// Reads GPT-2 from a folder in Hugging Face's layout: config.json and model.safetensors, whole or in shards.
//
// Threads: pure, except that they read files.
// Errors: kNotFound, kInvalid and kCorrupt name the file and the tensor or field, what was found, what was expected and
// what to do.
#pragma once

#include <string>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/models/gpt2rec/gpt2.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

// Reads config.json. kInvalid also if it asks for something that Gpt2 does not have: another activation, epsilon or
// scale of the attention.
Result<Gpt2Shape> read_gpt2_shape(FileSystem& fs, const std::string& folder);

// Reads the tensors (F32, F16, BF16 or F64) into `weights` (Gpt2::weights). Their names may begin with "transformer.".
// The language-model head and the attention masks of older files are ignored.
Status read_gpt2_weights(FileSystem& fs, const std::string& folder, const NamedTensors& weights);

}  // namespace lockstep
