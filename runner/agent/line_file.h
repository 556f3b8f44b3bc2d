// LineFile: reads the lines of a file that another process appends to. Each call of read() goes on where the last one
// ended; a line without its end is not read yet, since its writer may take it back (telemetry/append_file.h).
//
// Threads: one. Ownership: owns the descriptor. No link and nothing but a plain file is opened.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "runner/base/result.h"

namespace lockstep {

inline constexpr size_t kFileLineMax = 64 * 1024;  // bytes; a longer line is left out

class LineFile {
 public:
  static Result<LineFile> open(const std::string& path);
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&& other) noexcept;
  ~LineFile();

  // The path leads to another file now, or to none, or the file is shorter than what was read of it.
  [[nodiscard]] bool is_replaced() const;

  struct Taker {
    std::function<void(std::string_view)> line;  // without its end
    std::function<void()> too_long;
  };
  // Hands out whole lines until about bytes_max bytes are read. kUnavailable: an input/output error.
  Status read(uint64_t bytes_max, const Taker& taker);
  // read() stopped at its bytes_max: another call would hand out more at once.
  [[nodiscard]] bool is_behind() const { return is_behind_; }

 private:
  LineFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
  uint64_t offset_ = 0;       // of the first byte that was not handed out
  bool is_skipping_ = false;  // the rest of a line that is too long
  bool is_behind_ = true;
};

}  // namespace lockstep
