#include "runner/data/instant.h"

#include <algorithm>
#include <cmath>

#include "runner/base/parse_number.h"

namespace lockstep {
namespace {

constexpr uint32_t kNanosPerSecond = 1'000'000'000;

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The digits after a decimal point, up to nine of them, as nanoseconds.
uint32_t nanoseconds_of(std::string_view digits) {
  uint32_t value = 0;
  for (size_t i = 0; i < 9; ++i) value = value * 10 + (i < digits.size() ? static_cast<uint32_t>(digits[i] - '0') : 0);
  return value;
}

Instant negated(int64_t seconds, uint32_t nanoseconds) {
  return nanoseconds == 0 ? Instant{-seconds, 0} : Instant{-seconds - 1, kNanosPerSecond - nanoseconds};
}

// "881250949.25": exactly as written, which a double could not hold.
std::optional<Instant> decimal_of(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative) text.remove_prefix(1);
  const size_t point = text.find('.');
  if (point == std::string_view::npos) return std::nullopt;
  const std::string_view whole = text.substr(0, point);
  const std::string_view digits = text.substr(point + 1);
  const auto seconds = parse_number<int64_t>(whole);
  if (!is_digits(whole) || !(digits.empty() || is_digits(digits)) || !seconds) return std::nullopt;
  const uint32_t nanoseconds = nanoseconds_of(digits);
  return is_negative ? negated(*seconds, nanoseconds) : Instant{*seconds, nanoseconds};
}

// Days from 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
int64_t days_of(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const int64_t era = (year >= 0 ? year : year - 399) / 400;
  const int64_t year_of_era = year - era * 400;
  const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146'097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719'468;
}

bool is_day(int64_t year, int64_t month, int64_t day) {
  if (month < 1 || month > 12 || day < 1) return false;
  constexpr int64_t kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
  return day <= kDays[month - 1] + (month == 2 && is_leap ? 1 : 0);
}

// Takes `digits` digits off the text.
std::optional<int64_t> next_digits(std::string_view& text, size_t digits) {
  const std::string_view head = text.substr(0, digits);
  if (head.size() != digits || !is_digits(head)) return std::nullopt;
  text.remove_prefix(digits);
  return parse_number<int64_t>(head);
}

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

// "", "Z", "+01:00", "-0330": seconds to subtract.
std::optional<int64_t> offset_of(std::string_view text) {
  if (text.empty() || text == "Z" || text == "z" || text == " UTC") return 0;
  const bool is_west = text.starts_with('-');
  if (!take(text, '+') && !take(text, '-')) return std::nullopt;
  const auto hours = next_digits(text, 2);
  take(text, ':');
  const auto minutes = text.empty() ? std::optional<int64_t>(0) : next_digits(text, 2);
  if (!hours || !minutes || !text.empty() || *hours > 23 || *minutes > 59) return std::nullopt;
  return (is_west ? -1 : 1) * (*hours * 3600 + *minutes * 60);
}

std::optional<Instant> date_of(std::string_view text) {
  const auto year = next_digits(text, 4);
  if (!year || !take(text, '-')) return std::nullopt;
  const auto month = next_digits(text, 2);
  if (!month || !take(text, '-')) return std::nullopt;
  const auto day = next_digits(text, 2);
  if (!day || !is_day(*year, *month, *day)) return std::nullopt;
  Instant instant{days_of(*year, *month, *day) * 86'400, 0};
  if (text.empty()) return instant;
  if (!take(text, 'T') && !take(text, ' ')) return std::nullopt;
  const auto hour = next_digits(text, 2);
  if (!hour || !take(text, ':')) return std::nullopt;
  const auto minute = next_digits(text, 2);
  std::optional<int64_t> second = 0;
  if (take(text, ':')) second = next_digits(text, 2);
  if (!minute || !second || *hour > 23 || *minute > 59 || *second > 60) return std::nullopt;
  if (take(text, '.')) {
    const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
    if (end == 0) return std::nullopt;
    instant.nanoseconds = nanoseconds_of(text.substr(0, end));
    text.remove_prefix(end);
  }
  const auto offset = offset_of(text);
  if (!offset) return std::nullopt;
  instant.seconds += *hour * 3600 + *minute * 60 + *second - *offset;
  return instant;
}

}  // namespace

std::optional<Instant> instant_of(std::string_view text) {
  if (const auto whole = parse_number<int64_t>(text)) return Instant{*whole, 0};
  while (text.ends_with(' ')) text.remove_suffix(1);
  while (text.starts_with(' ')) text.remove_prefix(1);
  if (const auto whole = parse_number<int64_t>(text)) return Instant{*whole, 0};
  if (const auto decimal = decimal_of(text)) return decimal;
  if (const auto date = date_of(text)) return date;
  constexpr double kTimeMax = 9.0e18;
  const auto real = parse_number<double>(text);
  if (!real || !(std::abs(*real) < kTimeMax)) return std::nullopt;
  const double below = std::floor(*real);
  const double fraction = std::floor((*real - below) * kNanosPerSecond);
  return Instant{static_cast<int64_t>(below), std::min(static_cast<uint32_t>(fraction), kNanosPerSecond - 1)};
}

int64_t rounded_seconds(const Instant& instant) {
  constexpr uint32_t kHalf = kNanosPerSecond / 2;
  const bool rounds_up = instant.seconds >= 0 ? instant.nanoseconds >= kHalf : instant.nanoseconds > kHalf;
  return instant.seconds + (rounds_up ? 1 : 0);
}

}  // namespace lockstep
