// StoreHandle: the rendezvous store of one generation, with c10d's type kept out of the headers of other rooms.
// Threads: c10d stores are used by one thread at a time; copies share the same store.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <utility>

namespace lockstep {

class StoreHandle {
 public:
  explicit StoreHandle(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  [[nodiscard]] const c10::intrusive_ptr<c10d::Store>& get() const { return store_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace lockstep
