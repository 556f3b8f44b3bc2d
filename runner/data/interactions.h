// Interactions: which user chose which items, in which order; read from the usual formats of recommender data.
//
// Role: file → sequences per user in CSR form, with a report of what was dropped and why.
// Formats, recognised by content, not by the file's name alone; open_text.h says which encodings are read:
//   user item                    white space; 1-based ids are kept; a user's lines are in the order of time
//   user item time               tab or spaces
//   user item rating timestamp   tab or spaces (u.data of MovieLens-100K)
//   ratings.dat                  user::item::rating::timestamp (MovieLens-1M)
//   CSV                          a header with a user and an item (ratings.csv of MovieLens, Amazon 2023), or none and
//                                user,item,rating,timestamp (Amazon; item,user,… by the form of its ids)
//   .inter                       RecBole: header of name:type columns; user_id and item_id, a column of times; any
//                                column order; item_id_list:token_seq holds several items of a user
//   zip archive                  of one of these, as MovieLens and RecBole publish them
// Ids of CSV and .inter may be any token. Times: numbers, or dates such as 2015-03-02 or 2015-03-02T10:00:00Z.
// Order: stably by (user, timestamp as written, line); MovieLens has many equal timestamps, so the tie rule is part of
// the protocol. Fractions of a second are rounded after the sort. An event that equals another of the same user with
// its time is dropped. Ids: all formats but `user item` are renumbered 1 … U and 1 … I in the order of first appearance
// in the file, over the lines that --min_count keeps. Threads: pure, except that read_interactions reads the file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

// Item and user 0 do not exist: 0 is padding.
struct Interactions {
  int64_t num_users = 0;
  int64_t num_items = 0;
  std::vector<int64_t> offsets;     // num_users + 2 entries; events of user u are [offsets[u], offsets[u + 1])
  std::vector<int32_t> items;       // in [1, num_items], all users one after the other
  std::vector<int64_t> timestamps;  // seconds, beside items; empty when the file has none

  [[nodiscard]] std::span<const int32_t> items_of(int64_t user) const;
};

enum class InteractionsFormat { kUserItem, kUserItemTime, kUserItemRatingTime, kRatingsDat, kCsv, kInter };
const char* to_string(InteractionsFormat format);
// Are the ids of the file its users' and items' numbers? In the other formats both are renumbered.
inline bool keeps_ids(InteractionsFormat format) { return format == InteractionsFormat::kUserItem; }

struct BadLine {
  int64_t line = 0;  // from 1
  std::string text;  // at most 80 characters, printable
  std::string reason;
};

struct InteractionsReport {
  std::string path;
  InteractionsFormat format = InteractionsFormat::kUserItem;
  std::string columns;  // of a file with a header, or of CSV: "user reviewerID, item asin, time unixReviewTime"
  // Where the times come from: "column time:float", "in the file"; or why there are none, and that the order of the
  // lines counts in their place.
  std::string times;
  std::string encoding;  // encoding_note(); empty for plain UTF-8
  int64_t lines = 0;     // lines that are neither blank nor a header
  int64_t bad_lines = 0;
  std::vector<BadLine> bad_samples;  // the first ReadOptions::names_max
  int64_t equal_events = 0;          // dropped: the same user, item and time as another line
  int64_t repeated_events = 0;       // of a file without times: kept, as the user may have chosen the item again
  int64_t rounded_times = 0;         // with a fraction of a second
  int64_t min_count = 0;             // the value that was applied; 0 = none
  int64_t dropped_users = 0;         // with fewer than min_count lines
  int64_t dropped_items = 0;
  int64_t dropped_events = 0;
  std::vector<std::string> dropped_user_names;  // the first names_max, in the order of first appearance
  std::vector<std::string> dropped_item_names;
  int64_t events = 0;  // kept
};

// The ids in the file, by their new number from 1. Stored in one string: a million ids of eight letters take 16 MB.
class OriginalIds {
 public:
  void add(std::string_view id) {
    text_.append(id);
    ends_.push_back(text_.size());
  }
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(ends_.size()); }
  // The result points into this object.
  [[nodiscard]] std::string_view id(int64_t number) const;

 private:
  std::string text_;
  std::vector<size_t> ends_;
};

struct Dataset {
  Interactions interactions;
  InteractionsReport report;
  // Of the items' ids in the order of their numbers; empty where the ids are the numbers. An item's number is its row
  // in a trained model, so two files with the same digest may be used with the same model.
  std::string items_sha256 = {};
  OriginalIds users = {};  // with ReadOptions::original_ids; else empty
  OriginalIds items = {};
};

struct ReadOptions {
  // Users and items with fewer lines are dropped. Both are counted once over the whole file; this is not repeated until
  // nothing changes. nullopt: 5, or 0 for the format `user item`.
  std::optional<int64_t> min_count = std::nullopt;
  double max_bad_lines = 0.01;  // fraction of lines that may be malformed
  bool original_ids = false;    // keep the ids of the file; training does not need them, and they take memory
  size_t names_max = 3;         // of bad lines, dropped users and dropped items that the report holds
};

// A dataset's file. `dataset` is a path to a file or folder, or a name looked for under data_dir as NAME.txt,
// NAME.inter, NAME.csv, NAME, NAME.zip, and as ratings.dat, ratings.csv, u.data, NAME.inter or NAME.txt in the folder
// data_dir/NAME or else ./NAME. kNotFound lists the places tried.
Result<std::string> resolve_dataset(const std::string& dataset, const std::string& data_dir);

// Errors: kNotFound; kUnavailable (not readable); kInvalid (empty, unknown format, one user only, ids too small or too
// large, too many malformed lines). Each names the file, and the line where there is one. `on_progress` is called after
// every few megabytes, because reading a large file from a slow volume takes minutes and must not be taken for a hang.
Result<Dataset> read_interactions(
    FileSystem& fs, const std::string& path, const ReadOptions& options,
    const std::function<void()>& on_progress = [] {});

// The same from memory; `path` is used in messages only.
Result<Dataset> parse_interactions(
    std::string_view text, const std::string& path, const ReadOptions& options,
    const std::function<void()>& on_progress = [] {});

// Does one of the first lines of this file, or of a data set in this zip archive, match a format? False if it cannot be
// read.
bool has_known_format(FileSystem& fs, const std::string& path);

// Leave-one-out: the last event is the test, the one before it the validation, the rest is trained on.
// Users with fewer than `events_min` events are trained on whole and not evaluated.
struct UserSplit {
  std::span<const int32_t> train;  // borrowed from the Interactions
  int32_t valid = 0;               // 0 = not evaluated
  int32_t test = 0;
  [[nodiscard]] bool evaluated() const { return test != 0; }
};
UserSplit leave_one_out(const Interactions& interactions, int64_t user, int64_t events_min = 4);

}  // namespace lockstep
