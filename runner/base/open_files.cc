#include "runner/base/open_files.h"

#include <sys/resource.h>

#include <cerrno>
#include <filesystem>
#include <limits>
#include <system_error>

namespace lockstep {
namespace {

// `if_full`: when even the list of them cannot be opened.
int64_t count_open_files(int64_t if_full) {
  std::error_code error;
  int64_t count = -1;  // the list itself
  for (auto it = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    ++count;
  }
  return error == std::errc::too_many_files_open ? if_full : count;
}

}  // namespace

void raise_open_files_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string open_files_hint(std::string_view failure, int64_t needed) {
  const auto says = [failure](int error) {
    return failure.find(std::generic_category().message(error)) != std::string_view::npos;
  };
  if (says(ENFILE)) {
    return "; the whole machine has as many files open as its kernel allows: raise fs.file-max there";
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return "";
  const int64_t most =
      limit.rlim_cur == RLIM_INFINITY ? std::numeric_limits<int64_t>::max() / 2 : static_cast<int64_t>(limit.rlim_cur);
  const int64_t open = count_open_files(most);
  const bool is_too_many = needed > 0 && open + needed > most;
  if (!says(EMFILE) && !is_too_many) return "";
  return "; this process may have " + std::to_string(most) + " files and sockets open and has " + std::to_string(open) +
         (is_too_many ? ", and needs " + std::to_string(needed) + " more" : "") +
         ": raise the hard limit (ulimit -Hn, or the container runtime's LimitNOFILE)";
}

}  // namespace lockstep
