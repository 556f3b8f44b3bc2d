// Finds the outputs of one type in the result of a recovery decision: a list of std::variants, in the order in which
// they are to be carried out.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <variant>
#include <vector>

namespace lockstep {

template <typename T, typename Output>
const T* find(const std::vector<Output>& outputs) {
  for (const Output& output : outputs) {
    if (const T* found = std::get_if<T>(&output)) return found;
  }
  return nullptr;
}

template <typename T, typename Output>
int count(const std::vector<Output>& outputs) {
  return static_cast<int>(std::count_if(outputs.begin(), outputs.end(),
                                        [](const Output& output) { return std::holds_alternative<T>(output); }));
}

// The first one of this type. If there is none, the test fails and goes on with an empty one.
template <typename T, typename Output>
T get(const std::vector<Output>& outputs) {
  const T* found = find<T>(outputs);
  EXPECT_NE(found, nullptr);
  return found != nullptr ? *found : T{};
}

}  // namespace lockstep
