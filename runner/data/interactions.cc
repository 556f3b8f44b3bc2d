#include "runner/data/interactions.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/one_line.h"
#include "runner/base/parse_number.h"
#include "runner/base/sha256.h"
#include "runner/data/take_line.h"

namespace lockstep {
namespace {

// The largest file read; its events must also be countable in 31 bits.
constexpr int64_t kEventsFileBytesMax = int64_t{8} << 30;
constexpr size_t kEventsMax = std::numeric_limits<int32_t>::max();
// Ids of `user item` files index tables directly; above this the file is another format.
constexpr int64_t kKeptIdMax = 50'000'000;
constexpr size_t kColumnsMax = 64;
constexpr int kDetectLines = 100;  // lines looked at until one has a known form
constexpr size_t kBadSamples = 3;
constexpr std::string_view kGzipMagic = "\x1F\x8B";
constexpr int64_t kDefaultMinCount = 5;
constexpr size_t kReadPieceBytes = size_t{4} << 20;
constexpr int64_t kProgressLines = 100'000;  // a few megabytes

std::string at_line(const std::string& path, int64_t line) { return path + ":" + std::to_string(line); }

bool is_space(char c) { return c == ' ' || c == '\t'; }

bool is_blank(std::string_view line) { return std::all_of(line.begin(), line.end(), is_space); }

// Lines of a text, without "\n" or "\r\n", numbered from 1.
class LineReader {
 public:
  explicit LineReader(std::string_view text) : rest_(text) {
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
  }
  bool next(std::string_view& line) {
    if (rest_.empty()) return false;
    line = take_line(rest_);
    ++number_;
    return true;
  }
  [[nodiscard]] int64_t number() const { return number_; }

 private:
  std::string_view rest_;
  int64_t number_ = 0;
};

using Fields = std::array<std::string_view, kColumnsMax>;

size_t split_spaces(std::string_view line, Fields& fields) {
  size_t count = 0;
  size_t at = 0;
  while (at < line.size()) {
    while (at < line.size() && is_space(line[at])) ++at;
    const size_t begin = at;
    while (at < line.size() && !is_space(line[at])) ++at;
    if (at == begin) break;
    if (count == kColumnsMax) return kColumnsMax + 1;
    fields[count++] = line.substr(begin, at - begin);
  }
  return count;
}

size_t split_at(std::string_view line, std::string_view separator, Fields& fields) {
  for (size_t count = 0; count < kColumnsMax;) {
    const size_t end = line.find(separator);
    fields[count++] = line.substr(0, end);
    if (end == std::string_view::npos) return count;
    line.remove_prefix(end + separator.size());
  }
  return kColumnsMax + 1;
}

bool is_number(std::string_view text) { return parse_number<double>(text).has_value(); }

bool is_whole(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Where the columns of a format are.
struct Layout {
  InteractionsFormat format = InteractionsFormat::kUserItem;
  bool has_header = false;
  size_t columns = 2;
  size_t user = 0;
  size_t item = 1;
  std::optional<size_t> rating;
  std::optional<size_t> time;

  [[nodiscard]] bool keeps_ids() const { return lockstep::keeps_ids(format); }
  size_t split(std::string_view line, Fields& fields) const {
    if (format == InteractionsFormat::kInter) return split_at(line, "\t", fields);
    if (format == InteractionsFormat::kRatingsDat) return split_at(line, "::", fields);
    return split_spaces(line, fields);
  }
};

constexpr const char* kKnownFormats =
    "expected `user item`, `user item rating timestamp` (tab or spaces), `user::item::rating::timestamp`, or a RecBole "
    ".inter file with a header such as user_id:token, item_id:token, timestamp:float separated by tabs";

// A RecBole header has a type after each column's name ("user_id:token").
bool is_inter_header(std::string_view line) {
  Fields fields;
  const size_t count = split_at(line, "\t", fields);
  if (count > kColumnsMax) return false;
  return std::all_of(fields.begin(), fields.begin() + static_cast<std::ptrdiff_t>(count), [](std::string_view field) {
    return field.ends_with(":token") || field.ends_with(":float") || field.ends_with(":token_seq") ||
           field.ends_with(":float_seq");
  });
}

Result<Layout> inter_layout(std::string_view header, const std::string& path, int64_t line) {
  Layout layout{InteractionsFormat::kInter, true, 0, 0, 0, {}, {}};
  Fields fields;
  layout.columns = split_at(header, "\t", fields);
  std::optional<size_t> user;
  std::optional<size_t> item;
  for (size_t i = 0; i < layout.columns; ++i) {
    const std::string_view name = fields[i].substr(0, fields[i].rfind(':'));
    std::optional<size_t>* const column = name == "user_id"     ? &user
                                          : name == "item_id"   ? &item
                                          : name == "timestamp" ? &layout.time
                                                                : nullptr;
    if (column == nullptr) continue;
    if (*column) return invalid(at_line(path, line) + ": the header has the column " + std::string(name) + " twice");
    *column = i;
  }
  if (!user || !item) {
    return invalid(at_line(path, line) + ": the header has no column " + (user ? "item_id" : "user_id") + ": found \"" +
                   printable(header) + "\"");
  }
  layout.user = *user;
  layout.item = *item;
  return layout;
}

// Uses the first line that matches a format, so that a file is not refused because of junk above it.
Result<Layout> detect_layout(std::string_view text, const std::string& path) {
  LineReader lines(text);
  std::string_view line;
  std::string_view first;
  int64_t first_number = 0;
  for (int seen = 0; seen < kDetectLines && lines.next(line);) {
    if (is_blank(line)) continue;
    ++seen;
    if (first.empty()) {
      first = line;
      first_number = lines.number();
      if (is_inter_header(line)) return inter_layout(line, path, lines.number());
    }
    Fields fields;
    const size_t parts = split_at(line, "::", fields);
    if (parts == 4) return Layout{InteractionsFormat::kRatingsDat, false, 4, 0, 1, 2, 3};
    const size_t columns = split_spaces(line, fields);
    if (columns == 2 && is_whole(fields[0]) && is_whole(fields[1])) return Layout{};
    if (columns == 4 && std::all_of(fields.begin(), fields.begin() + 4, is_number)) {
      return Layout{InteractionsFormat::kUserItemRatingTime, false, 4, 0, 1, 2, 3};
    }
  }
  if (first.empty()) return invalid(path + " is empty: expected at least two users' interactions");
  const bool is_movielens = first.find("::") != std::string_view::npos;
  return invalid(
      at_line(path, first_number) + ": found \"" + printable(first) + "\", " + kKnownFormats +
      (is_movielens ? "; of MovieLens' files only ratings.dat holds interactions: give that one, or its folder" : ""));
}

// Hash table with open addressing: most look-ups read one place in memory. Those of std::unordered_map follow two
// pointers, which dominates the time to read tens of millions of ids.
template <typename Id>
class IdTable {
 public:
  // The key of `id`; a new id is added with the key `next`.
  int32_t find_or_add(const Id& id, int32_t next) {
    if (used_ * 2 >= slots_.size()) grow();
    Slot& slot = slot_of(slots_, id);
    if (slot.key < 0) {
      slot = {id, next};
      ++used_;
    }
    return slot.key;
  }
  // Calls visit(id, key) for each id, in no order.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.key >= 0) visit(slot.id, slot.key);
    }
  }

 private:
  struct Slot {
    Id id{};
    int32_t key = -1;  // free
  };

  // The slot of `id`, or the free slot for it. There is always a free one.
  static Slot& slot_of(std::vector<Slot>& slots, const Id& id) {
    const size_t mask = slots.size() - 1;  // a power of two
    // std::hash of a number is the number itself, so it is mixed to make all bits count.
    const uint64_t mixed = static_cast<uint64_t>(std::hash<Id>{}(id)) * 0x9E3779B97F4A7C15U;
    size_t at = (mixed >> 32U) & mask;
    while (slots[at].key >= 0 && slots[at].id != id) at = (at + 1) & mask;
    return slots[at];
  }
  void grow() {
    std::vector<Slot> larger(slots_.size() * 2);
    for (const Slot& slot : slots_) {
      if (slot.key >= 0) slot_of(larger, slot.id) = slot;
    }
    slots_ = std::move(larger);
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  size_t used_ = 0;
};

// Ids → 0, 1, 2 … in the order of first appearance.
class KeyMap {
 public:
  int32_t of_number(int64_t id) {
    if (id >= 0 && id < kDirect) {
      const auto index = static_cast<size_t>(id);
      if (index >= direct_.size()) direct_.resize(std::max(index + 1, direct_.size() * 2), -1);
      if (direct_[index] < 0) direct_[index] = count_++;
      return direct_[index];
    }
    return counted(numbers_.find_or_add(id, count_));
  }
  // `token` must outlive the map.
  int32_t of_token(std::string_view token) { return counted(tokens_.find_or_add(token, count_)); }
  [[nodiscard]] int32_t count() const { return count_; }
  // The ids by key; tokens are borrowed.
  struct Id {
    int64_t number = 0;
    std::string_view token;  // empty for a number
  };
  [[nodiscard]] std::vector<Id> ids() const {
    std::vector<Id> all(static_cast<size_t>(count_));
    for (size_t id = 0; id < direct_.size(); ++id) {
      if (direct_[id] >= 0) all[static_cast<size_t>(direct_[id])].number = static_cast<int64_t>(id);
    }
    numbers_.for_each([&](int64_t id, int32_t key) { all[static_cast<size_t>(key)].number = id; });
    tokens_.for_each([&](std::string_view token, int32_t key) { all[static_cast<size_t>(key)].token = token; });
    return all;
  }

 private:
  static constexpr int64_t kDirect = 1 << 20;  // real data sets have small ids: no hashing for them

  int32_t counted(int32_t key) {
    count_ += key == count_ ? 1 : 0;
    return key;
  }

  std::vector<int32_t> direct_;
  IdTable<int64_t> numbers_;
  IdTable<std::string_view> tokens_;
  int32_t count_ = 0;
};

struct RawEvent {
  int32_t user;  // key, or the id itself in formats that keep ids
  int32_t item;
  int64_t time;
};

class EventReader {
 public:
  explicit EventReader(const Layout& layout) : layout_(layout) {}

  enum class Verdict { kGood, kMalformed, kFatal };
  // Fills `event`, or, if the line is bad, `reason`.
  Verdict read(std::string_view line, RawEvent& event, std::string& reason) {
    Fields fields;
    const size_t columns = layout_.split(line, fields);
    if (columns != layout_.columns) {
      reason = "found " +
               (columns > kColumnsMax ? "more than " + std::to_string(kColumnsMax) : std::to_string(columns)) +
               " columns, expected " + std::to_string(layout_.columns);
      return Verdict::kMalformed;
    }
    const Verdict user = read_id("user", fields[layout_.user], users_, event.user, reason);
    if (user != Verdict::kGood) return user;
    const Verdict item = read_id("item", fields[layout_.item], items_, event.item, reason);
    if (item != Verdict::kGood) return item;
    if (layout_.rating && !is_number(fields[*layout_.rating])) {
      reason = "the rating is not a number";
      return Verdict::kMalformed;
    }
    event.time = 0;
    if (layout_.time && !read_time(fields[*layout_.time], event.time)) {
      reason = "the timestamp is not a number";
      return Verdict::kMalformed;
    }
    return Verdict::kGood;
  }
  // The ids by key; empty in formats that keep ids.
  [[nodiscard]] std::vector<KeyMap::Id> users() const { return users_.ids(); }
  [[nodiscard]] std::vector<KeyMap::Id> items() const { return items_.ids(); }

 private:
  Verdict read_id(const char* what, std::string_view text, KeyMap& keys, int32_t& key, std::string& reason) {
    const bool is_label = layout_.format == InteractionsFormat::kInter;
    if (text.empty() || (!is_label && !is_whole(text))) {
      reason = std::string("the ") + what + " id is " +
               (text.empty() ? "missing" : "not a whole number (labels need a RecBole .inter file)");
      return Verdict::kMalformed;
    }
    const auto number = parse_number<int64_t>(text);
    const bool fits = is_whole(text) && number;
    const int64_t id = number.value_or(0);
    if (is_label) {
      // "007" and "7" are different ids. An id that is a plain number is stored as a number, which takes less memory.
      const bool is_plain = fits && text.front() != '-' && (text == "0" || text.front() != '0');
      key = is_plain ? keys.of_number(id) : keys.of_token(text);
      return Verdict::kGood;
    }
    const int64_t lowest = layout_.keeps_ids() ? 1 : 0;  // 0 is padding
    const int64_t highest = layout_.keeps_ids() ? kKeptIdMax : std::numeric_limits<int64_t>::max();
    if (!fits || id < lowest || id > highest) {
      reason = std::string("the ") + what + " id is " + printable(text) + ", expected " + std::to_string(lowest) +
               " to " + std::to_string(highest);
      if (fits && id > highest) {
        reason +=
            ", since ids of `user item` files are kept as they are: number them 1, 2, 3 …, or bring a file with "
            "times or a RecBole .inter file, whose ids are renumbered";
      }
      return Verdict::kFatal;
    }
    key = layout_.keeps_ids() ? static_cast<int32_t>(id) : keys.of_number(id);
    return Verdict::kGood;
  }

  // Whole seconds; fractions are rounded.
  static bool read_time(std::string_view text, int64_t& time) {
    constexpr double kTimeMax = 9.0e18;
    auto whole = parse_number<int64_t>(text);
    const auto real = whole ? std::nullopt : parse_number<double>(text);
    if (real && std::abs(*real) < kTimeMax) whole = std::llround(*real);
    time = whole.value_or(0);
    return whole.has_value();
  }

  const Layout& layout_;
  KeyMap users_;
  KeyMap items_;
};

Status check_bad_lines(const InteractionsReport& report, double max_bad_lines) {
  if (static_cast<double>(report.bad_lines) <= max_bad_lines * static_cast<double>(report.lines)) return {};
  std::string message = report.path + ": " + std::to_string(report.bad_lines) + " of " + std::to_string(report.lines) +
                        " lines are malformed, more than --max_bad_lines allows:";
  for (const BadLine& bad : report.bad_samples) {
    message += "\n  " + at_line(report.path, bad.line) + ": " + bad.reason + ": \"" + bad.text + "\"";
  }
  return invalid(message);
}

Result<std::vector<RawEvent>> read_events(std::string_view text, EventReader& reader, const Layout& layout,
                                          double max_bad_lines, InteractionsReport& report,
                                          const std::function<void()>& on_progress) {
  std::vector<RawEvent> events;
  constexpr size_t kTypicalLineBytes = 16;
  events.reserve(text.size() / kTypicalLineBytes);
  LineReader lines(text);
  std::string_view line;
  std::string reason;
  bool header_pending = layout.has_header;
  while (lines.next(line)) {
    if (lines.number() % kProgressLines == 0) on_progress();
    if (is_blank(line)) continue;
    if (std::exchange(header_pending, false)) continue;
    ++report.lines;
    RawEvent event{};
    const EventReader::Verdict verdict = reader.read(line, event, reason);
    if (verdict == EventReader::Verdict::kFatal) return invalid(at_line(report.path, lines.number()) + ": " + reason);
    if (verdict == EventReader::Verdict::kGood) {
      if (events.size() == kEventsMax) return invalid(report.path + ": more than 2147483647 events");
      events.push_back(event);
      continue;
    }
    ++report.bad_lines;
    if (report.bad_samples.size() < kBadSamples)
      report.bad_samples.push_back({lines.number(), printable(line), reason});
  }
  TRY(check_bad_lines(report, max_bad_lines));
  if (events.empty())
    return invalid(report.path + " holds no interactions: expected interactions of at least two users");
  return events;
}

std::vector<int64_t> counts_of(const std::vector<RawEvent>& events, int32_t RawEvent::*member) {
  std::vector<int64_t> counts;
  for (const RawEvent& event : events) {
    const auto key = static_cast<size_t>(event.*member);
    if (key >= counts.size()) counts.resize(std::max(key + 1, counts.size() * 2));
    ++counts[key];
  }
  return counts;
}

int64_t number_below(const std::vector<int64_t>& counts, int64_t min_count) {
  return std::count_if(counts.begin(), counts.end(), [=](int64_t count) { return count > 0 && count < min_count; });
}

// Drops rare users and items; both are counted over all events, before anything is dropped.
void drop_rare(std::vector<RawEvent>& events, InteractionsReport& report) {
  const std::vector<int64_t> users = counts_of(events, &RawEvent::user);
  const std::vector<int64_t> items = counts_of(events, &RawEvent::item);
  report.dropped_users = number_below(users, report.min_count);
  report.dropped_items = number_below(items, report.min_count);
  const auto rare = [&](const RawEvent& event) {
    return users[static_cast<size_t>(event.user)] < report.min_count ||
           items[static_cast<size_t>(event.item)] < report.min_count;
  };
  report.dropped_events = static_cast<int64_t>(std::erase_if(events, rare));
}

// The old keys of the new ids 1, 2, 3 …, in the order of first appearance: users[0] is the key of user 1.
struct KeysByNumber {
  std::vector<KeyMap::Id> users;  // an Id's number is the key
  std::vector<KeyMap::Id> items;
};
KeysByNumber renumber(std::vector<RawEvent>& events, bool with_users) {
  KeyMap users;
  KeyMap items;
  for (RawEvent& event : events) {
    event.user = users.of_number(event.user) + 1;
    event.item = items.of_number(event.item) + 1;
  }
  return {with_users ? users.ids() : std::vector<KeyMap::Id>(), items.ids()};
}

std::string text_of(const KeyMap::Id& id) {
  return id.token.empty() ? std::to_string(id.number) : std::string(id.token);
}

OriginalIds original_ids(const std::vector<KeyMap::Id>& keys_by_number, const std::vector<KeyMap::Id>& ids_by_key) {
  OriginalIds originals;
  for (const KeyMap::Id& key : keys_by_number) {
    originals.add(text_of(ids_by_key[static_cast<size_t>(key.number)]));
  }
  return originals;
}

std::string digest_of(const std::vector<KeyMap::Id>& keys_by_number, const std::vector<KeyMap::Id>& ids_by_key) {
  Sha256 digest;
  for (const KeyMap::Id& key : keys_by_number) {
    const std::string line = text_of(ids_by_key[static_cast<size_t>(key.number)]) + "\n";  // no id has a line break
    digest.update(line.data(), line.size());
  }
  return digest.hex_digest();
}

OriginalIds numbers_up_to(int64_t last) {
  OriginalIds originals;
  for (int64_t number = 1; number <= last; ++number) originals.add(std::to_string(number));
  return originals;
}

// Events, in the order of the file, into CSR, each user's stably sorted by time.
Interactions to_csr(const std::vector<RawEvent>& events, bool has_times) {
  Interactions result;
  for (const RawEvent& event : events) {
    result.num_users = std::max<int64_t>(result.num_users, event.user);
    result.num_items = std::max<int64_t>(result.num_items, event.item);
  }
  result.offsets.assign(static_cast<size_t>(result.num_users) + 2, 0);
  for (const RawEvent& event : events) ++result.offsets[static_cast<size_t>(event.user) + 1];
  for (size_t u = 1; u < result.offsets.size(); ++u) result.offsets[u] += result.offsets[u - 1];

  std::vector<std::pair<int64_t, int32_t>> placed(events.size());  // (time, item)
  std::vector<int64_t> next = result.offsets;
  for (const RawEvent& event : events) {
    placed[static_cast<size_t>(next[static_cast<size_t>(event.user)]++)] = {event.time, event.item};
  }
  if (has_times) {
    const auto earlier = [](const auto& a, const auto& b) { return a.first < b.first; };
    for (size_t u = 1; u + 1 < result.offsets.size(); ++u) {
      std::stable_sort(placed.begin() + result.offsets[u], placed.begin() + result.offsets[u + 1], earlier);
    }
    result.timestamps.reserve(placed.size());
    for (const auto& [time, item] : placed) result.timestamps.push_back(time);
  }
  result.items.reserve(placed.size());
  for (const auto& [time, item] : placed) result.items.push_back(item);
  return result;
}

Status check_users(const Interactions& interactions, const InteractionsReport& report) {
  if (interactions.items.empty()) {
    return invalid(report.path + ": no interactions are left after --min_count " + std::to_string(report.min_count) +
                   " (" + std::to_string(report.dropped_events) + " dropped): choose a smaller one, 0 keeps all");
  }
  int64_t users = 0;
  for (size_t u = 1; u + 1 < interactions.offsets.size() && users < 2; ++u) {
    if (interactions.offsets[u + 1] > interactions.offsets[u]) ++users;
  }
  if (users >= 2) return {};
  std::string message = report.path + ": only one user";
  if (report.dropped_users > 0) message += " is left after --min_count " + std::to_string(report.min_count);
  return invalid(message + ", expected at least two");
}

// A regular file's bytes. The data set may be reached by a symbolic link.
Result<std::string> read_whole(const std::string& path, const std::function<void()>& on_progress) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    const ErrorCode code = errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kInvalid;
    return Error{code, path + " cannot be opened: " + std::strerror(errno)};
  }
  struct stat info {};
  std::string text;
  std::string problem;
  if (::fstat(file, &info) != 0) {
    problem = std::strerror(errno);
  } else if (!S_ISREG(info.st_mode)) {
    problem = "it is not a regular file";
  } else if (info.st_size > kEventsFileBytesMax) {
    problem = "it has " + std::to_string(info.st_size) + " bytes, at most " + std::to_string(kEventsFileBytesMax) +
              " are read";
  } else {
    text.resize(static_cast<size_t>(info.st_size));
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t got = ::read(file, text.data() + done, std::min(text.size() - done, kReadPieceBytes));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) problem = std::strerror(errno);
      if (got <= 0) break;
      done += static_cast<size_t>(got);
      on_progress();
    }
    text.resize(done);
  }
  ::close(file);
  if (!problem.empty()) return invalid(path + " cannot be read: " + problem);
  return text;
}

}  // namespace

const char* to_string(InteractionsFormat format) {
  switch (format) {
    case InteractionsFormat::kUserItem:
      return "user item";
    case InteractionsFormat::kUserItemRatingTime:
      return "user item rating timestamp";
    case InteractionsFormat::kRatingsDat:
      return "ratings.dat";
    case InteractionsFormat::kInter:
      return "RecBole .inter";
  }
  return "unknown";
}

std::string_view OriginalIds::of(int64_t number) const {
  LOCKSTEP_CHECK(number >= 1 && number <= size(), "a number of the data set");
  const auto index = static_cast<size_t>(number) - 1;
  const size_t begin = index == 0 ? 0 : ends_[index - 1];
  return std::string_view(text_).substr(begin, ends_[index] - begin);
}

std::span<const int32_t> Interactions::items_of(int64_t user) const {
  LOCKSTEP_CHECK(user >= 0 && user <= num_users, "a user of the data set");
  const auto begin = static_cast<size_t>(offsets[static_cast<size_t>(user)]);
  const auto end = static_cast<size_t>(offsets[static_cast<size_t>(user) + 1]);
  return {items.data() + begin, end - begin};
}

Result<std::string> resolve_dataset(const std::string& dataset, const std::string& data_dir) {
  const std::string folder = data_dir.empty() ? "." : data_dir;
  std::vector<std::string> places{dataset};
  std::vector<std::string> folders;  // folders that may hold the data set
  if (dataset.find('/') != std::string::npos) {
    std::filesystem::path path(dataset);
    if (!path.has_filename()) path = path.parent_path();
    folders.push_back(path.string());
  } else {
    const std::string name = folder + "/" + dataset;
    places.insert(places.end(), {name + ".txt", name + ".inter", name});
    folders.push_back(name);
    if (folder != ".") folders.push_back("./" + dataset);
  }
  for (const std::string& inside : folders) {
    const std::string base = std::filesystem::path(inside).filename().string();
    for (const std::string& file : {std::string("ratings.dat"), base + ".inter", base + ".txt"}) {
      places.push_back(std::filesystem::path(inside) / file);
    }
  }
  std::string tried;
  for (const std::string& place : places) {
    std::error_code ignored;  // a path that cannot be examined counts as missing
    if (std::filesystem::is_regular_file(place, ignored)) return place;
    tried += (tried.empty() ? "" : ", ") + place;
  }
  const bool is_folder = std::any_of(folders.begin(), folders.end(), [](const std::string& inside) {
    std::error_code ignored;
    return std::filesystem::is_directory(inside, ignored);
  });
  return Error{ErrorCode::kNotFound,
               "data set \"" + dataset + "\" " + (is_folder ? "is a folder without ratings.dat" : "not found") +
                   "; tried " + tried + ". Put it at one of these places, or give --dataset PATH or --data_dir FOLDER"};
}

Result<Dataset> read_interactions(const std::string& path, const ReadOptions& options,
                                  const std::function<void()>& on_progress) {
  TRY_ASSIGN(const std::string text, read_whole(path, on_progress));
  return parse_interactions(text, path, options, on_progress);
}

Result<Dataset> parse_interactions(std::string_view text, const std::string& path, const ReadOptions& options,
                                   const std::function<void()>& on_progress) {
  if (text.starts_with(kGzipMagic)) return invalid(path + " is compressed with gzip: unpack it first (gunzip)");
  TRY_ASSIGN(const Layout layout, detect_layout(text, path));
  Dataset dataset;
  InteractionsReport& report = dataset.report;
  report.path = path;
  report.format = layout.format;
  report.min_count = options.min_count.value_or(layout.keeps_ids() ? 0 : kDefaultMinCount);
  EventReader reader(layout);
  TRY_ASSIGN(std::vector<RawEvent> events,
             read_events(text, reader, layout, options.max_bad_lines, report, on_progress));
  if (report.min_count > 1) drop_rare(events, report);
  on_progress();
  if (!layout.keeps_ids()) {
    const KeysByNumber keys = renumber(events, options.original_ids);
    dataset.items_sha256 = digest_of(keys.items, reader.items());
    if (options.original_ids) {
      dataset.users = original_ids(keys.users, reader.users());
      dataset.items = original_ids(keys.items, reader.items());
    }
  }
  on_progress();
  dataset.interactions = to_csr(events, layout.time.has_value());
  on_progress();
  if (layout.keeps_ids() && options.original_ids) {
    dataset.users = numbers_up_to(dataset.interactions.num_users);
    dataset.items = numbers_up_to(dataset.interactions.num_items);
  }
  report.events = static_cast<int64_t>(events.size());
  TRY(check_users(dataset.interactions, report));
  return dataset;
}

bool has_known_format(std::string_view head) { return !head.starts_with(kGzipMagic) && detect_layout(head, "").ok(); }

UserSplit leave_one_out(const Interactions& interactions, int64_t user, int64_t events_min) {
  const std::span<const int32_t> items = interactions.items_of(user);
  if (static_cast<int64_t>(items.size()) < events_min) return {items, 0, 0};
  return {items.first(items.size() - 2), items[items.size() - 2], items[items.size() - 1]};
}

}  // namespace lockstep
