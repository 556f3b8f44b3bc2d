// Opens a text file of a user's. Whatever an editor, a spreadsheet or a download made of it, its reader gets UTF-8.
//
// Role: the one way to open text for all formats: ratings, titles, lists of ids, PDB, mmCIF, FASTA, JSON, merges.
//   byte order mark             removed
//   UTF-16                      converted if it has a byte order mark, else refused by name
//   lines that are not UTF-8    each by itself as Windows-1252 (Latin-1 with more characters), and counted
//   line ends                   "\n" and "\r\n" stay, as next_line() knows both; a "\r" alone becomes "\n"
//   gzip                        unpacked
//   Git LFS pointer, web page, other archives and Parquet    refused by name, with what to do
// Clean UTF-8 is only checked, and not copied. Threads: pure, except that files are read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

struct OpenedText {
  std::string text;  // UTF-8 without a byte order mark
  bool was_gzip = false;
  bool was_utf16 = false;
  int64_t foreign_lines = 0;           // that were not UTF-8, and were read as Windows-1252
  std::vector<int64_t> foreign_first;  // numbers of the first of them, from 1
};

// What the start table says about a text that was not plain UTF-8, without the file's name: "3 lines are not UTF-8 and
// were read as Windows-1252 (2, 7, 19)". Empty when there is nothing to say.
std::string encoding_note(const OpenedText& opened);

// Errors: those of read_file; kInvalid (no regular file, more than bytes_max bytes, or no text: says what it is). Each
// names the path. on_progress is called after every few megabytes.
Result<OpenedText> open_text(
    FileSystem& fs, const std::string& path, uint64_t bytes_max, const std::function<void()>& on_progress = [] {});

// The same of bytes that are already in memory, for example of a pipe; `name` is used in messages.
Result<OpenedText> decode_text(std::string bytes, const std::string& name, uint64_t bytes_max);

// The beginning of a text file, to find out what it holds: of its first bytes_max bytes what can be decoded. Empty when
// the file cannot be read or is no text.
std::string head_of_text(FileSystem& fs, const std::string& path, size_t bytes_max);

// Says what a file is that was put in the place of another: "is a Git LFS pointer, not the file itself: …". `head`: its
// first bytes. Empty: none of the kinds that are known. Also for files that are no texts, such as weights.
std::string stray_file(std::string_view head);
// The same for a text: archives, too.
std::string stray_text(std::string_view head);

// Windows-1252 as UTF-8; its five unused bytes become the control characters that Latin-1 has there.
std::string utf8_of_windows1252(std::string_view text);

}  // namespace lockstep
