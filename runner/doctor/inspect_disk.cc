#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#include "runner/base/kernel_file.h"
#include "runner/doctor/collect.h"
#include "runner/doctor/machine_files.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunkBytes = 8UL << 20U;
constexpr size_t kProbeBytes = 64UL << 20U;
constexpr std::chrono::milliseconds kProbeTime{1200};  // long enough to measure a slow disk

// Opens a file without a name, which disappears with this process, however it ends. -1 and errno when that fails.
int open_nameless(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  // Network and overlay file systems do not support O_TMPFILE.
  std::string pattern = (fs::path(folder) / ".lockstep-doctor-XXXXXX").string();
  const int named = ::mkostemp(pattern.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(pattern.c_str());
  return named;
}

bool write_chunk(int fd, const std::vector<char>& chunk) {
  for (size_t done = 0; done < chunk.size();) {
    const ssize_t size = ::write(fd, chunk.data() + done, chunk.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return false;
    done += static_cast<size_t>(size);
  }
  return ::fdatasync(fd) == 0;
}

// Measures how many bytes per second can be written like a checkpoint: in large pieces, each synced. 0 and errno when
// writing fails.
double measure_writes(int fd) {
  std::vector<char> chunk(kChunkBytes);
  // Bytes that a compressing file system cannot shrink.
  for (size_t i = 0; i < chunk.size(); ++i) chunk[i] = static_cast<char>(i * 2654435761U >> 13U);
  const auto begin = std::chrono::steady_clock::now();
  size_t written = 0;
  double seconds = 0;
  while (written < kProbeBytes) {
    if (!write_chunk(fd, chunk)) return 0;
    written += chunk.size();
    const auto spent = std::chrono::steady_clock::now() - begin;
    seconds = std::chrono::duration<double>(spent).count();
    if (spent > kProbeTime) break;
  }
  return static_cast<double>(written) / seconds;
}

// The path itself, or the nearest folder above it that exists.
fs::path nearest_folder(const fs::path& path) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error).lexically_normal();
  while (folder.has_relative_path() && !fs::exists(folder, error)) folder = folder.parent_path();
  return folder;
}

}  // namespace

DiskFacts inspect_disk(const std::string& path) {
  DiskFacts facts{.path = path};
  std::error_code error;
  const fs::path folder = nearest_folder(path);
  facts.folder = fs::exists(path, error) ? path : folder.string();
  if (!fs::is_directory(folder, error)) {
    facts.problem = folder.string() + " is no folder";
    return facts;
  }
  facts.filesystem = filesystem_of(read_kernel_file("/proc/self/mounts"), folder.string());
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) == 0) facts.free_bytes = uint64_t{disk.f_bavail} * disk.f_frsize;
  const int fd = open_nameless(folder.string());
  if (fd < 0) {
    facts.problem = std::string("cannot be written to: ") + std::strerror(errno);
    return facts;
  }
  // On a disk that is nearly full no speed is measured; the check fails because of the free space.
  if (facts.free_bytes >= 2 * kProbeBytes) {
    facts.bytes_per_second = measure_writes(fd);
    if (facts.bytes_per_second == 0) facts.problem = std::string("writing fails: ") + std::strerror(errno);
  }
  ::close(fd);
  return facts;
}

DataFacts inspect_data(const std::string& path) {
  DataFacts facts;
  if (path.empty()) return facts;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error || !fs::exists(status)) {
    facts.problem =
        error && error != std::errc::no_such_file_or_directory ? error.message() : "there is no such file or folder";
    return facts;
  }
  facts.is_folder = fs::is_directory(status);
  if (::access(path.c_str(), facts.is_folder ? R_OK | X_OK : R_OK) != 0) {
    facts.problem = std::strerror(errno);
    return facts;
  }
  if (!facts.is_folder) facts.bytes = fs::file_size(path, error);
  return facts;
}

}  // namespace lockstep::doctor
