// Common parts of the cache files of prepared data (structures, images): mapping, and the list of skipped files.
//
// Threads: pure, except map_cache_file. Truncating a file while it is mapped ends the process (SIGBUS), as with every
// mapped file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep {

// A file that could not be read when the cache was made. Also a remark about a file that was read: then `reason` says
// what was done with it.
struct SkippedFile {
  std::string file;
  std::string reason;
  friend bool operator==(const SkippedFile&, const SkippedFile&) = default;
};

// For messages: "2 files that cannot be read, the first b/4.png: cannot be decoded". `skipped` is not empty.
std::string skipped_summary(const std::vector<SkippedFile>& skipped);
// Rows of the start table under one label: "b/4.png: cannot be decoded" for each of the first two, the second with the
// number of the others; with show_all for each.
std::vector<std::pair<std::string, std::string>> rows_of_files(const std::string& label,
                                                               const std::vector<SkippedFile>& files, bool show_all);

struct CacheBytes {
  std::shared_ptr<const void> memory;  // keeps `bytes` alive: a mapping or a string
  std::string_view bytes;
};

// Errors: those of the disk. For an empty file, or a path that is not a regular file, `bytes` is empty.
Result<CacheBytes> map_cache_file(FileSystem& fs, const std::string& path);

// JSON: [[file, reason], …]
std::string skipped_text(const std::vector<SkippedFile>& skipped);
// kCorrupt for any other value; the message says only what is wrong.
Result<std::vector<SkippedFile>> skipped_files_of(const Json& list);

uint32_t crc32_of(std::string_view bytes);

}  // namespace lockstep
