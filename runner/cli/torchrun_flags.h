// The flags of torchrun that `lockstep launch` understands: all that torchrun's own parser knows
// (torch/distributed/run.py; a test compares the two). Threads: plain values.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

enum class TorchrunMeaning {
  kOurFlag,     // the flag of the same name, or alias, in the table of ours
  kStandalone,  // one node: --rdzv_endpoint and --rdzv_id are not used
  kEndpoint,    // the coordinator
  kRunId,
  kModule,
  kNoPython,
  kRunPath,
  kRole,
  kLogDir,
  kRedirects,
  kTee,
  kShownRanks,
  kPrefix,
  kDuplicateOut,
  kDuplicateErr,
  kSignals,
  kLocalAddress,
  kVirtualLocalRank,
  kIgnored,  // accepted, with one warning
  kRefused,
};

struct TorchrunFlag {
  std::string_view name;  // spelt with underscores, no dashes in front
  char letter;            // its short name; 0: none
  bool takes_value;
  bool has_variable;  // PET_NAME gives its value where the flag does not
  TorchrunMeaning meaning;
  std::string_view help;  // kRefused, and some of kIgnored: what to do in its place
};

std::span<const TorchrunFlag> torchrun_flags();
// Null: torchrun has no such flag.
const TorchrunFlag* find_torchrun_flag(std::string_view name);
const TorchrunFlag* find_torchrun_flag(char letter);

// "PET_NPROC_PER_NODE"
std::string variable_of(const TorchrunFlag& flag);

}  // namespace lockstep
