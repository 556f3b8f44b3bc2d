#include "runner/data/event_layout.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "runner/base/one_line.h"
#include "runner/base/parse_number.h"
#include "runner/base/plural.h"
#include "runner/base/trimmed.h"
#include "runner/data/csv_line.h"
#include "runner/data/instant.h"
#include "runner/data/next_line.h"

namespace lockstep {
namespace {

constexpr int kLinesLookedAt = 100;  // until one has a known form

// A number in a column without a name is taken for a time from here on (1970-01-12): no rating is so large.
constexpr double kTimeMin = 1e6;

bool is_space(char c) { return c == ' ' || c == '\t'; }

size_t split_spaces(std::string_view line, EventFields& fields) {
  size_t count = 0;
  size_t at = 0;
  while (at < line.size()) {
    while (at < line.size() && is_space(line[at])) ++at;
    const size_t begin = at;
    while (at < line.size() && !is_space(line[at])) ++at;
    if (at == begin) break;
    if (count == kEventColumnsMax) return kEventColumnsMax + 1;
    fields[count++] = line.substr(begin, at - begin);
  }
  return count;
}

size_t split_at(std::string_view line, std::string_view separator, EventFields& fields) {
  for (size_t count = 0; count < kEventColumnsMax;) {
    const size_t end = line.find(separator);
    fields[count++] = line.substr(0, end);
    if (end == std::string_view::npos) return count;
    line.remove_prefix(end + separator.size());
  }
  return kEventColumnsMax + 1;
}

size_t split_csv(std::string_view line, EventFields& fields) {
  bool more = true;
  for (size_t count = 0; count < kEventColumnsMax;) {
    fields[count++] = next_csv_field(line, more);
    if (!more) return count;
  }
  return kEventColumnsMax + 1;
}

constexpr const char* kKnownFormats =
    "expected `user item`, `user item time`, `user item rating timestamp` (tab or spaces), "
    "`user::item::rating::timestamp`, CSV with a header such as userId,movieId,rating,timestamp or with "
    "user,item,rating,timestamp, or a RecBole .inter file with a header such as user_id:token, item_id:token, "
    "timestamp:float separated by tabs";

// One column of a header.
struct Column {
  std::string written;  // "user_id:token", "movieId"
  std::string name;     // "user_id"
  std::string plain;    // "userid": by which it is recognised
  bool is_list = false;
};

Column column_of(std::string_view field, bool is_typed) {
  Column column;
  column.written = trimmed(field);
  const size_t colon = is_typed ? column.written.rfind(':') : std::string::npos;
  column.name = trimmed(std::string_view(column.written).substr(0, colon));
  column.is_list = colon != std::string::npos && column.written.ends_with("_seq");
  for (const char c : column.name) {
    if (c == '_' || c == ' ' || c == '-') continue;
    column.plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return column;
}

using Names = std::span<const std::string_view>;

// The first column that has one of these names; of several names that occur, the one that is first in the list.
std::optional<size_t> find_column(const std::vector<Column>& columns, Names names, bool is_list) {
  for (const std::string_view name : names) {
    for (size_t i = 0; i < columns.size(); ++i) {
      if (columns[i].plain == name && columns[i].is_list == is_list) return i;
    }
  }
  return std::nullopt;
}

constexpr std::string_view kUserNames[] = {"userid", "user", "uid", "reviewerid", "customerid", "sessionid"};
constexpr std::string_view kItemNames[] = {"itemid",     "item", "iid",       "movieid",
                                           "parentasin", "asin", "productid", "movie"};
constexpr std::string_view kListNames[] = {"itemidlist", "itemlist", "itemid", "item"};
constexpr std::string_view kTimeNames[] = {"timestamp", "unixtimestamp", "unixreviewtime", "time", "datetime",
                                           "date",      "reviewtime",    "createdat",      "ts"};
constexpr std::string_view kTimeListNames[] = {"timestamplist", "timelist", "timestamp", "time"};

std::string names_of(const std::vector<Column>& columns) {
  return joined(columns, ", ", [](const Column& column) { return column.written; });
}

bool is_typed(std::string_view field) {
  field = trimmed(field);
  if (field.find(':') != field.rfind(':')) return false;  // several columns, with something else than tabs between them
  return field.ends_with(":token") || field.ends_with(":float") || field.ends_with(":token_seq") ||
         field.ends_with(":float_seq");
}

// The fields of a header, of which the last ones may be empty: a tab or a space stands after the last column.
size_t header_columns(std::string_view line, EventFields& fields, size_t (*split)(std::string_view, EventFields&)) {
  size_t count = std::min(split(line, fields), kEventColumnsMax);
  while (count > 0 && trimmed(fields[count - 1]).empty()) --count;
  return count;
}

size_t split_tabs(std::string_view line, EventFields& fields) { return split_at(line, "\t", fields); }

// A RecBole header has a type after each column's name ("user_id:token").
bool is_inter_header(std::string_view line, size_t (*split)(std::string_view, EventFields&)) {
  EventFields fields;
  const size_t count = header_columns(line, fields, split);
  return count > 0 && std::all_of(fields.begin(), fields.begin() + static_cast<std::ptrdiff_t>(count), is_typed);
}

std::string header_found(const std::string& path, int64_t line, std::string_view header) {
  return at_line(path, line) + ": found the header \"" + printable(header) + "\"";
}

// Whether the values below the header in this column are times; the lines that are looked at are the first ones.
bool holds_times(const EventLayout& layout, size_t column, EventLines lines) {
  std::string_view line;
  for (int seen = 0; seen < kLinesLookedAt && lines.next(line); ++seen) {
    EventFields fields;
    if (layout.split(line, fields) == layout.columns && instant_of(fields[column])) return true;
  }
  return false;
}

// Chooses the column of times, and says which. `below`: the lines after the header.
void choose_times(const std::vector<Column>& columns, const EventLines& below, EventLayout& layout) {
  std::vector<std::string> others;  // that have the name of a time and are not used
  const auto has_name_of_time = [](const Column& column) {
    return std::find(std::begin(kTimeNames), std::end(kTimeNames), column.plain) != std::end(kTimeNames);
  };
  if (layout.items) {
    layout.times = find_column(columns, kTimeListNames, /*is_list=*/true);
    if (layout.times && layout.item) {
      layout.time = find_column(columns, kTimeNames, /*is_list=*/false);
      if (!layout.time) layout.times.reset();  // the last item would have none
    }
  } else {
    for (const std::string_view name : kTimeNames) {
      for (size_t i = 0; i < columns.size() && !layout.time; ++i) {
        if (columns[i].plain != name || columns[i].is_list) continue;
        // `timestamp` is RecBole's own name: its malformed values are bad lines.
        if (columns[i].name == "timestamp" || holds_times(layout, i, below)) layout.time = i;
      }
    }
  }
  for (size_t i = 0; i < columns.size(); ++i) {
    if (i != layout.time && i != layout.times && has_name_of_time(columns[i])) others.push_back(columns[i].written);
  }
  if (layout.has_times()) {
    layout.times_text = "column " + columns[layout.times ? *layout.times : *layout.time].written;
    if (!others.empty()) layout.times_text += "; not used: " + joined(others);
    return;
  }
  layout.times_text = "none: the order of the lines counts as the order of time; ";
  layout.times_text += others.empty() ? "the columns are " + names_of(columns)
                                      : "what is in the column " + joined(others) + " is no " +
                                            (layout.items ? "list of times" : "number and no date");
}

Result<EventLayout> header_layout(InteractionsFormat format, std::string_view header, const std::string& path,
                                  const EventLines& below) {
  const bool is_inter = format == InteractionsFormat::kInter;
  EventLayout layout{.format = format, .has_header = true, .item = std::nullopt};
  EventFields fields;
  layout.columns = header_columns(header, fields, is_inter ? split_tabs : split_csv);
  std::vector<Column> columns;
  for (size_t i = 0; i < layout.columns; ++i) {
    columns.push_back(column_of(fields[i], is_inter));
    const auto same = std::count_if(columns.begin(), columns.end(),
                                    [&](const Column& column) { return column.name == columns.back().name; });
    if (same > 1 && !columns.back().name.empty()) {
      return invalid(at_line(path, below.number()) + ": the header has the column " + columns.back().name + " twice");
    }
  }
  const auto user = find_column(columns, kUserNames, /*is_list=*/false);
  layout.item = find_column(columns, kItemNames, /*is_list=*/false);
  if (is_inter) layout.items = find_column(columns, kListNames, /*is_list=*/true);
  if (!user || (!layout.item && !layout.items)) {
    return invalid(header_found(path, below.number(), header) + ", which has no column " +
                   (user ? "item_id" : "user_id"));
  }
  layout.user = *user;
  choose_times(columns, below, layout);
  layout.columns_text = "user " + columns[*user].written;
  if (layout.items) layout.columns_text += ", items " + columns[*layout.items].written;
  if (layout.item) layout.columns_text += ", item " + columns[*layout.item].written;
  return layout;
}

bool is_plausible_time(std::string_view text) {
  const auto instant = instant_of(text);
  return instant && (static_cast<double>(instant->seconds) >= kTimeMin || !is_number(trimmed(text)));
}

// Amazon's ids: users such as A3AF8FFZAZYNE5, products such as B00005N5PF or, of books, 0002007770.
bool is_amazon_item(std::string_view id) {
  const auto is_of_id = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z'); };
  return id.size() == 10 && (id.front() == 'B' || (id.front() >= '0' && id.front() <= '9')) &&
         std::all_of(id.begin(), id.end(), is_of_id);
}
bool is_amazon_user(std::string_view id) { return id.size() >= 12 && id.front() == 'A'; }

// CSV without a header. Amazon has published its ratings as user,item,rating,timestamp (2014), and as
// item,user,rating,timestamp (2018).
EventLayout bare_csv_layout(const EventFields& fields, size_t columns) {
  const bool is_item_first = is_amazon_item(fields[0]) && is_amazon_user(fields[1]);
  EventLayout layout{.format = InteractionsFormat::kCsv, .columns = columns, .time = columns - 1};
  if (is_item_first) std::swap(layout.user, *layout.item);
  if (columns == 4) layout.rating = 2;
  layout.columns_text = std::string(is_item_first ? "item,user" : "user,item") + (columns == 4 ? ",rating" : "") +
                        ",time, without a header" + (is_item_first ? ", by the form of Amazon's ids" : "");
  return layout;
}

// The layout that one line of a file without a header has.
std::optional<EventLayout> layout_of_line(std::string_view line) {
  using enum InteractionsFormat;
  EventFields fields;
  if (split_at(line, "::", fields) == 4)
    return EventLayout{.format = kRatingsDat, .columns = 4, .rating = 2, .time = 3};
  const size_t columns = split_spaces(line, fields);
  const bool has_ids = columns >= 2 && columns <= 4 && is_whole(fields[0]) && is_whole(fields[1]);
  if (has_ids && columns == 2) return EventLayout{};
  if (has_ids && columns == 3 && is_plausible_time(fields[2])) {
    return EventLayout{.format = kUserItemTime, .columns = 3, .time = 2};
  }
  const bool are_numbers = columns == 4 && std::all_of(fields.begin(), fields.begin() + 3, is_number);
  if (are_numbers && (is_number(fields[3]) || is_plausible_time(fields[3]))) {
    return EventLayout{.format = kUserItemRatingTime, .columns = 4, .rating = 2, .time = 3};
  }
  const size_t parts = split_csv(line, fields);
  const bool is_bare_csv = (parts == 3 || (parts == 4 && is_number(fields[2]))) && !fields[0].empty() &&
                           !fields[1].empty() && is_plausible_time(fields[parts - 1]);
  if (is_bare_csv) return bare_csv_layout(fields, parts);
  return std::nullopt;
}

// What separates the columns of a RecBole header in place of tabs; empty if this is none.
std::string wrong_separator(std::string_view line) {
  if (is_inter_header(line, split_csv)) return "commas";
  return is_inter_header(line, split_spaces) ? "spaces" : "";
}

// Why the first line has no known form.
std::string unknown_form(std::string_view line) {
  EventFields fields;
  std::string text = kKnownFormats;
  if (line.find("::") != std::string_view::npos) {
    text += "; of MovieLens' files only ratings.dat holds interactions: give that one, or its folder";
  }
  if (split_spaces(line, fields) == 3 && is_whole(fields[0]) && is_whole(fields[1])) {
    text += "; the third column is no time, which is a date or at least 1000000";
  }
  return text;
}

}  // namespace

bool EventLines::next(std::string_view& line) {
  while (!rest_.empty()) {
    line = next_line(rest_);
    ++number_;
    if (!std::all_of(line.begin(), line.end(), is_space)) return true;
  }
  return false;
}

bool is_number(std::string_view text) { return parse_number<double>(text).has_value(); }

bool is_whole(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

size_t EventLayout::split(std::string_view line, EventFields& fields) const {
  size_t count = 0;
  switch (format) {
    case InteractionsFormat::kInter:
      count = split_at(line, "\t", fields);
      break;
    case InteractionsFormat::kCsv:
      count = split_csv(line, fields);
      break;
    case InteractionsFormat::kRatingsDat:
      return split_at(line, "::", fields);
    case InteractionsFormat::kUserItem:
    case InteractionsFormat::kUserItemTime:
    case InteractionsFormat::kUserItemRatingTime:
      return split_spaces(line, fields);
  }
  if (count > kEventColumnsMax) return count;
  while (count > columns && trimmed(fields[count - 1]).empty()) --count;
  return count;
}

Result<EventLayout> detect_layout(std::string_view text, const std::string& path) {
  EventLines lines(text);
  std::string_view line;
  std::string_view first;
  int64_t first_number = 0;
  for (int seen = 0; seen < kLinesLookedAt && lines.next(line); ++seen) {
    if (seen == 0) {
      first = line;
      first_number = lines.number();
      if (is_inter_header(line, split_tabs)) return header_layout(InteractionsFormat::kInter, line, path, lines);
      if (const std::string separator = wrong_separator(line); !separator.empty()) {
        return invalid(header_found(path, lines.number(), line) + " of RecBole with " + separator +
                       " between its columns; expected tabs, there and in the lines below");
      }
      const auto layout = header_layout(InteractionsFormat::kCsv, line, path, lines);
      if (layout.ok() && layout->columns > 1) return layout;
    }
    if (std::optional<EventLayout> layout = layout_of_line(line)) {
      if (layout->format == InteractionsFormat::kUserItem) {
        layout->times_text = "none: the order of the lines counts as the order of time";
      } else {
        layout->times_text = "in the file";
      }
      return std::move(*layout);
    }
  }
  if (first.empty()) return invalid(path + " is empty: expected at least two users' interactions");
  return invalid(at_line(path, first_number) + ": found \"" + printable(first) + "\", " + unknown_form(first));
}

}  // namespace lockstep
