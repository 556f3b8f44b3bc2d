#include "runner/base/atomic_file.h"

namespace lockstep {

Status write_file_atomically(FileSystem& fs, const std::string& path, std::string_view bytes,
                             const std::string& temporary) {
  return write_file_atomically(
      fs, path, [bytes](const ByteSink& sink) { return sink(bytes.data(), bytes.size()); }, temporary);
}

Status write_file_atomically(FileSystem& fs, const std::string& path,
                             const std::function<Status(const ByteSink&)>& produce, const std::string& temporary) {
  const std::string folder = parent_path(path);
  const std::string written = temporary.empty() ? join_path(folder, ".tmp-" + base_name(path)) : temporary;
  Status status = write_file(fs, written, produce);
  if (status.ok()) status = fs.rename(written, path);
  if (!status.ok()) {
    // An error of this cleanup is ignored; the caller gets the first error.
    (void)fs.remove_file(written).ok();
    return status;
  }
  return fs.fsync_directory(folder);
}

}  // namespace lockstep
