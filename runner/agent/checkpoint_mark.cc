#include "runner/agent/checkpoint_mark.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "runner/base/json.h"

namespace lockstep {
namespace {

// The mark has a fixed width, so that writing it over an earlier one with one call always leaves a complete mark.
constexpr int kMarkBytes = 20;

}  // namespace

void leave_checkpoint_mark(const std::string& path, int64_t step) {
  if (path.empty()) return;
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  if (step <= read_checkpoint_mark(fd)) {
    ::close(fd);
    return;
  }
  std::array<char, kMarkBytes + 1> text{};
  std::snprintf(text.data(), text.size(), "%020lld", static_cast<long long>(step));
  [[maybe_unused]] const ssize_t written = ::write(fd, text.data(), kMarkBytes);
  ::close(fd);
}

int64_t read_checkpoint_mark(int fd) {
  std::array<char, kMarkBytes> text{};
  if (::pread(fd, text.data(), text.size(), 0) != kMarkBytes) return -1;
  return parse_number({text.data(), text.size()}).value_or(-1);
}

}  // namespace lockstep
