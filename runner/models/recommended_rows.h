// RecommendedRows: writes what the `recommend` tasks find. Threads: one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/contract/exit_code.h"
#include "runner/models/row_format_flags.h"

namespace lockstep {

// An item that is recommended to a user, or a user to whom an item is.
struct Recommended {
  std::string_view id;
  std::string_view title;
  float score = 0.0F;
};

class RecommendedRows {
 public:
  // `out` must outlive this object.
  RecommendedRows(RowFormat format, bool has_titles, const ByteSink& out);

  // The items of one user, the best first: a line of JSON, or a row for each.
  void add_items(std::string_view user, const std::vector<Recommended>& items);
  // The users of one item, the best first.
  void add_users(std::string_view item, std::string_view title, const std::vector<Recommended>& users);
  // Writes what was added. Failure: kCheckpoint.
  std::optional<Failure> write();

 private:
  void add_row(std::string_view user, std::string_view item, std::string_view title, float score);

  RowFormat format_;
  bool has_titles_;
  const ByteSink& out_;
  std::string text_;
};

}  // namespace lockstep
