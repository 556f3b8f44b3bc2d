// Gives each local node a network of its own: a namespace and a veth pair, all on one bridge. Taking a node's link down
// then has the same effect as unplugging a machine's network cable.
//
// Role: made by running `ip` (iproute2), as root; removed at the end. Names contain this process's id, so that the next
// process can find and remove what a killed one has left.
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

  // For setns; the object keeps the descriptor.
  [[nodiscard]] int fd(int node) const { return fds_[static_cast<size_t>(node)]; }
  // The node's address, which all nodes and this process can reach.
  [[nodiscard]] std::string address(int node) const;

 private:
  explicit NetworkNamespaces(int nodes);
  Status make_bridge();
  Status make_node(int node);

  std::string id_;      // this process's id
  std::string subnet_;  // the first three numbers of its addresses
  std::vector<int> fds_;
};

// The name of a node's link inside its namespace.
inline constexpr const char* kLinkInNamespace = "eth0";

}  // namespace lockstep
