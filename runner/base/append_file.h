// AppendFile: a file of records, each written whole or not at all.
//
// Role: used for metrics.jsonl, the TensorBoard events, recoveries.jsonl and the output of ranks. Not fsynced: these
// files are for watching a run, and after a crash of the machine the next start removes an incomplete last record.
// Threads: one thread. Ownership: owns the open file of `fs`, which outlives it.
// Errors: kUnavailable. After a write error further errors are not returned until a write has succeeded again, so that
// a full disk is reported once and not at every step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

// Largest file that is opened again. It is copied then, while the other ranks wait; at this size that takes less than a
// second.
inline constexpr uint64_t kLineFileBytesMax = uint64_t{64} << 20;

class AppendFile {
 public:
  // Errors: as FileSystem::open_for_append.
  static Result<AppendFile> open(FileSystem& fs, const std::string& path, FileSystem::Append append);
  // Replaces the file by a new one that begins with `text`. What appends to the old one goes on there; and this one
  // appends to the new one even if another process has replaced it meanwhile, because its path is not opened again.
  // `temporary`: a path on the same volume that no other process uses.
  static Result<AppendFile> replace(FileSystem& fs, const std::string& path, std::string_view text,
                                    const std::string& temporary);

  Status append(std::string_view record);

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  AppendFile(std::string path, OpenFile file) : path_(std::move(path)), file_(std::move(file)) {}
  Status write_whole(std::string_view record);

  std::string path_;
  OpenFile file_;
  uint64_t size_ = 0;     // of the whole records
  bool torn_ = false;     // bytes of an incomplete record may follow size_
  bool failing_ = false;  // an error was returned and no write has succeeded since
};

// Moves a file that is larger than bytes_max to the first free name of PATH.1, .2, …, and returns that name. Empty: it
// is not too large, or does not exist.
Result<std::string> move_too_large(FileSystem& fs, const std::string& path, uint64_t bytes_max);

}  // namespace lockstep
