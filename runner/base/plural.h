// A number with its noun, and lists, for messages. Pure.
#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

// "1 node", "2 nodes", "2 classes"
template <std::integral Number>
std::string plural(Number count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : one.ends_with('s') ? "es" : "s");
}

// "a, b, c"; `text_of` gives the text of a part: a member or a function.
template <typename Parts, typename TextOf = std::identity>
std::string joined(const Parts& parts, std::string_view separator = ", ", TextOf text_of = {}) {
  std::string text;
  for (const auto& part : parts) text.append(text.empty() ? "" : separator).append(std::invoke(text_of, part));
  return text;
}

// "a, b, c and 50 more": the first ones of a list.
template <typename Parts>
std::string first_of(const Parts& parts, size_t shown) {
  std::string text;
  size_t count = 0;
  for (const auto& part : parts) {
    if (count++ < shown) text.append(text.empty() ? "" : ", ").append(part);
  }
  if (count > shown) text += " and " + std::to_string(count - shown) + " more";
  return text;
}

}  // namespace lockstep
