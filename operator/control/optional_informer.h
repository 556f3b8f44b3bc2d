// OptionalInformer: an Informer for a kind that the cluster may have or not, in one of several versions: a CRD that is
// installed later or removed, an API that is off by default.
//
// It sends no request before the first call of `wanted`. From then on it asks the server every `poll_every` which of
// the versions it has, keeps a cache of the best one, and searches again when the server no longer has that version. It
// does not count for /readyz; Kind::trouble says why the kind cannot be read.
// Threads: one of its own, and the informer's; handlers run on these. The rest is safe from all threads.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "operator/control/informer.h"

namespace lockstep::control {

class OptionalInformer {
 public:
  struct Options {
    std::vector<kube::Resource> versions;  // of one group and plural, the best first
    Informer<Json>::Options informer;      // on_problem is not used
    std::chrono::milliseconds poll_every = std::chrono::seconds(10);
    // Called when the cache of the kind is complete, when the kind was removed, and when Kind::trouble has changed.
    std::function<void()> on_kind_change;
  };
  // `client` outlives this.
  OptionalInformer(kube::Client& client, Options options);
  ~OptionalInformer();
  OptionalInformer(const OptionalInformer&) = delete;
  OptionalInformer& operator=(const OptionalInformer&) = delete;

  // As Informer::on_change, but the objects of the first list are reported when wanted() returns the cache. When the
  // kind goes, no change is reported for its objects; only on_kind_change is called.
  void on_change(std::function<void(const Cache<Json>::Change&)> handler);
  void start();
  void stop_and_join();

  // Options::versions. Starts no search.
  [[nodiscard]] const std::vector<kube::Resource>& versions() const;

  struct Kind {
    bool is_known = false;  // the server was asked
    // The version that the server has; nullptr: none of them. Lives as long as this object.
    const kube::Resource* resource = nullptr;
    std::shared_ptr<Cache<Json>> cache = {};  // nullptr until its first list is complete
    std::string trouble = {};                 // why it cannot be asked, or listed
  };
  // What the cluster has of the kind. The first call starts the search for it.
  Kind wanted();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::control
