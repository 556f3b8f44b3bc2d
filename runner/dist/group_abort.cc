#include "runner/dist/group_abort.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

namespace lockstep {
namespace {

bool is_connection(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode)) return false;
  int listening = 0;
  socklen_t size = sizeof listening;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening != 0) return false;
  int domain = 0;
  size = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && (domain == AF_INET || domain == AF_INET6);
}

// Descriptors of all TCP connections of this process, established or under way.
std::set<int> open_connections() {
  std::set<int> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), &::closedir);
  if (folder == nullptr) return found;
  while (const dirent* entry = ::readdir(folder.get())) {  // NOLINT(concurrency-mt-unsafe): the DIR is ours alone
    int fd = -1;
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, fd).ptr == end && is_connection(fd)) found.insert(fd);
  }
  return found;
}

}  // namespace

GroupAbort::GroupAbort() : before_(open_connections()) {}

void GroupAbort::group_is_formed() {
  const std::lock_guard lock(mutex_);
  formed_ = true;
  for (const int fd : open_connections()) {
    if (!before_.contains(fd)) sockets_.push_back(fd);
  }
}

void GroupAbort::also(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  if (fired_) {
    action();
  } else {
    actions_.push_back(std::move(action));
  }
}

void GroupAbort::retire() {
  const std::lock_guard lock(mutex_);
  retired_ = true;
  actions_.clear();
}

void GroupAbort::fire() {
  const std::lock_guard lock(mutex_);
  if (retired_) return;
  fired_ = true;
  for (const auto& action : std::exchange(actions_, {})) action();
  if (formed_) {
    for (const int fd : sockets_) ::shutdown(fd, SHUT_RDWR);
    return;
  }
  for (const int fd : open_connections()) {
    if (!before_.contains(fd)) ::shutdown(fd, SHUT_RDWR);
  }
}

bool GroupAbort::fired() const {
  const std::lock_guard lock(mutex_);
  return fired_;
}

}  // namespace lockstep
