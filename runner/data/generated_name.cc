#include "runner/data/generated_name.h"

#include "runner/base/parse_number.h"

namespace lockstep {
namespace {

constexpr std::string_view kGenerated = "generated";

}  // namespace

bool is_generated(std::string_view path) {
  return path.starts_with(kGenerated) && (path.size() == kGenerated.size() || path[kGenerated.size()] == ':');
}

Result<std::optional<std::array<int64_t, 2>>> parse_generated(std::string_view text,
                                                              const std::array<GeneratedNumber, 2>& numbers) {
  using Values = std::optional<std::array<int64_t, 2>>;
  if (!is_generated(text)) return Values();
  std::string_view rest = text.substr(kGenerated.size());
  Values values = {{numbers[0].value, numbers[1].value}};
  const auto range = [](const GeneratedNumber& number) {
    return number.name + " from " + std::to_string(number.min) + " to " + std::to_string(number.max);
  };
  for (size_t i = 0; i < numbers.size() && !rest.empty(); ++i) {
    rest.remove_prefix(1);
    const std::string_view digits = rest.substr(0, i + 1 == numbers.size() ? rest.npos : rest.find(':'));
    const auto value = parse_number<int64_t>(digits);
    if (!value || *value < numbers[i].min || *value > numbers[i].max) {
      return Error{ErrorCode::kInvalid,
                   "\"" + std::string(text) + "\" is not generated[:" + numbers[0].name + "[:" + numbers[1].name +
                       "]] with " + range(numbers[0]) + " and " + range(numbers[1]) + ", such as generated:" +
                       std::to_string(numbers[0].example) + ":" + std::to_string(numbers[1].example)};
    }
    (*values)[i] = *value;
    rest.remove_prefix(digits.size());
  }
  return values;
}

}  // namespace lockstep
