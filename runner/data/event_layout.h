// EventLayout: which column of a file of interactions holds what, found out from its first lines.
//
// Role: the formats that interactions.h lists, and the line's way into fields. Threads: pure functions.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "runner/base/result.h"
#include "runner/data/interactions.h"

namespace lockstep {

inline constexpr size_t kEventColumnsMax = 64;
using EventFields = std::array<std::string_view, kEventColumnsMax>;

// Lines of a text, numbered from 1; blank ones are left out.
class EventLines {
 public:
  explicit EventLines(std::string_view text) : rest_(text) {}
  bool next(std::string_view& line);
  [[nodiscard]] int64_t number() const { return number_; }

 private:
  std::string_view rest_;
  int64_t number_ = 0;
};

struct EventLayout {
  InteractionsFormat format = InteractionsFormat::kUserItem;
  bool has_header = false;
  size_t columns = 2;
  size_t user = 0;
  std::optional<size_t> item = 1;
  std::optional<size_t> items = {};  // a column of several items, which come before `item`
  std::optional<size_t> times = {};  // a column of as many times
  std::optional<size_t> rating = {};
  std::optional<size_t> time = {};
  std::string columns_text = {};  // InteractionsReport::columns
  std::string times_text = {};    // InteractionsReport::times

  [[nodiscard]] bool keeps_ids() const { return lockstep::keeps_ids(format); }
  // May ids be words?
  [[nodiscard]] bool has_labels() const {
    return format == InteractionsFormat::kInter || format == InteractionsFormat::kCsv;
  }
  [[nodiscard]] bool has_times() const { return time.has_value() || times.has_value(); }
  // The number of fields; kEventColumnsMax + 1 if there are more than that. Empty fields at the end of a line, beyond
  // those of the header, are not counted.
  size_t split(std::string_view line, EventFields& fields) const;
};

// Uses the first line that matches a format, so that a file is not refused because of junk above it. Errors (kInvalid):
// the line, what was found and what was expected. `path`: for messages.
Result<EventLayout> detect_layout(std::string_view text, const std::string& path);

// "path:7", for messages.
inline std::string at_line(const std::string& path, int64_t line) { return path + ":" + std::to_string(line); }

// Is the text a whole number, maybe with a minus?
bool is_whole(std::string_view text);
bool is_number(std::string_view text);

}  // namespace lockstep
