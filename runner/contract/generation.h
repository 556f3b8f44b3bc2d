// The number of a generation: (attempt of node 0's pod << 32) | counter. Pure.
// Attempts rise with each agent of a node. The operator counts them from 0, `lockstep run --local_nodes` from its
// start. An agent that a person starts uses the time (seconds since 1970), so after a clock was set back it looks older
// than an earlier one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runner/contract/env_names.h"

namespace lockstep {

constexpr uint64_t make_generation(uint32_t attempt, uint32_t counter) { return (uint64_t{attempt} << 32U) | counter; }
constexpr uint32_t attempt_of(uint64_t generation) { return static_cast<uint32_t>(generation >> 32U); }
constexpr uint32_t counter_of(uint64_t generation) { return static_cast<uint32_t>(generation); }

// A number above a billion is a time (seconds since 1970), because no pod is started so often.
constexpr bool is_start_time(uint32_t attempt) { return attempt > 1'000'000'000U; }

// Advice for when attempt `seen` may be newer only because a clock was set back; empty when attempts are counted.
inline std::string clock_hint(uint32_t seen, std::string_view node) {
  if (!is_start_time(seen)) return "";
  return "; attempts are start times: if the clock of " + std::string(node) + " was set back, start its agent with " +
         std::string(env::kPodAttempt) + "=" + std::to_string(uint64_t{seen} + 1);
}

// As logs show it: "ATTEMPT.COUNTER".
inline std::string generation_text(uint64_t generation) {
  std::string text = std::to_string(attempt_of(generation));
  return text.append(".").append(std::to_string(counter_of(generation)));
}

}  // namespace lockstep
