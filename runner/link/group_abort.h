// GroupAbort: makes the blocked collectives of a group that no longer answers throw.
//
// Role: a collective notices a peer that dies, but not one that is silent. The agent then sends Cut; the agent-link
// thread receives it and calls fire(). That shuts the commit gate (kernels/commit_gate.h), so that work which is still
// queued on the device cannot change the state; it cuts NCCL's communicator (two_phase_abort.h); and it shuts Gloo's
// sockets down, so that a blocked collective throws within a tenth of a millisecond.
// Sockets that are shut down: those that Gloo opened while its part of the group was formed and, as long as NCCL still
// connects to its peers, NCCL's, so that none of its threads waits for a peer for ever. A communicator that is ready is
// ended by NCCL's own calls, which use its sockets. Gloo's listening sockets stay open, because its event loop accepts
// on them and must not see them fail. Sockets are identified by inode, because descriptors are reused.
// Threads: made and dropped by the training thread; fire() from any thread, also while the group is being formed.
// fire() does not block, because the agent-link thread also marks this process as alive.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "runner/base/mutex.h"

namespace lockstep {

class GroupAbort {
 public:
  // Before the group is formed: sockets that are open now are not the group's.
  GroupAbort();
  GroupAbort(const GroupAbort&) = delete;
  GroupAbort& operator=(const GroupAbort&) = delete;

  // Gloo's part of the group is ready: sockets that are opened from now on are NCCL's.
  void gloo_is_ready();
  // The group is ready: sockets that are opened from now on are not the group's.
  void group_is_formed();
  // Adds an action that fire() calls before it shuts the sockets down, in the order in which they were added. When
  // fire() was called already, the action is called here. It must not block.
  void add_action(std::function<void()> action);
  // The group is about to be dropped: fire() does nothing from now on, because its descriptors may be reused.
  void retire();

  void fire();
  [[nodiscard]] bool fired() const;

 private:
  struct Socket {
    int fd = -1;
    bool listens = false;
  };
  using Sockets = std::map<ino_t, Socket>;

  static Sockets open_sockets();
  [[nodiscard]] bool is_the_groups(ino_t inode, const Socket& socket) const REQUIRES(mutex_);

  Sockets before_;
  mutable Mutex mutex_;
  std::optional<Sockets> of_gloo_ GUARDED_BY(mutex_);  // all sockets that were open when Gloo's part was ready
  bool formed_ GUARDED_BY(mutex_) = false;
  bool fired_ GUARDED_BY(mutex_) = false;
  bool retired_ GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> actions_ GUARDED_BY(mutex_);
};

}  // namespace lockstep
