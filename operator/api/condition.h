// Condition: metav1.Condition, and a list of them in which a type occurs once. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operator/api/object_meta.h"

namespace lockstep::api {

enum class ConditionStatus { kTrue, kFalse, kUnknown };
const char* to_string(ConditionStatus status);

struct Condition {
  std::string type;
  ConditionStatus status = ConditionStatus::kUnknown;
  std::string reason;                    // CamelCase
  std::string message;                   // a sentence
  UnixSeconds last_transition_time = 0;  // when `status` last changed; a new reason or message does not count
  int64_t observed_generation = 0;

  bool operator==(const Condition&) const = default;
};

class Conditions {
 public:
  [[nodiscard]] const Condition* find(std::string_view type) const;
  [[nodiscard]] bool is_true(std::string_view type) const;
  [[nodiscard]] std::string reason_of(std::string_view type) const;  // "" without the condition
  // Keeps the time of the last transition when the status stays. Returns whether anything changed.
  bool set(Condition condition, UnixSeconds now);
  [[nodiscard]] const std::vector<Condition>& list() const { return list_; }

  bool operator==(const Conditions&) const = default;

 private:
  std::vector<Condition> list_;  // in the order in which the types were first set
};

Json to_json(const Conditions& conditions);
Conditions conditions_from_json(const Json& list);

}  // namespace lockstep::api
