// GroupAbort: how a group is left that no longer answers.
//
// Role: a peer that dies is noticed by the collective itself; one that falls silent is not. The agent's word (Cut)
// comes on another thread, which fires this: the commit gate is shut (kernels/commit_gate.h), so that nothing that is
// still queued on the device changes the state; NCCL's communicator is told (two_phase_abort.h); Gloo's sockets are
// shut down, so that a blocked collective throws within a tenth of a millisecond. Which sockets are the group's:
// Gloo's, which were opened while its part of the group was formed, and as long as NCCL still meets its peers NCCL's,
// so that no thread of it waits for them for ever. A communicator that stands is ended by NCCL's own calls, which use
// its sockets. Gloo's listeners stay: its loop accepts on them and must not see them fail. A socket is known by its
// inode: descriptors are used again. Threads: made and dropped by the training thread; fire() from any thread, also
// while the group is being formed. It waits for nobody, because the thread that shows that this process lives calls it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace lockstep {

class GroupAbort {
 public:
  // Before the group is formed: sockets that are open now are not the group's.
  GroupAbort();
  GroupAbort(const GroupAbort&) = delete;
  GroupAbort& operator=(const GroupAbort&) = delete;

  // Gloo's part of the group stands: what is opened from now on is NCCL's.
  void spare_listeners();
  // The group stands: later sockets are not its own.
  void group_is_formed();
  // Called by fire(), in this order, before the sockets are shut down; at once when it has fired already. Must not
  // wait.
  void also(std::function<void()> action);
  // The group is about to be dropped: fire() does nothing from now on. Its descriptors may soon be somebody else's.
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
  [[nodiscard]] bool is_the_groups(ino_t inode, const Socket& socket) const;

  Sockets before_;
  mutable std::mutex mutex_;
  // State below is protected by mutex_.
  std::optional<Sockets> of_gloo_;  // all that were open when gloo's part stood
  bool formed_ = false;
  bool fired_ = false;
  bool retired_ = false;
  std::vector<std::function<void()>> actions_;
};

}  // namespace lockstep
