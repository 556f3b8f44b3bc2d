// A number with its noun, for messages. Pure.
#pragma once

#include <concepts>
#include <string>

namespace lockstep {

// "1 node", "2 nodes", "2 classes"
template <std::integral Number>
std::string plural(Number count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : one.ends_with('s') ? "es" : "s");
}

}  // namespace lockstep
