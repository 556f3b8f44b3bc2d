// TextFiles: the texts of a folder, in pieces that can be read one at a time, by any thread.
//
// Role: .txt files hold a text in each line; .json files a list of texts, or one: "…", {"text": "…"}, or {"prompt":
// "…", "answer": "…"}, which are one text with a line's end between them. White space around a text and empty ones are
// left out. A file is read in pieces, so that many short texts of one file never are in memory at once: a .json file is
// looked through once for where its records begin. Threads: constant once made; read() from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/found_files.h"

namespace lockstep {

class TextFiles {
 public:
  // A part of a file. Of a .json file it begins with a record of the list, and ends where the next one does.
  struct Span {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t first_record = 0;
  };

  // A folder (all files below it) or a file. Errors: kNotFound, kInvalid (says what is there and what was expected),
  // kUnavailable. on_progress: now and then.
  static Result<TextFiles> find(const std::string& path, const std::function<void()>& on_progress);

  // "3 files (.json 1, .txt 2)"
  [[nodiscard]] std::string summary() const;
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  // "notes.txt", or "notes.txt, piece 2 of 9".
  [[nodiscard]] std::string name(int64_t piece) const;
  // Errors: kInvalid (bytes that are no text, or no list of texts: says which record), kUnavailable; without the name.
  [[nodiscard]] Result<std::vector<std::string>> read(int64_t piece) const;
  // Changes when a file does.
  [[nodiscard]] std::string fingerprint() const { return fingerprint_of(files_); }

 private:
  struct Piece {
    size_t file = 0;
    int64_t number = 0;  // of `count`
    int64_t count = 1;
    Span span;
  };

  std::vector<FoundFile> files_;
  std::vector<Piece> pieces_;
};

// The texts of a .json file, or of a part of it that begins with this record. Pure. Errors: kInvalid.
Result<std::vector<std::string>> texts_of_json(std::string_view text, const std::string& name,
                                               int64_t first_record = 0);

// Is a file of this name taken for one?
bool is_text_name(const std::string& name);

}  // namespace lockstep
