#include "operator/api/object_meta.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

namespace lockstep::api {
namespace {

constexpr UnixSeconds kSecondsPerMinute = 60;
constexpr UnixSeconds kSecondsPerHour = 3'600;
constexpr UnixSeconds kSecondsPerDay = 86'400;
constexpr UnixSeconds kFirstTime = -62'167'219'200;  // 0000-01-01T00:00:00Z, the first year of four digits
constexpr UnixSeconds kLastTime = 253'402'300'799;   // 9999-12-31T23:59:59Z

// The member if it exists and is an object, else nullptr.
const Json* object_in(const Json& parent, const char* name) {
  const Json* const member = field(parent, {name});
  return member != nullptr && member->is_object() ? member : nullptr;
}

std::map<std::string, std::string> strings_in(const Json& parent, const char* name) {
  std::map<std::string, std::string> strings;
  if (const Json* members = object_in(parent, name)) {
    for (const auto& [key, value] : members->items()) {
      if (value.is_string()) strings.emplace(key, value.get<std::string>());
    }
  }
  return strings;
}

std::vector<OwnerReference> owners_in(const Json& metadata) {
  std::vector<OwnerReference> owners;
  for (const Json& entry : list_field(metadata, {"ownerReferences"})) {
    if (!entry.is_object()) continue;
    owners.push_back({.api_version = text_field(entry, {"apiVersion"}),
                      .kind = text_field(entry, {"kind"}),
                      .name = text_field(entry, {"name"}),
                      .uid = text_field(entry, {"uid"}),
                      .controller = bool_field(entry, {"controller"})});
  }
  return owners;
}

// Reads a time from left to right.
class TimeText {
 public:
  explicit TimeText(std::string_view text) : rest_(text) {}

  // Exactly `count` digits.
  std::optional<int> digits(size_t count) {
    if (rest_.size() < count) return std::nullopt;
    int value = 0;
    for (size_t i = 0; i < count; ++i) {
      if (rest_[i] < '0' || rest_[i] > '9') return std::nullopt;
      value = value * 10 + (rest_[i] - '0');
    }
    rest_.remove_prefix(count);
    return value;
  }
  bool skip(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool skip_digits() {
    const size_t count = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    rest_.remove_prefix(count);
    return count > 0;
  }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace

std::string to_string(const ObjectKey& key) {
  if (key.ns.empty()) return key.name;
  std::string text = key.ns;
  return text.append("/").append(key.name);
}

const OwnerReference* ObjectMeta::controller() const {
  for (const OwnerReference& owner : owners) {
    if (owner.controller) return &owner;
  }
  return nullptr;
}

ObjectMeta meta_of(const Json& object) {
  ObjectMeta meta;
  const Json* metadata = object_in(object, "metadata");
  if (metadata == nullptr) return meta;
  meta.name = text_field(*metadata, {"name"});
  meta.ns = text_field(*metadata, {"namespace"});
  meta.uid = text_field(*metadata, {"uid"});
  meta.resource_version = text_field(*metadata, {"resourceVersion"});
  meta.generation = number_field(*metadata, {"generation"}).value_or(0);
  meta.created = parse_time(text_field(*metadata, {"creationTimestamp"})).value_or(0);
  meta.deletion_time = parse_time(text_field(*metadata, {"deletionTimestamp"}));
  meta.labels = strings_in(*metadata, "labels");
  meta.annotations = strings_in(*metadata, "annotations");
  meta.owners = owners_in(*metadata);
  for (const Json& entry : list_field(*metadata, {"finalizers"})) {
    if (entry.is_string()) meta.finalizers.push_back(entry.get<std::string>());
  }
  return meta;
}

ObjectKey key_of(const Json& object) {
  return {text_field(object, {"metadata", "namespace"}), text_field(object, {"metadata", "name"})};
}

std::string format_time(UnixSeconds time) {
  using std::chrono::days;
  using std::chrono::floor;
  using std::chrono::seconds;
  const std::chrono::sys_seconds point{seconds{time}};
  const auto day = floor<days>(point);
  const std::chrono::year_month_day date{day};
  const std::chrono::hh_mm_ss clock{point - day};
  std::array<char, 64> text{};
  const int length = std::snprintf(
      text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02dZ", static_cast<int>(date.year()),
      static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), static_cast<int>(clock.hours().count()),
      static_cast<int>(clock.minutes().count()), static_cast<int>(clock.seconds().count()));
  return {text.data(), static_cast<size_t>(length)};
}

std::optional<UnixSeconds> parse_time(std::string_view text) {
  TimeText rest(text);
  const auto year = rest.digits(4);
  if (!year || !rest.skip('-')) return std::nullopt;
  const auto month = rest.digits(2);
  if (!month || !rest.skip('-')) return std::nullopt;
  const auto day = rest.digits(2);
  if (!day || !(rest.skip('T') || rest.skip('t') || rest.skip(' '))) return std::nullopt;
  const auto hour = rest.digits(2);
  if (!hour || !rest.skip(':')) return std::nullopt;
  const auto minute = rest.digits(2);
  if (!minute || !rest.skip(':')) return std::nullopt;
  const auto second = rest.digits(2);
  if (!second) return std::nullopt;
  if (rest.skip('.') && !rest.skip_digits()) return std::nullopt;

  int64_t offset_seconds = 0;
  if (!rest.skip('Z') && !rest.skip('z')) {
    const bool east = rest.skip('+');
    if (!east && !rest.skip('-')) return std::nullopt;
    const auto hours = rest.digits(2);
    if (!hours || !rest.skip(':')) return std::nullopt;
    const auto minutes = rest.digits(2);
    if (!minutes || *hours > 23 || *minutes > 59) return std::nullopt;
    offset_seconds = (*hours * kSecondsPerHour + *minutes * kSecondsPerMinute) * (east ? 1 : -1);
  }
  if (!rest.at_end()) return std::nullopt;

  const std::chrono::year_month_day date{std::chrono::year{*year}, std::chrono::month{static_cast<unsigned>(*month)},
                                         std::chrono::day{static_cast<unsigned>(*day)}};
  // Second 60 is a leap second; it becomes second 0 of the next minute.
  if (!date.ok() || *hour > 23 || *minute > 59 || *second > 60) return std::nullopt;
  const int64_t days = std::chrono::sys_days{date}.time_since_epoch().count();
  const UnixSeconds time =
      days * kSecondsPerDay + *hour * kSecondsPerHour + *minute * kSecondsPerMinute + *second - offset_seconds;
  if (time < kFirstTime || time > kLastTime) return std::nullopt;
  return time;
}

std::string format_duration(int64_t seconds) {
  struct Unit {
    int64_t seconds;
    const char* letter;
  };
  static constexpr std::array kUnits = {Unit{kSecondsPerDay, "d"}, Unit{kSecondsPerHour, "h"},
                                        Unit{kSecondsPerMinute, "m"}, Unit{1, "s"}};
  int64_t rest = std::max<int64_t>(0, seconds);
  size_t first = 0;
  while (first + 1 < kUnits.size() && rest < kUnits.at(first).seconds) ++first;
  std::string text;
  for (size_t i = first; i < std::min(first + 2, kUnits.size()); ++i) {
    const int64_t count = rest / kUnits.at(i).seconds;
    rest %= kUnits.at(i).seconds;
    if (i == first || count > 0) text.append(std::to_string(count)).append(kUnits.at(i).letter);
  }
  return text;
}

}  // namespace lockstep::api
