#include "runner/models/recommended_rows.h"

#include <array>
#include <charconv>
#include <utility>

#include "runner/base/json.h"

namespace lockstep {
namespace {

// The shortest text that reads back as the same float.
std::string score_text(float score) {
  std::array<char, 32> text{};  // the longest has 15 characters
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), score).ptr};
}

// The double that JSON prints as score_text(score).
double score_number(float score) {
  const std::string text = score_text(score);
  double number = 0.0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

RecommendedRows::RecommendedRows(RowFormat format, bool has_titles, const ByteSink& out)
    : format_(format), has_titles_(has_titles), out_(out) {
  if (format_ == RowFormat::kTsv) text_ = has_titles_ ? "user\titem\tscore\ttitle\n" : "user\titem\tscore\n";
}

void RecommendedRows::add_items(std::string_view user, const std::vector<Recommended>& items) {
  if (format_ == RowFormat::kTsv) {
    for (const Recommended& item : items) add_row(user, item.id, item.title, item.score);
    return;
  }
  OrderedJson list = OrderedJson::array();
  for (const Recommended& item : items) {
    OrderedJson& entry = list.emplace_back(OrderedJson{{"item", item.id}});
    if (has_titles_) entry["title"] = item.title;
    entry["score"] = score_number(item.score);
  }
  text_ += dump_line(OrderedJson{{"user", user}, {"items", std::move(list)}}) + "\n";
}

void RecommendedRows::add_users(std::string_view item, std::string_view title, const std::vector<Recommended>& users) {
  if (format_ == RowFormat::kTsv) {
    for (const Recommended& user : users) add_row(user.id, item, title, user.score);
    return;
  }
  OrderedJson list = OrderedJson::array();
  for (const Recommended& user : users) list.push_back({{"user", user.id}, {"score", score_number(user.score)}});
  text_ += dump_line(OrderedJson{{"item", item}, {"title", title}, {"users", std::move(list)}}) + "\n";
}

std::optional<Failure> RecommendedRows::write() {
  const Status written = out_(text_.data(), text_.size());
  text_.clear();
  if (!written.ok()) return Failure{ExitCode::kCheckpoint, written.error().message};
  return std::nullopt;
}

void RecommendedRows::add_row(std::string_view user, std::string_view item, std::string_view title, float score) {
  text_.append(user).append("\t").append(item).append("\t").append(score_text(score));
  if (has_titles_) text_.append("\t").append(title);
  text_.append("\n");
}

}  // namespace lockstep
