#include "runner/data/found_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include "runner/base/file_system.h"
#include "runner/base/plural.h"

namespace lockstep {
namespace {

constexpr size_t kEntriesPerProgress = 1000;

FoundFile found_file(const std::string& path, std::string relative, const struct stat& status) {
  return {.relative = std::move(relative),
          .path = path,
          .bytes = status.st_size,
          .changed_ns = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec};
}

// Lists a folder and those in it.
class FolderListing {
 public:
  FolderListing(const std::function<void()>& on_progress, std::vector<SkippedFile>& left_out)
      : on_progress_(on_progress), left_out_(left_out) {}

  // relative: the folder's path relative to the first one, which is "".
  Status list(const std::string& folder, const std::string& relative) {
    struct stat own = {};
    if (::stat(folder.c_str(), &own) != 0) return cannot_read(folder, std::generic_category().message(errno));
    const std::pair<dev_t, ino_t> identity(own.st_dev, own.st_ino);
    if (std::find(within_.begin(), within_.end(), identity) != within_.end()) {
      left_out_.push_back({relative, "is a link to a folder that it is in"});
      return {};
    }
    within_.push_back(identity);
    std::error_code error;
    std::filesystem::directory_iterator entries(folder, error);
    for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
      if (++seen_ % kEntriesPerProgress == 0) on_progress_();
      const std::string name = entries->path().filename().string();
      if (name.starts_with('.') || name == "lost+found") continue;
      TRY(add(entries->path().string(), relative.empty() ? name : join_path(relative, name)));
    }
    if (error) return cannot_read(folder, error.message());
    within_.pop_back();
    return {};
  }

  std::vector<FoundFile> files() && {
    std::sort(files_.begin(), files_.end(),
              [](const FoundFile& a, const FoundFile& b) { return a.relative < b.relative; });
    return std::move(files_);
  }

 private:
  static Error cannot_read(const std::string& folder, const std::string& why) {
    return Error{ErrorCode::kUnavailable, "cannot read the folder " + folder + ": " + why};
  }

  Status add(const std::string& path, const std::string& relative) {
    struct stat status = {};
    if (::stat(path.c_str(), &status) != 0) {
      const int reason = errno;
      const std::string why = why_not_there(path);
      if (!why.empty()) {
        left_out_.push_back({relative, why});
      } else if (reason != ENOENT) {  // else it was removed after the folder was listed
        left_out_.push_back({relative, "cannot be read: " + std::generic_category().message(reason)});
      }
    } else if (S_ISDIR(status.st_mode)) {
      TRY(list(path, relative));
    } else if (S_ISREG(status.st_mode)) {
      files_.push_back(found_file(path, relative, status));
    } else {
      left_out_.push_back({relative, "is no regular file"});
    }
    return {};
  }

  const std::function<void()>& on_progress_;
  std::vector<SkippedFile>& left_out_;
  std::vector<FoundFile> files_;
  std::vector<std::pair<dev_t, ino_t>> within_;  // the folders that are being listed, the innermost last
  size_t seen_ = 0;
};

}  // namespace

Result<std::filesystem::file_status> status_of(const std::string& path, std::string_view expected) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status)) return status;
  if (error && error != std::errc::no_such_file_or_directory) {
    return Error{ErrorCode::kUnavailable, "cannot read " + path + ": " + error.message()};
  }
  const std::string why = why_not_there(path);
  return Error{ErrorCode::kNotFound,
               path + " " + (why.empty() ? "does not exist" : why) + "; " + std::string(expected)};
}

Result<FoundFile> file_at(const std::string& path, std::string relative) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return error_of_errno(errno, "stat", path);
  if (!S_ISREG(status.st_mode)) return invalid(path + " is not a regular file");
  return found_file(path, std::move(relative), status);
}

Result<std::vector<FoundFile>> files_below(const std::string& folder, const std::function<void()>& on_progress,
                                           std::vector<SkippedFile>& left_out) {
  FolderListing listing(on_progress, left_out);
  const auto known = std::ssize(left_out);
  TRY(listing.list(folder, ""));
  std::sort(left_out.begin() + known, left_out.end(),
            [](const SkippedFile& a, const SkippedFile& b) { return a.file < b.file; });
  return std::move(listing).files();
}

std::string why_not_there(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(std::filesystem::symlink_status(path, error))) return {};
  const std::string target = std::filesystem::read_symlink(path, error).string();
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0) return {};
  if (errno == ELOOP) return "is a link that leads in a circle";
  if (errno == ENOENT || errno == ENOTDIR) return "is a link to " + target + ", which does not exist";
  return "is a link to " + target + ", which cannot be read: " + std::generic_category().message(errno);
}

std::string left_out_text(const std::vector<SkippedFile>& left_out) {
  if (left_out.empty()) return {};
  return "; left out " + std::to_string(left_out.size()) + ", the first " + left_out.front().file + ": " +
         left_out.front().reason;
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
  return joined(counts, ", ", [](const auto& count) { return count.first + " " + std::to_string(count.second); });
}

}  // namespace lockstep
