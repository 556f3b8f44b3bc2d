// Describes in words where two ranks, or a run and a checkpoint, disagree. Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "runner/base/json.h"

namespace lockstep {

// What differs between two objects of RunConfig's maths_flags() or shared_flags(): "--lr is 0.001 in OURS and 0.002 in
// THEIRS", sorted by flag; `ours` and `theirs` name the two sides ("rank 0", "the checkpoint").
std::vector<std::string> differing_flags(const Json& our_flags, const std::string& ours, const Json& their_flags,
                                         const std::string& theirs);

// Two JSON objects of what must be the same on all ranks, as text: RunConfig::shared_flags(), and what a worker finds
// out by itself under names that hold a space ("number of samples"). Empty when they agree or one is empty, else the
// first difference and what to do: "--lr is 0.001 in rank 0 and 0.002 in rank 1; start all ranks …".
std::string disagreement(const std::string& our_terms, const std::string& ours, const std::string& their_terms,
                         const std::string& theirs);

}  // namespace lockstep
