#include "runner/contract/agreement.h"

#include <map>
#include <utility>

namespace lockstep {

std::vector<std::string> differing_flags(const Json& our_flags, const std::string& ours, const Json& their_flags,
                                         const std::string& theirs) {
  // The JSON may come from a file or a peer. Anything but an object counts as having no flags.
  const auto values_of = [](const Json& flags) {
    std::map<std::string, std::string> values;
    if (!flags.is_object()) return values;
    for (const auto& [name, value] : flags.items()) {
      values[name] = value.is_string() ? value.get<std::string>() : dump_line(value);
    }
    return values;
  };
  const std::map<std::string, std::string> our_values = values_of(our_flags);
  const std::map<std::string, std::string> their_values = values_of(their_flags);
  std::map<std::string, std::pair<std::string, std::string>> sides;
  for (const auto& [name, value] : our_values) sides[name] = {value, "unknown"};
  for (const auto& [name, value] : their_values) {
    sides.try_emplace(name, "unknown", "").first->second.second = value;
  }
  std::vector<std::string> differences;
  for (const auto& [name, values] : sides) {
    if (values.first == values.second) continue;
    const bool is_flag = name.find(' ') == std::string::npos;
    differences.push_back((is_flag ? "--" : "the ") + name + " is " + values.first + " in " + ours + " and " +
                          values.second + " in " + theirs);
  }
  return differences;
}

std::string disagreement(const std::string& our_terms, const std::string& ours, const std::string& their_terms,
                         const std::string& theirs) {
  if (our_terms == their_terms || our_terms.empty() || their_terms.empty()) return "";
  const Result<Json> our_json = parse_json(our_terms, "the terms of " + ours);
  if (!our_json.ok()) return our_json.error().message;
  const Result<Json> their_json = parse_json(their_terms, "the terms of " + theirs);
  if (!their_json.ok()) return their_json.error().message;
  const std::vector<std::string> differences = differing_flags(*our_json, ours, *their_json, theirs);
  if (differences.empty()) return "";
  return differences[0] + "; start all ranks with the same flags, data and version of lockstep";
}

}  // namespace lockstep
