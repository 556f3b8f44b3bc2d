// The two c10d backends, each made in a translation unit of its own.
//
// gloo_backend.cc is the only file that includes ProcessGroupGloo.hpp: that header needs <gloo/…>, which the wheel
// does not ship; Debian's libgloo-dev has an older gloo than the one inside libtorch_cpu.so, so only the declarations
// that ProcessGroupGloo.hpp itself needs are used, and no inline or virtual gloo member is ever called.
#pragma once

#include <stdexcept>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "runner/dist/process_group.h"

namespace lockstep {

// gloo cannot listen on the network interface or address that the options name.
struct UnusableAddress : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws UnusableAddress, c10d's and gloo's exceptions; process_group.cc turns them into an Error.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const GroupOptions& options);
// Only in a build with LOCKSTEP_CUDA.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const GroupOptions& options);

}  // namespace lockstep
