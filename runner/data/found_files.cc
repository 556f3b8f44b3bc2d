#include "runner/data/found_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "runner/base/file_system.h"

namespace lockstep {
namespace {

constexpr size_t kEntriesPerProgress = 1000;

}  // namespace

Result<std::filesystem::file_status> status_of(const std::string& path, std::string_view expected) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status)) return status;
  if (error && error != std::errc::no_such_file_or_directory) {
    return Error{ErrorCode::kUnavailable, "cannot read " + path + ": " + error.message()};
  }
  return Error{ErrorCode::kNotFound, path + " does not exist; " + std::string(expected)};
}

Result<FoundFile> look_at(const std::string& path, std::string relative) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return error_of_errno(errno, "stat", path);
  if (!S_ISREG(status.st_mode)) return invalid(path + " is not a regular file");
  return FoundFile{.relative = std::move(relative),
                   .path = path,
                   .bytes = status.st_size,
                   .changed_ns = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec};
}

Result<std::vector<FoundFile>> files_below(const std::string& folder, const std::function<void()>& on_progress) {
  std::vector<FoundFile> files;
  std::error_code error;
  size_t seen = 0;
  std::filesystem::recursive_directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::end(entries); entries.increment(error)) {
    if (++seen % kEntriesPerProgress == 0) on_progress();
    const std::string name = entries->path().filename().string();
    if (name.starts_with('.') || name == "lost+found") {
      entries.disable_recursion_pending();
      continue;
    }
    std::error_code ignored;
    if (!entries->is_regular_file(ignored)) continue;
    TRY_ASSIGN(FoundFile file, look_at(entries->path().string(), entries->path().lexically_relative(folder).string()));
    files.push_back(std::move(file));
  }
  if (error) return Error{ErrorCode::kUnavailable, "cannot read the folder " + folder + ": " + error.message()};
  std::sort(files.begin(), files.end(), [](const FoundFile& a, const FoundFile& b) { return a.relative < b.relative; });
  return files;
}

std::string fingerprint_of(const std::vector<FoundFile>& files) {
  std::string text;
  for (const FoundFile& file : files) {
    text += file.relative + "\n" + std::to_string(file.bytes) + " " + std::to_string(file.changed_ns) + "\n";
  }
  return text;
}

std::string lower_ending(const std::string& name) {
  std::string ending = std::filesystem::path(name).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return ending;
}

std::string counts_by_ending(const std::vector<FoundFile>& files,
                             const std::function<std::string(const std::string& name)>& ending_of) {
  std::map<std::string, size_t> counts;
  for (const FoundFile& file : files) {
    const std::string ending = ending_of(file.relative);
    ++counts[ending.empty() ? "without an ending" : ending];
  }
  std::string text;
  for (const auto& [ending, count] : counts) text += (text.empty() ? "" : ", ") + ending + " " + std::to_string(count);
  return text;
}

}  // namespace lockstep
