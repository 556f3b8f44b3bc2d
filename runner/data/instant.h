// Points in time as data sets write them. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep {

struct Instant {
  int64_t seconds = 0;       // rounded down; since 1970 for a date
  uint32_t nanoseconds = 0;  // beyond these seconds
};

// A number ("978300760", "881250949.25", "1.6e9"), or a date in UTC or with an offset ("2015-03-02",
// "2015-03-02 10:00", "2015-03-02T10:00:00.5+01:00"). nullopt: it is neither, or is too large.
std::optional<Instant> instant_of(std::string_view text);

// To the nearest second; halves away from zero, like std::llround.
int64_t rounded_seconds(const Instant& instant);

}  // namespace lockstep
