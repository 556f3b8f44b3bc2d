// AppendFile: a file of records, each written whole by one write(2) or not at all.
//
// Role: below metrics.jsonl and the TensorBoard events. Not fsynced: these files are for reading along, and what a
// machine's crash takes of them is cut back by the next start.
// Threads: one thread. Ownership: owns the descriptor.
// Errors: kUnavailable. A write error is returned once, then kept quiet until a write has succeeded again, so that a
// full disk is said once and not at every step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

// Of such a file, when it is opened again: it is copied then, while the other ranks wait, in less than a second.
inline constexpr uint64_t kLineFileBytesMax = uint64_t{64} << 20;

class AppendFile {
 public:
  enum class Mode { kCreateOrAppend, kMustBeNew };
  // kConflict: kMustBeNew, and the file is there.
  static Result<AppendFile> open(const std::string& path, Mode mode);

  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  ~AppendFile();

  Status append(std::string_view record);

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  AppendFile(std::string path, int fd, int64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}
  Status write_whole(std::string_view record);

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;      // of the whole records
  bool torn_ = false;     // bytes of a half-written record may stand behind size_
  bool failing_ = false;  // an error was returned and no write has succeeded since
};

// A file that grew too large to be copied at every start is moved to PATH.1, .2, …: the first name that nothing
// has, which is returned. Empty: it is not too large, or not there.
Result<std::string> move_too_large(FileSystem& fs, const std::string& path, uint64_t bytes_max);

}  // namespace lockstep
