// TextFiles: the texts of a folder, in pieces that can be read one at a time, by any thread.
//
// Role: a .txt file holds one text per line. A .json file holds one text or a list of texts, each as "…", {"text":
// "…"}, or {"prompt": "…", "answer": "…"} (joined by a newline). A .jsonl or .ndjson file holds one of these in each
// line, and so may a .json file. White space around texts is removed, and empty texts are left out. Files are read in
// pieces, so that the many short texts of a large file are not in memory at once; to find the pieces of a .json file,
// it is scanned once for the beginnings of its records. Threads: immutable once made; read() from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/data/found_files.h"

namespace lockstep {

class TextFiles {
 public:
  // A part of a file, in bytes. In a .json file with a list it begins at a record and ends where the next part begins.
  struct Span {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t first_record = 0;
  };

  // `path`: a folder (all files below it) or a file. Errors: kNotFound, kInvalid (says what was found and what was
  // expected), kUnavailable. `fs` outlives the texts. on_progress is called now and then.
  static Result<TextFiles> find(FileSystem& fs, const std::string& path, const std::function<void()>& on_progress);

  // "3 files of texts (.json 1, .txt 2); 2 other files (.md 2) are not read"
  [[nodiscard]] std::string summary() const;
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  // "notes.txt", or "notes.txt, piece 2 of 9".
  [[nodiscard]] std::string name(int64_t piece) const;
  // Errors, without the piece's name: kInvalid (not text, or not a list of texts: says which record), kUnavailable.
  [[nodiscard]] Result<std::vector<std::string>> read(int64_t piece) const;
  // Links that lead nowhere.
  [[nodiscard]] const std::vector<SkippedFile>& left_out() const { return left_out_; }
  // Changes when a file does.
  [[nodiscard]] std::string fingerprint() const { return fingerprint_of(files_); }

 private:
  // How a file holds its texts.
  enum class Form : uint8_t { kLines, kJson, kJsonLines };
  struct Piece {
    size_t file = 0;
    Form form = Form::kLines;
    int64_t number = 0;  // of the piece in its file, from 0
    int64_t count = 1;   // pieces of the file
    Span span;
  };

  explicit TextFiles(FileSystem& fs) : fs_(&fs) {}
  static Form form_of(FileSystem& fs, const FoundFile& file);

  FileSystem* fs_;
  std::vector<FoundFile> files_;
  std::vector<Piece> pieces_;
  std::vector<SkippedFile> left_out_;
  std::string others_;  // "; 2 other files (.md 2) are not read"
};

// The texts of a .json file, or of a part of it that begins with this record. Pure. Errors: kInvalid.
Result<std::vector<std::string>> texts_of_json(std::string_view text, const std::string& name,
                                               int64_t first_record = 0);

// The texts of JSON lines, each a record as in a list. Pure. Errors: kInvalid; the message shows the line.
Result<std::vector<std::string>> texts_of_json_lines(const std::vector<std::string>& lines);

// Is a file of this name read as a text file?
bool is_text_name(const std::string& name);

}  // namespace lockstep
