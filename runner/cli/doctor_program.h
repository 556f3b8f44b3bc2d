// What `lockstep doctor -- python train.py` says: what a program will get from `lockstep launch` on this machine, and
// why.
//
// It starts the program's interpreter and imports what a zygote would, but not the program. Threads: the caller's.
#pragma once

#include <string>
#include <vector>

#include "runner/base/environment.h"
#include "runner/base/result.h"

namespace lockstep {

// `words` as after the flags of `lockstep launch`. Text, or one JSON object. kInvalid, kNotFound: as launch refuses it.
Result<std::string> describe_program(const std::vector<std::string>& words, const Environment& environment,
                                     bool as_json);

}  // namespace lockstep
