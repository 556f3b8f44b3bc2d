// PodNews: how soon a job is looked at after the watch has told of one of its pods.
//
// Kubernetes tells of a pod four or five times while it starts, and each pass over a job looks at all of its pods. What
// only shows in the status waits a second for its neighbours. A good end waits 100 ms at most. What has consequences
// does not wait: a pod that has ended badly, is told to end, is gone, or is no longer ready; the last one that gets
// ready, that is done, or that was to go; and where node 0 is, which the others are told, or that it has ended or is
// gone. Threads: one, that of the watch. It remembers a few words of each pod.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "operator/api/object_meta.h"
#include "runner/base/json.h"

namespace lockstep::train {

class PodNews {
 public:
  // `pod`: as it is now, or was when it went (`is_gone`). Zero: at once.
  std::chrono::milliseconds wait_after(const Json& pod, bool is_gone);

 private:
  struct Glance {
    api::ObjectKey job;
    std::string place;  // of node 0: whether it runs, has ended or is gone, and its address
    bool ready = false;
    bool deleting = false;
    bool done = false;    // with 0
    bool failed = false;  // it, or its trainer; or Kubernetes says that it is about to end it
    int nodes = 0;        // of the job, as the pod was told
  };
  struct Counts {
    int ready = 0;
    int done = 0;
    int deleting = 0;
  };
  static Glance glance_at(const Json& pod);
  void count(const Glance& glance, int sign);

  std::map<api::ObjectKey, Glance> pods_;
  std::map<api::ObjectKey, Counts> jobs_;
};

}  // namespace lockstep::train
