#include "runner/data/interactions.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/one_line.h"
#include "runner/base/parse_number.h"
#include "runner/base/plural.h"
#include "runner/base/sha256.h"
#include "runner/data/event_layout.h"
#include "runner/data/instant.h"
#include "runner/formats/open_text.h"
#include "runner/formats/text_folder.h"

namespace lockstep {
namespace {

// The largest file read; its events must also be countable in 31 bits.
constexpr uint64_t kEventsFileBytesMax = uint64_t{8} << 30;
constexpr size_t kEventsMax = std::numeric_limits<int32_t>::max();
// Ids of `user item` files index tables directly; above this the file is another format.
constexpr int64_t kKeptIdMax = 50'000'000;
constexpr int64_t kDefaultMinCount = 5;
constexpr int64_t kProgressLines = 100'000;  // a few megabytes
constexpr size_t kHeadBytes = 65'536;        // far more than the lines by which a format is recognised

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
  int64_t time;  // seconds, rounded down
};

// The events of a file in the order of its lines.
struct RawEvents {
  std::vector<RawEvent> events;
  std::vector<uint32_t> nanoseconds;  // of their times; shorter than `events` where all that follow are 0

  void add(const RawEvent& event, uint32_t nanos) {
    if (nanos > 0) {
      nanoseconds.resize(events.size(), 0);
      nanoseconds.push_back(nanos);
    }
    events.push_back(event);
  }
  [[nodiscard]] uint32_t nanoseconds_of(size_t index) const {
    return index < nanoseconds.size() ? nanoseconds[index] : 0;
  }
};

class EventReader {
 public:
  explicit EventReader(const EventLayout& layout) : layout_(layout) {}

  enum class Verdict { kGood, kMalformed, kFatal };
  // Adds the line's event, or its events, or, if the line is bad, fills `reason`.
  Verdict read(std::string_view line, RawEvents& events, std::string& reason) {
    EventFields fields;
    const size_t columns = layout_.split(line, fields);
    if (columns != layout_.columns) {
      reason =
          "found " +
          (columns > kEventColumnsMax ? "more than " + std::to_string(kEventColumnsMax) : std::to_string(columns)) +
          " columns, expected " + std::to_string(layout_.columns);
      return Verdict::kMalformed;
    }
    RawEvent event{};
    const Verdict user = read_id("user", fields[layout_.user], users_, event.user, reason);
    if (user != Verdict::kGood) return user;
    if (layout_.items) return read_list(fields, event, events, reason);
    const Verdict item = read_id("item", fields[*layout_.item], items_, event.item, reason);
    if (item != Verdict::kGood) return item;
    if (layout_.rating && !is_number(fields[*layout_.rating])) {
      reason = "the rating is not a number";
      return Verdict::kMalformed;
    }
    uint32_t nanoseconds = 0;
    if (layout_.time && !read_time(fields[*layout_.time], event, nanoseconds, reason)) return Verdict::kMalformed;
    events.add(event, nanoseconds);
    return Verdict::kGood;
  }
  // The ids by key; empty in formats that keep ids.
  [[nodiscard]] std::vector<KeyMap::Id> users() const { return users_.ids(); }
  [[nodiscard]] std::vector<KeyMap::Id> items() const { return items_.ids(); }

 private:
  Verdict read_id(const char* what, std::string_view text, KeyMap& keys, int32_t& key, std::string& reason) {
    const bool is_label = layout_.has_labels();
    if (text.empty() || (!is_label && !is_whole(text))) {
      reason = std::string("the ") + what + " id is " +
               (text.empty() ? "missing" : "not a whole number (labels need a RecBole .inter file or CSV)");
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

  // The events of a line with a list of items, and maybe one more item behind the list.
  Verdict read_list(const EventFields& fields, RawEvent event, RawEvents& events, std::string& reason) {
    std::string_view items = fields[*layout_.items];
    std::string_view times = layout_.times ? fields[*layout_.times] : std::string_view();
    std::vector<std::pair<RawEvent, uint32_t>> found;
    const auto next_word = [](std::string_view& text) {
      text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
      const std::string_view word = text.substr(0, text.find(' '));
      text.remove_prefix(word.size());
      return word;
    };
    const auto add = [&](std::string_view item, const std::optional<std::string_view>& time) {
      uint32_t nanoseconds = 0;
      if (time && !read_time(*time, event, nanoseconds, reason)) return false;
      if (read_id("item", item, items_, event.item, reason) != Verdict::kGood) return false;
      found.emplace_back(event, nanoseconds);
      return true;
    };
    for (std::string_view item = next_word(items); !item.empty(); item = next_word(items)) {
      std::optional<std::string_view> time;
      if (layout_.times) time = next_word(times);
      if (!add(item, time)) return Verdict::kMalformed;
    }
    if (!next_word(times).empty()) {
      reason = "there are more times than items";
      return Verdict::kMalformed;
    }
    std::optional<std::string_view> time;
    if (layout_.item && layout_.time) time = fields[*layout_.time];
    if (layout_.item && !add(fields[*layout_.item], time)) return Verdict::kMalformed;
    for (const auto& [read, nanoseconds] : found) events.add(read, nanoseconds);
    return Verdict::kGood;
  }

  static bool read_time(std::string_view text, RawEvent& event, uint32_t& nanoseconds, std::string& reason) {
    if (const auto whole = parse_number<int64_t>(text)) {  // most times
      event.time = *whole;
      return true;
    }
    const std::optional<Instant> instant = instant_of(text);
    if (!instant) {
      reason = "the timestamp is not a number or a date";
      return false;
    }
    event.time = instant->seconds;
    nanoseconds = instant->nanoseconds;
    return true;
  }

  const EventLayout& layout_;
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

Result<RawEvents> read_events(std::string_view text, EventReader& reader, const EventLayout& layout,
                              const ReadOptions& options, InteractionsReport& report,
                              const std::function<void()>& on_progress) {
  RawEvents read;
  constexpr size_t kTypicalLineBytes = 16;
  read.events.reserve(text.size() / kTypicalLineBytes);
  EventLines lines(text);
  std::string_view line;
  std::string reason;
  bool header_pending = layout.has_header;
  int64_t reported = 0;
  while (lines.next(line)) {
    if (lines.number() - reported >= kProgressLines) {
      reported = lines.number();
      on_progress();
    }
    if (std::exchange(header_pending, false)) continue;
    ++report.lines;
    const EventReader::Verdict verdict = reader.read(line, read, reason);
    if (verdict == EventReader::Verdict::kFatal) return invalid(at_line(report.path, lines.number()) + ": " + reason);
    if (verdict == EventReader::Verdict::kGood) {
      if (read.events.size() > kEventsMax) return invalid(report.path + ": more than 2147483647 events");
      continue;
    }
    ++report.bad_lines;
    if (report.bad_samples.size() < options.names_max)
      report.bad_samples.push_back({lines.number(), printable(line), reason});
  }
  TRY(check_bad_lines(report, options.max_bad_lines));
  if (read.events.empty())
    return invalid(report.path + " holds no interactions: expected interactions of at least two users");
  return read;
}

// An event of a user whose events are beside each other.
struct Placed {
  int64_t time;
  int32_t item;
  uint32_t nanoseconds;
};

// The events user by user, by the users' keys, each user's stably sorted by time.
struct Grouped {
  std::vector<int64_t> offsets;  // of user key u: [offsets[u], ends[u])
  std::vector<int64_t> ends;
  std::vector<Placed> events;

  [[nodiscard]] std::span<Placed> events_of(size_t user) {
    return {events.data() + offsets[user], static_cast<size_t>(ends[user] - offsets[user])};
  }
};

Grouped group_by_user(const RawEvents& read, bool has_times) {
  Grouped grouped;
  std::vector<int64_t> counts;
  for (const RawEvent& event : read.events) {
    const auto user = static_cast<size_t>(event.user);
    if (user >= counts.size()) counts.resize(std::max(user + 1, counts.size() * 2));
    ++counts[user];
  }
  grouped.offsets.resize(counts.size());
  for (size_t user = 1; user < counts.size(); ++user) {
    grouped.offsets[user] = grouped.offsets[user - 1] + counts[user - 1];
  }
  grouped.ends = grouped.offsets;
  grouped.events.resize(read.events.size());
  for (size_t i = 0; i < read.events.size(); ++i) {
    const RawEvent& event = read.events[i];
    const auto at = static_cast<size_t>(grouped.ends[static_cast<size_t>(event.user)]++);
    grouped.events[at] = {event.time, event.item, read.nanoseconds_of(i)};
  }
  if (!has_times) return grouped;
  const auto earlier = [](const Placed& a, const Placed& b) {
    return std::tie(a.time, a.nanoseconds) < std::tie(b.time, b.nanoseconds);
  };
  for (size_t user = 0; user < grouped.ends.size(); ++user) {
    const std::span<Placed> own = grouped.events_of(user);
    std::stable_sort(own.begin(), own.end(), earlier);
  }
  return grouped;
}

// The number of entries that repeat an earlier one.
int64_t repeats_in(std::vector<int32_t>& items) {
  std::sort(items.begin(), items.end());
  return std::distance(std::unique(items.begin(), items.end()), items.end());
}

// Drops all but the first of the events of a user that have the same item and time. Without times it only counts the
// items that occur again, because the user may have chosen them again.
void drop_equal_events(Grouped& grouped, bool has_times, InteractionsReport& report) {
  std::vector<int32_t> items;
  const auto collect = [&items](std::span<const Placed> events) {
    items.clear();
    for (const Placed& event : events) items.push_back(event.item);
  };
  for (size_t user = 0; user < grouped.ends.size(); ++user) {
    const std::span<Placed> own = grouped.events_of(user);
    if (!has_times) {
      collect(own);
      report.repeated_events += repeats_in(items);
      continue;
    }
    size_t kept = 0;
    for (size_t begin = 0; begin < own.size();) {
      size_t end = begin + 1;
      while (end < own.size() && own[end].time == own[begin].time && own[end].nanoseconds == own[begin].nanoseconds) {
        ++end;
      }
      int64_t repeats = 0;
      if (end - begin > 1) {
        collect(own.subspan(begin, end - begin));
        repeats = repeats_in(items);
      }
      if (repeats == 0) {
        for (size_t i = begin; i < end; ++i) own[kept++] = own[i];
      } else {
        items.clear();  // those of this time that are kept
        for (size_t i = begin; i < end; ++i) {
          if (std::find(items.begin(), items.end(), own[i].item) != items.end()) continue;
          items.push_back(own[i].item);
          own[kept++] = own[i];
        }
      }
      report.equal_events += repeats;
      begin = end;
    }
    grouped.ends[user] = grouped.offsets[user] + static_cast<int64_t>(kept);
  }
}

// How often each user and each item occurs, by key.
struct Counts {
  std::vector<int64_t> users;
  std::vector<int64_t> items;

  [[nodiscard]] bool is_rare(int32_t user, int32_t item, int64_t min_count) const {
    return users[static_cast<size_t>(user)] < min_count || items[static_cast<size_t>(item)] < min_count;
  }
};

Counts counts_of(Grouped& grouped) {
  Counts counts;
  counts.users.resize(grouped.ends.size());
  for (size_t user = 0; user < grouped.ends.size(); ++user) {
    const std::span<Placed> own = grouped.events_of(user);
    counts.users[user] = std::ssize(own);
    for (const Placed& event : own) {
      const auto item = static_cast<size_t>(event.item);
      if (item >= counts.items.size()) counts.items.resize(std::max(item + 1, counts.items.size() * 2));
      ++counts.items[item];
    }
  }
  return counts;
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

// The rare users or items: how many there are, and the first of them by their keys. `ids`: the ids by key, empty where
// keys are the ids; asked for only if there are rare ones.
int64_t note_rare(const std::vector<int64_t>& counts, int64_t min_count,
                  const std::function<std::vector<KeyMap::Id>()>& ids, size_t names_max,
                  std::vector<std::string>& names) {
  std::vector<size_t> first;
  int64_t rare = 0;
  for (size_t key = 0; key < counts.size(); ++key) {
    if (counts[key] == 0 || counts[key] >= min_count) continue;
    if (first.size() < names_max) first.push_back(key);
    ++rare;
  }
  if (first.empty()) return rare;
  const std::vector<KeyMap::Id> all = ids();
  for (const size_t key : first) names.push_back(all.empty() ? std::to_string(key) : printable(text_of(all[key])));
  return rare;
}

// The old keys of the new ids 1, 2, 3 …, in the order of first appearance: users[0] is the key of user 1.
struct KeysByNumber {
  std::vector<KeyMap::Id> users;  // an Id's number is the key
  std::vector<KeyMap::Id> items;
};

// The new numbers of users and items by key; 0: none, because all lines of it are dropped.
struct Numbers {
  std::vector<int32_t> users;
  std::vector<int32_t> items;
  KeysByNumber keys;
};
Numbers number_by_appearance(const std::vector<RawEvent>& events, const Counts& counts, int64_t min_count) {
  Numbers numbers;
  numbers.users.resize(counts.users.size());
  numbers.items.resize(counts.items.size());
  const auto number = [](int32_t key, std::vector<int32_t>& given, std::vector<KeyMap::Id>& keys) {
    int32_t& own = given[static_cast<size_t>(key)];
    if (own != 0) return;
    keys.push_back({.number = key, .token = {}});
    own = static_cast<int32_t>(keys.size());
  };
  for (const RawEvent& event : events) {
    if (counts.is_rare(event.user, event.item, min_count)) continue;
    number(event.user, numbers.users, numbers.keys.users);
    number(event.item, numbers.items, numbers.keys.items);
  }
  return numbers;
}

// Into CSR, without what is rare. `numbers`: null where keys are the numbers.
Interactions to_csr(Grouped& grouped, const Counts& counts, const Numbers* numbers, bool has_times,
                    InteractionsReport& report) {
  Interactions result;
  if (numbers == nullptr) {
    for (size_t user = 0; user < grouped.ends.size(); ++user) {
      for (const Placed& event : grouped.events_of(user)) {
        if (counts.is_rare(static_cast<int32_t>(user), event.item, report.min_count)) continue;
        result.num_users = static_cast<int64_t>(user);
        result.num_items = std::max<int64_t>(result.num_items, event.item);
      }
    }
  } else {
    result.num_users = std::ssize(numbers->keys.users);
    result.num_items = std::ssize(numbers->keys.items);
  }
  result.offsets.reserve(static_cast<size_t>(result.num_users) + 2);
  result.offsets.push_back(0);  // user 0 does not exist
  result.items.reserve(grouped.events.size());
  if (has_times) result.timestamps.reserve(grouped.events.size());
  for (int64_t user = 1; user <= result.num_users; ++user) {
    result.offsets.push_back(std::ssize(result.items));
    const auto key = numbers == nullptr
                         ? static_cast<size_t>(user)
                         : static_cast<size_t>(numbers->keys.users[static_cast<size_t>(user) - 1].number);
    for (const Placed& event : grouped.events_of(key)) {
      if (counts.is_rare(static_cast<int32_t>(key), event.item, report.min_count)) continue;
      result.items.push_back(numbers == nullptr ? event.item : numbers->items[static_cast<size_t>(event.item)]);
      if (!has_times) continue;
      if (event.nanoseconds > 0) ++report.rounded_times;
      result.timestamps.push_back(rounded_seconds({event.time, event.nanoseconds}));
    }
  }
  result.offsets.push_back(std::ssize(result.items));
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

// The file of interactions in a zip archive. Errors: kInvalid: there is none, or there are several.
Result<std::string> events_file_in(const TextFolder& archive, const std::string& path) {
  for (const char* name : {"ratings.dat", "ratings.csv", "u.data"}) {
    if (archive.has(name)) return std::string(name);
  }
  std::vector<std::string> found;
  for (const std::string& name : archive.names()) {
    if (name.ends_with(".inter")) found.push_back(name);
  }
  if (found.size() == 1) return found.front();
  const std::vector<std::string> names = archive.names();
  return invalid(path + " holds " + first_of(found.empty() ? names : found, 5) +
                 ": expected one of ratings.dat, ratings.csv, u.data and NAME.inter; unpack it, and give the file");
}

}  // namespace

const char* to_string(InteractionsFormat format) {
  constexpr std::array kNames{"user item", "user item time", "user item rating timestamp", "ratings.dat",
                              "CSV",       "RecBole .inter"};
  static_assert(kNames.size() == static_cast<size_t>(InteractionsFormat::kInter) + 1);
  return kNames.at(static_cast<size_t>(format));
}

std::string_view OriginalIds::id(int64_t number) const {
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
    places.insert(places.end(), {name + ".txt", name + ".inter", name + ".csv", name, name + ".zip"});
    folders.push_back(name);
    if (folder != ".") folders.push_back("./" + dataset);
  }
  for (const std::string& inside : folders) {
    const std::string base = std::filesystem::path(inside).filename().string();
    for (const std::string& file : {std::string("ratings.dat"), std::string("ratings.csv"), std::string("u.data"),
                                    base + ".inter", base + ".txt"}) {
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

Result<Dataset> read_interactions(FileSystem& fs, const std::string& path, const ReadOptions& options,
                                  const std::function<void()>& on_progress) {
  std::string name = path;
  OpenedText opened;
  if (is_zip_file(fs, path)) {
    TRY_ASSIGN(const TextFolder archive, TextFolder::open(fs, path, on_progress));
    TRY_ASSIGN(const std::string inside, events_file_in(archive, path));
    name = archive.path_of(inside);
    TRY_ASSIGN(opened, archive.read(inside, kEventsFileBytesMax, on_progress));
  } else {
    TRY_ASSIGN(opened, open_text(fs, path, kEventsFileBytesMax, on_progress));
  }
  TRY_ASSIGN(Dataset dataset, parse_interactions(opened.text, name, options, on_progress));
  dataset.report.encoding = encoding_note(opened);
  return dataset;
}

Result<Dataset> parse_interactions(std::string_view text, const std::string& path, const ReadOptions& options,
                                   const std::function<void()>& on_progress) {
  TRY_ASSIGN(const EventLayout layout, detect_layout(text, path));
  Dataset dataset;
  InteractionsReport& report = dataset.report;
  report.path = path;
  report.format = layout.format;
  report.columns = layout.columns_text;
  report.times = layout.times_text;
  report.min_count = options.min_count.value_or(layout.keeps_ids() ? 0 : kDefaultMinCount);
  EventReader reader(layout);
  TRY_ASSIGN(const RawEvents read, read_events(text, reader, layout, options, report, on_progress));
  on_progress();
  Grouped grouped = group_by_user(read, layout.has_times());
  drop_equal_events(grouped, layout.has_times(), report);
  const Counts counts = counts_of(grouped);
  on_progress();
  report.dropped_users = note_rare(
      counts.users, report.min_count, [&] { return reader.users(); }, options.names_max, report.dropped_user_names);
  report.dropped_items = note_rare(
      counts.items, report.min_count, [&] { return reader.items(); }, options.names_max, report.dropped_item_names);
  if (layout.keeps_ids()) {
    dataset.interactions = to_csr(grouped, counts, nullptr, layout.has_times(), report);
  } else {
    const Numbers numbers = number_by_appearance(read.events, counts, report.min_count);
    const std::vector<KeyMap::Id> item_ids = reader.items();
    dataset.items_sha256 = digest_of(numbers.keys.items, item_ids);
    if (options.original_ids) {
      dataset.users = original_ids(numbers.keys.users, reader.users());
      dataset.items = original_ids(numbers.keys.items, item_ids);
    }
    on_progress();
    dataset.interactions = to_csr(grouped, counts, &numbers, layout.has_times(), report);
  }
  on_progress();
  if (layout.keeps_ids() && options.original_ids) {
    dataset.users = numbers_up_to(dataset.interactions.num_users);
    dataset.items = numbers_up_to(dataset.interactions.num_items);
  }
  report.events = std::ssize(dataset.interactions.items);
  report.dropped_events = std::ssize(read.events) - report.equal_events - report.events;
  TRY(check_users(dataset.interactions, report));
  return dataset;
}

bool has_known_format(FileSystem& fs, const std::string& path) {
  if (!is_zip_file(fs, path)) return detect_layout(head_of_text(fs, path, kHeadBytes), "").ok();
  const Result<TextFolder> archive = TextFolder::open(fs, path);
  return archive.ok() && events_file_in(*archive, path).ok();
}

UserSplit leave_one_out(const Interactions& interactions, int64_t user, int64_t events_min) {
  const std::span<const int32_t> items = interactions.items_of(user);
  if (static_cast<int64_t>(items.size()) < events_min) return {items, 0, 0};
  return {items.first(items.size() - 2), items[items.size() - 2], items[items.size() - 1]};
}

}  // namespace lockstep
