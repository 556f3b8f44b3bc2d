// LineFile: reads the lines of a file that another process appends to. Each call of read() continues where the last one
// ended. A last line without '\n' is not read yet, because its writer may remove it (base/append_file.h).
//
// Threads: one. Ownership: owns the open file of `fs`, which outlives it. Opens only regular files; give it a `fs` that
// follows no links and waits for no pipes (PosixFileSystem::Links::kRefused).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

inline constexpr size_t kFileLineMax = 64 * 1024;  // bytes; longer lines are skipped

class LineFile {
 public:
  static Result<LineFile> open(FileSystem& fs, const std::string& path);

  // True when the path is now another file or none, or the file is shorter than what was read of it.
  [[nodiscard]] bool is_replaced() const;

  struct LineConsumer {
    std::function<void(std::string_view)> line;  // without '\n'
    std::function<void()> too_long;
  };
  // Passes complete lines to `consumer` until about bytes_max bytes are read. kUnavailable: an input/output error.
  Status read(uint64_t bytes_max, const LineConsumer& consumer);
  // True when read() stopped because of bytes_max, so another call would read more.
  [[nodiscard]] bool is_behind() const { return is_behind_; }

 private:
  LineFile(std::string path, OpenFile file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  OpenFile file_;
  uint64_t offset_ = 0;       // offset of the first byte that was not passed on
  bool is_skipping_ = false;  // skipping the rest of a line that is too long
  bool is_behind_ = true;
};

}  // namespace lockstep
