// The number of a generation: (attempt of node 0's pod << 32) | counter (architecture §3). Pure.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

constexpr uint64_t make_generation(uint32_t attempt, uint32_t counter) { return (uint64_t{attempt} << 32U) | counter; }
constexpr uint32_t attempt_of(uint64_t generation) { return static_cast<uint32_t>(generation >> 32U); }
constexpr uint32_t counter_of(uint64_t generation) { return static_cast<uint32_t>(generation); }

// For people: "ATTEMPT.COUNTER".
inline std::string generation_text(uint64_t generation) {
  std::string text = std::to_string(attempt_of(generation));
  return text.append(".").append(std::to_string(counter_of(generation)));
}

}  // namespace lockstep
