#include "runner/models/jit/data/text_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "runner/base/json.h"
#include "runner/base/one_line.h"
#include "runner/base/plural.h"
#include "runner/base/trimmed.h"
#include "runner/formats/open_text.h"

namespace lockstep {
namespace {

constexpr std::string_view kExpectedTexts =
    "expected a folder of .txt files (a text in each line), .json files (a list of texts) and .jsonl files (a text in "
    "JSON in each line), or one such file";
// About 50 short texts. Each becomes a picture, and up to 256 pieces are in memory at once (prepare_cache.cc).
constexpr int64_t kTextPieceBytes = int64_t{4} << 10;
// Largest .json file that is parsed as a whole, because it cannot be split into records.
constexpr uint64_t kJsonBytesMax = uint64_t{256} << 20;
// A longer line is taken as a sign that the file is not text.
constexpr size_t kLineBytesMax = size_t{16} << 20;

std::string_view without_mark(std::string_view line) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  return line.starts_with(kByteOrderMark) ? line.substr(kByteOrderMark.size()) : line;
}

Error no_text(const std::string& why) {
  return Error{ErrorCode::kInvalid, "holds " + why + ", and is no text; " + std::string(kExpectedTexts)};
}

// The lines that begin in [begin, end).
Result<std::vector<std::string>> lines_of(FileSystem& fs, const std::string& path, int64_t begin, int64_t end) {
  // With the byte before it: if `begin` is inside a line, that line belongs to the piece before.
  const int64_t first = std::max<int64_t>(begin - 1, 0);
  TRY_ASSIGN(std::string bytes, read_part(fs, path, static_cast<uint64_t>(first), static_cast<size_t>(end - first)));
  size_t at = 0;
  if (begin > 0) {
    at = bytes.find('\n') + 1;
    if (at == 0) return std::vector<std::string>();  // no line begins here
  }
  // The last line may end after `end`.
  while (at < bytes.size() && bytes.back() != '\n' && bytes.size() - at <= 2 * kLineBytesMax) {
    TRY_ASSIGN(const std::string more, read_part(fs, path, static_cast<uint64_t>(first) + bytes.size(), bytes.size()));
    if (more.empty()) break;
    bytes += more.substr(0, std::min(more.find('\n'), more.size() - 1) + 1);
  }
  std::vector<std::string> texts;
  std::string_view rest = std::string_view(bytes).substr(at);
  for (bool is_first = begin == 0; !rest.empty(); is_first = false) {
    const size_t length = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, length);
    rest.remove_prefix(std::min(length + 1, rest.size()));
    if (is_first) {
      line = without_mark(line);
      if (const std::string stray = stray_text(line); !stray.empty()) return Error{ErrorCode::kInvalid, stray};
    }
    if (line.size() > kLineBytesMax) {
      return no_text("a line of more than " + std::to_string(kLineBytesMax >> 20) + " MiB");
    }
    if (line.find('\0') != std::string_view::npos) return no_text("a byte 0");
    if (!trimmed(line).empty()) texts.emplace_back(trimmed(line));
  }
  return texts;
}

// Finds where the records of a JSON list begin, so that pieces can be parsed separately. It follows only strings and
// brackets; the parser checks what is between the commas.
class RecordScanner {
 public:
  // To be called with each byte of the file in order. False: this is not a list, or not a well-formed one.
  bool take(char c) {
    const int64_t at = at_++;
    if (in_string_) {
      in_string_ = is_escaped_ || c != '"';
      is_escaped_ = !is_escaped_ && c == '\\';
      return true;
    }
    if (is_blank(c)) return true;
    if (depth_ == 0) {
      const bool begins = c == '[' && !has_begun_;
      has_begun_ = true;
      depth_ = begins ? 1 : 0;
      return begins;
    }
    if (depth_ == 1 && c == ',') return std::exchange(in_record_, false);
    if (depth_ == 1 && c == ']') {
      depth_ = 0;
      end_ = at;
      return in_record_;
    }
    if (depth_ == 1 && !in_record_) {
      in_record_ = true;
      begin_record(at);
    }
    in_string_ = c == '"';
    depth_ += c == '[' || c == '{' ? 1 : 0;
    depth_ -= c == ']' || c == '}' ? 1 : 0;
    return depth_ > 0;
  }

  // To be called after the last byte; empty when the list has no end.
  [[nodiscard]] std::vector<TextFiles::Span> spans() && {
    if (!end_) return {};
    for (size_t i = 0; i < spans_.size(); ++i) spans_[i].end = i + 1 < spans_.size() ? spans_[i + 1].begin : *end_;
    return std::move(spans_);
  }

 private:
  static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
  void begin_record(int64_t at) {
    if (spans_.empty() || at - spans_.back().begin >= kTextPieceBytes) {
      spans_.push_back({.begin = at, .end = at, .first_record = records_});
    }
    ++records_;
  }

  int64_t at_ = 0;
  int64_t depth_ = 0;
  int64_t records_ = 0;
  bool has_begun_ = false;
  bool in_record_ = false;
  bool in_string_ = false;
  bool is_escaped_ = false;
  std::optional<int64_t> end_;  // place of the list's closing bracket
  std::vector<TextFiles::Span> spans_;
};

// The records of a .json file; empty when it must be parsed as a whole, which then reports what is wrong with it.
std::vector<TextFiles::Span> json_spans(FileSystem& fs, const FoundFile& file,
                                        const std::function<void()>& on_progress) {
  RecordScanner scanner;
  const Status scanned = read_file(fs, file.path, [&](const void* data, size_t bytes) -> Status {
    on_progress();
    const std::string_view piece(static_cast<const char*>(data), bytes);
    const bool is_list = std::all_of(piece.begin(), piece.end(), [&](char c) { return scanner.take(c); });
    return is_list ? Status() : invalid("no list");
  });
  return scanned.ok() ? std::move(scanner).spans() : std::vector<TextFiles::Span>();
}

// The records of one piece as a list of their own.
Result<std::string> json_list(FileSystem& fs, const std::string& path, const TextFiles::Span& span) {
  const auto size = static_cast<size_t>(span.end - span.begin);
  TRY_ASSIGN(std::string bytes, read_part(fs, path, static_cast<uint64_t>(span.begin), size));
  if (bytes.size() < size) return Error{ErrorCode::kUnavailable, path + " has become shorter while it was read"};
  bytes.resize(bytes.find_last_not_of(", \t\r\n") + 1);
  return "[" + bytes + "]";
}

constexpr std::string_view kExpectedRecord =
    "expected \"…\", {\"text\": \"…\"}, or {\"prompt\": \"…\", \"answer\": \"…\"}";

std::optional<std::string> text_of_record(const Json& record) {
  const auto field = [&](const char* key) -> const std::string* {
    const auto found = record.find(key);
    return found == record.end() ? nullptr : found->get_ptr<const std::string*>();
  };
  if (record.is_string()) return record.get<std::string>();
  if (!record.is_object()) return std::nullopt;
  if (field("text") != nullptr) return *field("text");
  if (field("prompt") != nullptr && field("answer") != nullptr) return *field("prompt") + "\n" + *field("answer");
  return std::nullopt;
}

}  // namespace

bool is_text_name(const std::string& name) {
  const std::string ending = lower_ending(name);
  return ending == ".txt" || ending == ".json" || ending == ".jsonl" || ending == ".ndjson";
}

Result<std::vector<std::string>> texts_of_json(std::string_view text, const std::string& name, int64_t first_record) {
  TRY_ASSIGN(Json list, parse_json(text, name));
  if (!list.is_array()) {
    Json one = std::move(list);
    list = Json::array();
    list.push_back(std::move(one));
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::optional<std::string> found = text_of_record(list[i]);
    if (!found) {
      return Error{ErrorCode::kInvalid, "record " + std::to_string(first_record + static_cast<int64_t>(i) + 1) +
                                            " is no text: " + std::string(kExpectedRecord)};
    }
    if (!trimmed(*found).empty()) texts.emplace_back(trimmed(*found));
  }
  return texts;
}

Result<std::vector<std::string>> texts_of_json_lines(const std::vector<std::string>& lines) {
  constexpr size_t kShown = 60;  // bytes of a line in a message
  std::vector<std::string> texts;
  for (const std::string& line : lines) {
    const auto shown = [&] { return "the line " + printable(std::string_view(line).substr(0, kShown)); };
    const Result<Json> record = parse_json(line, "the line");
    if (!record.ok()) {
      return Error{ErrorCode::kInvalid,
                   shown() + " is no JSON; expected one text in JSON in each line: " + std::string(kExpectedRecord)};
    }
    const std::optional<std::string> found = text_of_record(*record);
    if (!found) return Error{ErrorCode::kInvalid, shown() + " is no text: " + std::string(kExpectedRecord)};
    if (!trimmed(*found).empty()) texts.emplace_back(trimmed(*found));
  }
  return texts;
}

// By the ending; a .json file whose first line is an object or a text by itself, and not the last line, is JSON lines.
TextFiles::Form TextFiles::form_of(FileSystem& fs, const FoundFile& file) {
  const std::string ending = lower_ending(file.relative);
  if (ending == ".jsonl" || ending == ".ndjson") return Form::kJsonLines;
  if (ending != ".json") return Form::kLines;
  std::string line;  // the first one that is not blank
  bool is_whole = false;
  bool has_another = false;
  // Stops, by an error, as soon as the answer is known.
  const Status read = read_file(fs, file.path, [&](const void* data, size_t bytes) -> Status {
    std::string_view rest(static_cast<const char*>(data), bytes);
    while (!is_whole && !rest.empty()) {
      const size_t length = std::min(rest.find('\n'), rest.size());
      line += rest.substr(0, length);
      const bool is_ended = length < rest.size();
      rest.remove_prefix(is_ended ? length + 1 : length);
      if (is_ended && trimmed(without_mark(line)).empty()) {
        line.clear();
      } else {
        is_whole = is_ended;
      }
    }
    const std::string_view first = trimmed(without_mark(line));
    has_another = is_whole && !trimmed(rest).empty();
    const bool is_record = first.empty() || first.starts_with('{') || first.starts_with('"');
    return is_record && !has_another && line.size() <= kLineBytesMax ? Status() : invalid("known");
  });
  const std::string_view first = trimmed(without_mark(line));
  const bool is_record = first.starts_with('{') || first.starts_with('"');
  return has_another && is_record && parse_json(first, "the first line").ok() ? Form::kJsonLines : Form::kJson;
}

Result<TextFiles> TextFiles::find(FileSystem& fs, const std::string& path, const std::function<void()>& on_progress) {
  TRY_ASSIGN(const std::filesystem::file_status status, status_of(path, kExpectedTexts));
  TextFiles texts(fs);
  std::vector<FoundFile> all;
  if (std::filesystem::is_directory(status)) {
    TRY_ASSIGN(all, files_below(path, on_progress, texts.left_out_));
  } else {
    TRY_ASSIGN(FoundFile file, file_at(path, base_name(path)));
    all.push_back(std::move(file));
  }
  std::copy_if(all.begin(), all.end(), std::back_inserter(texts.files_),
               [](const FoundFile& file) { return is_text_name(file.relative); });
  std::vector<FoundFile> others;
  std::copy_if(all.begin(), all.end(), std::back_inserter(others), [](const FoundFile& file) {
    return !is_text_name(file.relative) && !file.relative.ends_with(".cache");
  });
  if (!others.empty()) {
    texts.others_ = "; " + plural(others.size(), "other file") + " (" + counts_by_ending(others, lower_ending) + ") " +
                    (others.size() == 1 ? "is" : "are") + " not read";
  }
  if (texts.files_.empty()) {
    return Error{ErrorCode::kInvalid, "no texts in " + path + ": found " +
                                          (all.empty() ? "no files" : counts_by_ending(all, lower_ending)) +
                                          left_out_text(texts.left_out_) + ", " + std::string(kExpectedTexts)};
  }
  for (size_t i = 0; i < texts.files_.size(); ++i) {
    const FoundFile& file = texts.files_[i];
    std::vector<Span> spans;
    const Form form = form_of(fs, file);
    if (form == Form::kJson) {
      if (file.bytes > kTextPieceBytes) spans = json_spans(fs, file, on_progress);
    } else {
      for (int64_t begin = 0; begin < file.bytes; begin += kTextPieceBytes) {
        spans.push_back({.begin = begin, .end = std::min(file.bytes, begin + kTextPieceBytes)});
      }
    }
    if (spans.empty()) spans.push_back({.begin = 0, .end = file.bytes});
    const auto count = std::ssize(spans);
    for (int64_t number = 0; number < count; ++number) {
      texts.pieces_.push_back(
          {.file = i, .form = form, .number = number, .count = count, .span = spans[static_cast<size_t>(number)]});
    }
  }
  return texts;
}

std::string TextFiles::summary() const {
  return plural(files_.size(), "file") + " of texts (" + counts_by_ending(files_, lower_ending) + ")" + others_;
}

std::string TextFiles::name(int64_t piece) const {
  const Piece& p = pieces_[static_cast<size_t>(piece)];
  const std::string& file = files_[p.file].relative;
  return p.count == 1 ? file : file + ", piece " + std::to_string(p.number + 1) + " of " + std::to_string(p.count);
}

Result<std::vector<std::string>> TextFiles::read(int64_t piece) const {
  const Piece& p = pieces_[static_cast<size_t>(piece)];
  const FoundFile& file = files_[p.file];
  if (p.form != Form::kJson) {
    TRY_ASSIGN(std::vector<std::string> lines, lines_of(*fs_, file.path, p.span.begin, p.span.end));
    return p.form == Form::kLines ? std::move(lines) : texts_of_json_lines(lines);
  }
  if (p.span.begin > 0) {  // a piece of a list: records begin after the list's opening bracket
    TRY_ASSIGN(const std::string list, json_list(*fs_, file.path, p.span));
    return texts_of_json(list, file.relative, p.span.first_record);
  }
  TRY_ASSIGN(std::string bytes, read_file(*fs_, file.path, kJsonBytesMax));
  TRY_ASSIGN(const OpenedText opened, decode_text(std::move(bytes), "the file", kJsonBytesMax));
  return texts_of_json(opened.text, file.relative, 0);
}

}  // namespace lockstep
