#include "runner/formats/text_folder.h"

#include <algorithm>
#include <filesystem>
#include <utility>

namespace lockstep {
namespace {

constexpr uint64_t kArchiveBytesMax = uint64_t{4} << 30;
constexpr std::string_view kZipMagic = "PK\x03\x04";

bool is_hidden(const std::string& name) {
  return name.starts_with("__MACOSX/") || name.starts_with('.') || name.find("/.") != std::string::npos;
}

// The length of the folder, with its "/", in which all these files are.
size_t common_folder(const std::vector<std::string>& names) {
  if (names.empty()) return 0;
  const auto [first, last] = std::minmax_element(names.begin(), names.end());
  const auto differs = std::mismatch(first->begin(), first->end(), last->begin(), last->end());
  const std::string shared(first->begin(), differs.first);
  const size_t slash = shared.rfind('/');
  return slash == std::string::npos ? 0 : slash + 1;
}

}  // namespace

bool is_zip_file(FileSystem& fs, const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  const Result<std::string> head = read_part(fs, path, 0, kZipMagic.size());
  return head.ok() && *head == kZipMagic;
}

Result<TextFolder> TextFolder::open(FileSystem& fs, const std::string& path, const std::function<void()>& on_progress) {
  TextFolder folder(fs);
  folder.path_ = path;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return folder;
  if (!is_zip_file(fs, path)) {
    if (std::filesystem::exists(path, ignored)) return invalid(path + " is neither a folder nor a zip archive");
    return Error{ErrorCode::kNotFound, path + ": there is no such folder or zip archive"};
  }
  std::string bytes;
  TRY(read_file(fs, path, [&](const void* data, size_t count) -> Status {
    bytes.append(static_cast<const char*>(data), count);
    on_progress();
    if (bytes.size() > kArchiveBytesMax) return invalid(path + " has more than 4 GiB: unpack it first");
    return {};
  }));
  TRY_ASSIGN(folder.directory_, read_zip_directory(bytes, path));
  std::vector<std::string> names;
  for (const auto& [name, entry] : folder.directory_) {
    if (!name.ends_with('/') && !is_hidden(name)) names.push_back(name);
  }
  const size_t shared = common_folder(names);
  for (const std::string& name : names) folder.entries_[name.substr(shared)] = name;
  folder.archive_ = std::make_shared<const std::string>(std::move(bytes));
  return folder;
}

std::vector<std::string> TextFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  if (archive_) return names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(path_, error); !error && at != std::filesystem::directory_iterator();
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code ignored;
    if (!is_hidden(name) && at->is_regular_file(ignored)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool TextFolder::has(const std::string& name) const {
  if (archive_) return entries_.contains(name);
  std::error_code ignored;
  return std::filesystem::is_regular_file(path_of(name), ignored);
}

std::string TextFolder::path_of(const std::string& name) const { return join_path(path_, name); }

Result<OpenedText> TextFolder::read(const std::string& name, uint64_t bytes_max,
                                    const std::function<void()>& on_progress) const {
  const std::string path = path_of(name);
  if (!archive_) return open_text(*fs_, path, bytes_max, on_progress);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return Error{ErrorCode::kNotFound, path_ + " holds no file " + name};
  const ZipEntry& entry = directory_.at(found->second);
  if (entry.bytes > bytes_max) {
    return invalid(path + " has " + std::to_string(entry.bytes) + " bytes, at most " + std::to_string(bytes_max) +
                   " are read");
  }
  std::shared_ptr<const std::string> inflated;
  TRY_ASSIGN(const std::string_view content, read_zip_entry(*archive_, found->second, entry, inflated, path_));
  on_progress();
  return decode_text(std::string(content), path, bytes_max);
}

}  // namespace lockstep
