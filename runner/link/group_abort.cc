#include "runner/link/group_abort.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "runner/base/mutex.h"

namespace lockstep {
namespace {

std::optional<int> socket_option(int fd, int option) {
  int value = 0;
  socklen_t size = sizeof value;
  if (::getsockopt(fd, SOL_SOCKET, option, &value, &size) != 0) return {};
  return value;
}

// Catches whatever an action throws, because the sockets must still be shut down after it, and nothing on the
// agent-link thread would catch it.
void attempt(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "worker: leaving a group: %s\n", e.what());
  }
}

}  // namespace

// The TCP sockets of this process: connected, connecting or listening.
GroupAbort::Sockets GroupAbort::open_sockets() {
  Sockets found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), &::closedir);
  if (folder == nullptr) return found;
  while (const dirent* entry = ::readdir(folder.get())) {  // NOLINT(concurrency-mt-unsafe): the DIR is ours alone
    int fd = -1;
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, fd).ptr != end) continue;
    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode)) continue;
    const std::optional<int> domain = socket_option(fd, SO_DOMAIN);
    const std::optional<int> listening = socket_option(fd, SO_ACCEPTCONN);
    if (!listening || (domain != AF_INET && domain != AF_INET6)) continue;
    found.emplace(info.st_ino, Socket{.fd = fd, .listens = *listening != 0});
  }
  return found;
}

GroupAbort::GroupAbort() : before_(open_sockets()) {}

void GroupAbort::gloo_is_ready() {
  const MutexLock lock(mutex_);
  of_gloo_ = open_sockets();
}

void GroupAbort::group_is_formed() {
  const MutexLock lock(mutex_);
  formed_ = true;
  if (!of_gloo_) of_gloo_ = open_sockets();
}

void GroupAbort::add_action(std::function<void()> action) {
  const MutexLock lock(mutex_);
  if (fired_) {
    attempt(action);
  } else {
    actions_.push_back(std::move(action));
  }
}

void GroupAbort::retire() {
  const MutexLock lock(mutex_);
  retired_ = true;
  actions_.clear();
}

void GroupAbort::fire() {
  const MutexLock lock(mutex_);
  if (retired_) return;
  fired_ = true;
  for (const auto& action : std::exchange(actions_, {})) attempt(action);
  for (const auto& [inode, socket] : open_sockets()) {
    if (is_the_groups(inode, socket)) ::shutdown(socket.fd, SHUT_RDWR);
  }
}

// `socket` is open now. A socket that was closed meanwhile is not affected even if its descriptor was reused, because
// the new socket has another inode.
bool GroupAbort::is_the_groups(ino_t inode, const Socket& socket) const {
  if (before_.contains(inode)) return false;
  if (!of_gloo_ || of_gloo_->contains(inode)) return !socket.listens;
  return !formed_;
}

bool GroupAbort::fired() const {
  const MutexLock lock(mutex_);
  return fired_;
}

}  // namespace lockstep
