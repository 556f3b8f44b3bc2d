// Finds the name that a user probably meant. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Levenshtein distance.
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate with the smallest edit distance to `name`, the first of equals; empty when none is near, that is, when
// more than two letters and more than a third of them would have to change.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace lockstep
