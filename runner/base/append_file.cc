#include "runner/base/append_file.h"

#include <cerrno>
#include <optional>

#include "runner/base/atomic_file.h"

namespace lockstep {

Result<AppendFile> AppendFile::open(FileSystem& fs, const std::string& path, FileSystem::Append append) {
  TRY_ASSIGN(const FileHandle opened, fs.open_for_append(path, append));
  AppendFile file(path, OpenFile(fs, opened));
  const Result<FileInfo> info = fs.fstat(opened);
  if (!info.ok()) return info.error().with_context(path);
  file.size_ = info->bytes;
  return file;
}

Result<AppendFile> AppendFile::replace(FileSystem& fs, const std::string& path, std::string_view text,
                                       const std::string& temporary) {
  std::optional<AppendFile> file;
  const auto write_and_open = [&](const ByteSink& sink) -> Status {
    TRY(sink(text.data(), text.size()));
    TRY_ASSIGN(file, open(fs, temporary, FileSystem::Append::kToExisting));
    return {};
  };
  TRY(write_file_atomically(fs, path, write_and_open, temporary));
  file->path_ = path;
  return std::move(*file);
}

Status AppendFile::append(std::string_view record) {
  Status written = write_whole(record);
  const bool is_first_error = !written.ok() && !failing_;
  failing_ = !written.ok();
  return is_first_error ? written : Status();
}

Status AppendFile::write_whole(std::string_view record) {
  FileSystem& fs = file_.fs();
  if (torn_) {
    const Status cut = fs.truncate(file_.handle(), size_);
    if (!cut.ok()) return cut.error().with_context(path_);
  }
  torn_ = false;
  // A short write to a regular file is followed by an error that says why: a full disk, a limit of the file's size.
  for (size_t done = 0; done < record.size();) {
    Result<size_t> written = fs.write(file_.handle(), record.data() + done, record.size() - done);
    if (written.ok() && *written == 0) written = error_of_errno(ENOSPC, "write", path_);
    if (!written.ok()) {
      if (done > 0) torn_ = !fs.truncate(file_.handle(), size_).ok();
      return written.error().with_context(path_);
    }
    done += *written;
  }
  size_ += record.size();
  return {};
}

Result<std::string> move_too_large(FileSystem& fs, const std::string& path, uint64_t bytes_max) {
  const Result<FileInfo> info = fs.stat(path);
  if (!info.ok() || info->kind != FileKind::kFile || info->bytes <= bytes_max) return std::string();
  int number = 1;
  while (fs.stat(path + "." + std::to_string(number)).ok()) ++number;
  std::string to = path + "." + std::to_string(number);
  TRY(fs.rename(path, to));
  return to;
}

}  // namespace lockstep
