// PodEventDelay: how soon a job is reconciled after a watch event of one of its pods.
//
// A pod that starts causes four or five events, and each pass over a job looks at all of its pods. So events are
// collected:
//   - at once, and ahead of other jobs, so that a thousand jobs that are being started hold up no replacement: a pod
//     ended badly, is being deleted, is gone, or is no longer ready; the last pod of the job ended with 0, or is gone
//     after its deletion;
//   - at once: the last pod of the job became ready; pod 0 started, ended with 0, or has another IP;
//   - after at most 100 ms: a pod ended with 0;
//   - after at most 1 s: everything else, which only changes counts in the status.
// The last two times are longer for a job of more than 1,000 or 2,000 pods, in proportion, up to 5 s, because its
// passes take longer.
//
// Threads: one, that of the watch. It keeps three counts of each job.
#pragma once

#include <chrono>
#include <map>

#include "operator/api/object_meta.h"
#include "operator/train/pod_view.h"

namespace lockstep::train {

class PodEventDelay {
 public:
  struct Turn {
    std::chrono::milliseconds wait;
    bool goes_first = false;  // then `wait` is zero
  };
  // `before`, `after`: the pod, as the watch brought it; nullptr: it was not there yet, or is gone. One of them is
  // there.
  Turn turn_after(const PodView* before, const PodView* after);

 private:
  struct Counts {
    int ready = 0;
    int done = 0;
    int deleting = 0;
    bool operator==(const Counts&) const = default;
  };
  void count(const PodView* pod, int sign);

  std::map<api::ObjectKey, Counts> jobs_;
};

}  // namespace lockstep::train
