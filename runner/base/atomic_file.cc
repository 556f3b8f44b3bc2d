#include "runner/base/atomic_file.h"

namespace lockstep {

Status write_file_atomically(FileSystem& fs, const std::string& path, std::string_view bytes, std::string_view tag) {
  return write_file_atomically(
      fs, path, [bytes](const ByteSink& sink) { return sink(bytes.data(), bytes.size()); }, tag);
}

Status write_file_atomically(FileSystem& fs, const std::string& path,
                             const std::function<Status(const ByteSink&)>& produce, std::string_view tag) {
  const std::string folder = parent_path(path);
  std::string name(kTemporaryPrefix);
  if (!tag.empty()) name.append(tag).append("-");
  const std::string temporary = join_path(folder, name + base_name(path));
  Status status = write_file(fs, temporary, produce);
  if (status.ok()) status = fs.rename(temporary, path);
  if (!status.ok()) {
    // Best effort: the first failure is what the caller must hear.
    (void)fs.remove_file(temporary).ok();
    return status;
  }
  return fs.fsync_directory(folder);
}

}  // namespace lockstep
