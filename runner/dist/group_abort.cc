#include "runner/dist/group_abort.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "runner/dist/fault.h"

namespace lockstep {
namespace {

// The inode of a TCP connection, established or under way; of a listener and of anything else, none.
std::optional<ino_t> connection(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode)) return {};
  int listening = 0;
  socklen_t size = sizeof listening;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening != 0) return {};
  int domain = 0;
  size = sizeof domain;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) return {};
  if (domain != AF_INET && domain != AF_INET6) return {};
  return info.st_ino;
}

// Whatever an abort throws, the sockets must be shut down after it; and the link's thread has nobody to catch it.
void attempt(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "worker: leaving a group: %s\n", classify_fault(e).message.c_str());
  }
}

// All of this process.
std::map<ino_t, int> open_connections() {
  std::map<ino_t, int> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), &::closedir);
  if (folder == nullptr) return found;
  while (const dirent* entry = ::readdir(folder.get())) {  // NOLINT(concurrency-mt-unsafe): the DIR is ours alone
    int fd = -1;
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, fd).ptr != end) continue;
    if (const auto inode = connection(fd)) found.emplace(*inode, fd);
  }
  return found;
}

}  // namespace

GroupAbort::GroupAbort() : before_(open_connections()) {}

void GroupAbort::group_is_formed() {
  const std::lock_guard lock(mutex_);
  formed_ = true;
  at_forming_ = open_connections();
}

void GroupAbort::also(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  if (fired_) {
    attempt(action);
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
  for (const auto& action : std::exchange(actions_, {})) attempt(action);
  // One that was closed since, its descriptor perhaps another's by now, is not in both.
  const Sockets now = open_connections();
  for (const auto& [inode, fd] : now) {
    if (!before_.contains(inode) && (!formed_ || at_forming_.contains(inode))) ::shutdown(fd, SHUT_RDWR);
  }
}

bool GroupAbort::fired() const {
  const std::lock_guard lock(mutex_);
  return fired_;
}

}  // namespace lockstep
