#define USE_C10D_GLOO 1
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>

#include "runner/contract/coordination.h"
#include "runner/contract/gloo_interfaces.h"
#include "runner/dist/backends.h"
#include "runner/dist/fault.h"

namespace lockstep {
namespace {

using c10d::ProcessGroupGloo;

// Gloo waits up to this many of its timeouts for a peer that has said its address and does not connect. Such a peer may
// have died. Nothing ends the wait earlier, because the side that listens has no socket yet that a cut could shut down.
constexpr int kGlooTimeoutsPerConnection = 5;

// Gloo waits for the keys of its peers with the timeout that it has for a connection. Peers may meet much later: here
// it waits with the timeout of the store.
class FormingStore final : public c10d::PrefixStore {
 public:
  explicit FormingStore(c10::intrusive_ptr<c10d::Store> store) : PrefixStore("gloo", std::move(store)) {}

  using PrefixStore::wait;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    PrefixStore::wait(keys, std::max(timeout, getTimeout()));
  }
};

// On the first of the names on which gloo can listen. Nodes may name their interfaces differently.
std::shared_ptr<gloo::transport::Device> make_device_for_first(const std::vector<std::string>& names) {
  std::exception_ptr first_fault;
  for (const std::string& name : names) {
    try {
      return ProcessGroupGloo::createDeviceForInterface(name);
    } catch (const std::exception&) {
      if (!first_fault) first_fault = std::current_exception();
    }
  }
  if (first_fault) std::rethrow_exception(first_fault);
  throw std::runtime_error("the list names no interface");
}

// Where this rank listens for the others. An error here is this machine's. Before the first group it would come back in
// every group, so it must not be taken for a lost peer.
std::shared_ptr<gloo::transport::Device> make_device(const GroupOptions& options) {
  const bool one_machine = options.assignment.world_size == options.assignment.local_world_size;
  std::string where;
  try {
    if (!options.network_interface.empty()) {
      const std::vector<std::string> names = gloo_interfaces(options.network_interface);
      where = (names.size() > 1 ? "interfaces " : "interface ") + options.network_interface + " (GLOO_SOCKET_IFNAME)";
      if (is_nccl_syntax(options.network_interface)) throw std::runtime_error(std::string(kGlooSyntax));
      return make_device_for_first(names);
    }
    if (!options.assignment.address.empty()) {
      where = "address " + options.assignment.address + " of this node";
      return ProcessGroupGloo::createDeviceForHostname(options.assignment.address);
    }
    if (one_machine) {
      // The host name may not resolve, or resolve to an address behind a firewall.
      where = "address 127.0.0.1";
      return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
    }
    where = "address of this node's host name";
    return ProcessGroupGloo::createDefaultDevice();
  } catch (const std::exception& e) {
    throw UnusableAddress("gloo cannot listen on the " + where + ": " + classify_fault(e).message +
                          "; set GLOO_SOCKET_IFNAME to an interface of this machine that the other nodes reach "
                          "(lockstep doctor names them)");
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const GroupOptions& options) {
  const std::chrono::milliseconds timeout = forming_timeout(options.assignment.world_size);
  auto gloo_options = ProcessGroupGloo::Options::create(timeout / kGlooTimeoutsPerConnection);
  gloo_options->devices.push_back(make_device(options));
  const c10d::StoreTimeoutGuard forming(*store, timeout);
  return c10::make_intrusive<ProcessGroupGloo>(c10::make_intrusive<FormingStore>(store), options.assignment.rank,
                                               options.assignment.world_size, gloo_options);
}

}  // namespace lockstep
