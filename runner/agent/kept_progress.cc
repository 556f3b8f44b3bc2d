#include "runner/agent/kept_progress.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

int64_t newest_file_time(const std::string& folder) {
  int64_t newest = kNoFile;
  if (folder.empty()) return newest;
  int looked_at = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (++looked_at > kCheckpointFilesLookedAt) break;
    std::error_code gone;
    const auto time = it->last_write_time(gone);
    if (!gone && it->is_regular_file(gone)) newest = std::max<int64_t>(newest, time.time_since_epoch().count());
  }
  return newest;
}

}  // namespace

bool KeptProgress::on_first_step(int64_t first_step) {
  const int64_t newest_file = newest_file_time(folder_);
  const bool is_first_start = furthest_ == 0;
  const bool is_further = first_step > furthest_ || newest_file > newest_file_;
  furthest_ = std::max(furthest_, first_step);
  newest_file_ = std::max(newest_file_, newest_file);
  return is_further && !is_first_start;
}

}  // namespace lockstep
