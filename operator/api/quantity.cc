#include "operator/api/quantity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

namespace lockstep::api {
namespace {

constexpr int kNanoExponent = 9;
constexpr int64_t kExponentMax = 100;  // beyond what any quantity stands for; larger ones count as this

bool is_digit(char c) { return c >= '0' && c <= '9'; }

long double power(long double base, int exponent) {
  long double result = 1;
  for (int i = 0; i < exponent; ++i) result *= base;
  return result;
}

struct Scale {
  int tens = 0;  // powers of ten
  int twos = 0;  // powers of two
};

std::optional<Scale> scale_of(const std::string& suffix) {
  constexpr std::array<std::pair<const char*, int>, 10> kDecimal = {
      {{"", 0}, {"n", -9}, {"u", -6}, {"m", -3}, {"k", 3}, {"M", 6}, {"G", 9}, {"T", 12}, {"P", 15}, {"E", 18}}};
  constexpr std::array<std::pair<const char*, int>, 6> kBinary = {
      {{"Ki", 10}, {"Mi", 20}, {"Gi", 30}, {"Ti", 40}, {"Pi", 50}, {"Ei", 60}}};
  for (const auto& [text, exponent] : kDecimal) {
    if (suffix == text) return Scale{.tens = exponent};
  }
  for (const auto& [text, exponent] : kBinary) {
    if (suffix == text) return Scale{.twos = exponent};
  }
  if (!suffix.starts_with('e') && !suffix.starts_with('E')) return std::nullopt;
  const bool is_negative = suffix.size() > 1 && suffix[1] == '-';
  const std::string digits = suffix.substr(is_negative || suffix.starts_with("e+") || suffix.starts_with("E+") ? 2 : 1);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const int exponent = static_cast<int>(std::min(parse_number(digits).value_or(kExponentMax), kExponentMax));
  return Scale{.tens = is_negative ? -exponent : exponent};
}

}  // namespace

std::optional<long double> nano_units(const Json& quantity) {
  if (!quantity.is_number() && !quantity.is_string()) return std::nullopt;
  const std::string text = quantity.is_number() ? dump_line(quantity) : quantity.get<std::string>();
  size_t at = text.starts_with('+') || text.starts_with('-') ? 1 : 0;
  std::string digits;
  int decimals = 0;
  bool has_point = false;
  for (; at < text.size() && (is_digit(text[at]) || text[at] == '.'); ++at) {
    if (text[at] == '.') {
      if (std::exchange(has_point, true)) return std::nullopt;
      continue;
    }
    digits += text[at];
    decimals += has_point ? 1 : 0;
  }
  const std::optional<Scale> scale = scale_of(text.substr(at));
  if (digits.empty() || !scale) return std::nullopt;
  // Whole numbers are multiplied first, so that 0.1 and 100m give the same.
  const int tens = kNanoExponent + scale->tens - decimals;
  long double units = std::strtold(digits.c_str(), nullptr) * power(2, scale->twos);
  units = tens >= 0 ? units * power(10, tens) : units / power(10, -tens);
  return text.starts_with('-') ? -std::ceil(units) : std::ceil(units);
}

}  // namespace lockstep::api
