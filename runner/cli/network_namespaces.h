// A network of its own for each local node: a namespace and a pair of virtual links, all on one bridge. What a node
// loses then is what a machine loses when its cable is pulled.
//
// Role: made by running `ip` (iproute2), as root; removed at the end. Names carry this process's id, so that what a
// killed parent left behind is found and removed by the next one.
// Threads: one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

class NetworkNamespaces {
 public:
  // kInvalid: not root; kNotFound: no `ip`; kUnavailable: the kernel or the container refuses.
  static Result<std::unique_ptr<NetworkNamespaces>> create(int nodes);
  ~NetworkNamespaces();
  NetworkNamespaces(const NetworkNamespaces&) = delete;
  NetworkNamespaces& operator=(const NetworkNamespaces&) = delete;

  // For setns; stays the object's.
  [[nodiscard]] int fd(int node) const { return fds_[static_cast<size_t>(node)]; }
  // Reached from all nodes and from this process.
  [[nodiscard]] std::string address(int node) const;

 private:
  explicit NetworkNamespaces(int nodes);
  Status make_bridge();
  Status make_node(int node);

  std::string id_;      // of this process
  std::string subnet_;  // its first three numbers
  std::vector<int> fds_;
};

// The name of a node's link inside its namespace.
inline constexpr const char* kLinkInNamespace = "eth0";

}  // namespace lockstep
