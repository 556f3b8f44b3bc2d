// A text that is one number, and nothing else.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>

namespace lockstep {

// nullopt: it is no number of this base, or the type cannot hold it. A sign in front: only '-', only for signed types.
// `base`, only of whole numbers: 10 unless given.
template <typename T, std::same_as<int>... Base>
std::optional<T> parse_number(std::string_view text, Base... base) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace lockstep
