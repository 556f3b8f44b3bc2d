// OptionalInformer: an Informer for a kind that the cluster may have or not, in one of several versions: a CRD that is
// installed later or removed, an API that is off by default.
//
// It costs nothing until somebody asks for the kind (`wanted`). From then on it looks every `look_every` for the best
// version that the server has, keeps a cache of it, and begins anew when the server has that version no more. Nobody
// waits for it: what it cannot have, and why, is told in words.
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
    Informer::Options informer;            // on_trouble is not used
    std::chrono::milliseconds look_every = std::chrono::seconds(10);
    // The kind has come, with all its objects, or has gone, or why it cannot be had has changed.
    std::function<void()> on_news;
  };
  // `client` outlives this.
  OptionalInformer(kube::Client& client, Options options);
  ~OptionalInformer();
  OptionalInformer(const OptionalInformer&) = delete;
  OptionalInformer& operator=(const OptionalInformer&) = delete;

  // As Informer::on_change. When the kind goes, its objects go without a word; on_news tells it.
  void on_change(std::function<void(const Cache::Change&)> handler);
  void start();
  void stop_and_join();

  struct Kind {
    bool is_known = false;  // the server was asked
    // The version that the server has; nullptr: none of them. Lives as long as this object.
    const kube::Resource* resource = nullptr;
    std::shared_ptr<Cache> cache = {};  // whole; nullptr while it is not
    std::string trouble = {};           // why it cannot be asked, or listed
  };
  // What the cluster has of the kind. The first call begins the looking.
  Kind wanted();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::control
