#include "operator/kube/small_file.h"

#include <sys/stat.h>

#include "runner/base/file_system.h"

namespace lockstep::kube {

Result<std::string> read_small_file(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) return invalid(path, "is not a file");
  PosixFileSystem files;
  return read_file(files, path, kSmallFileBytesMax);
}

std::string file_signature(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  std::string text;
  for (const auto part :
       {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino), static_cast<int64_t>(info.st_size),
        static_cast<int64_t>(info.st_ctim.tv_sec), static_cast<int64_t>(info.st_ctim.tv_nsec)}) {
    text.append(std::to_string(part)).append("/");
  }
  return text;
}

}  // namespace lockstep::kube
