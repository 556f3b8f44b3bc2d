#define USE_C10D_GLOO 1
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "runner/dist/backends.h"

namespace lockstep {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const GroupOptions& options) {
  using c10d::ProcessGroupGloo;
  auto gloo_options = ProcessGroupGloo::Options::create(kFormingTimeout);
  const bool one_machine = options.world.world_size == options.world.local_world_size;
  if (!options.network_interface.empty()) {
    gloo_options->devices.push_back(ProcessGroupGloo::createDeviceForInterface(options.network_interface));
  } else if (!options.address.empty()) {
    gloo_options->devices.push_back(ProcessGroupGloo::createDeviceForHostname(options.address));
  } else if (one_machine) {
    // The host name may not resolve, or resolve to an address that a firewall guards.
    gloo_options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    gloo_options->devices.push_back(ProcessGroupGloo::createDefaultDevice());
  }
  return c10::make_intrusive<ProcessGroupGloo>(store, options.world.rank, options.world.world_size, gloo_options);
}

}  // namespace lockstep
