// The number of a generation: (attempt of node 0's pod << 32) | counter (architecture §3). Pure.
// Attempts rise with each agent of a node. The operator counts them from 0, `lockstep run --local_nodes` from its
// start; an agent that a person starts takes the time (seconds since 1970), and is taken for an older one when its
// clock was set back.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

constexpr uint64_t make_generation(uint32_t attempt, uint32_t counter) { return (uint64_t{attempt} << 32U) | counter; }
constexpr uint32_t attempt_of(uint64_t generation) { return static_cast<uint32_t>(generation >> 32U); }
constexpr uint32_t counter_of(uint64_t generation) { return static_cast<uint32_t>(generation); }

constexpr bool is_start_time(uint32_t attempt) { return attempt > 1'000'000'000U; }

// For people: "ATTEMPT.COUNTER".
inline std::string generation_text(uint64_t generation) {
  std::string text = std::to_string(attempt_of(generation));
  return text.append(".").append(std::to_string(counter_of(generation)));
}

}  // namespace lockstep
