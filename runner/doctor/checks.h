// Judges the facts about a machine: what each of them means for a training run. Pure.
#pragma once

#include <string>
#include <vector>

#include "runner/doctor/facts.h"

namespace lockstep::doctor {

enum class Verdict {
  kOk,
  kWarn,  // training runs, but slower or on another device than it could
  kFail,  // training does not run
  kSkip,  // does not apply here
};
const char* to_string(Verdict verdict);

struct Check {
  std::string group;  // "Programs", "GPUs", …
  std::string name;   // "driver"
  Verdict verdict = Verdict::kSkip;
  std::string found;   // a sentence
  std::string remedy;  // what to do; empty for kOk and kSkip
};

// All checks, in the order in which the report prints them.
std::vector<Check> judge(const Facts& facts);

// The number of ranks that the checks assume: --nproc if it was given, else one per usable GPU, else 1.
int ranks_meant(const Facts& facts);

}  // namespace lockstep::doctor
