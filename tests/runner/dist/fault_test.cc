#include "runner/dist/fault.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace lockstep {
namespace {

TEST(Fault, is_named_by_what_the_texts_of_gloo_nccl_and_cuda_say) {
  const struct {
    const char* text;
    ExitCode code;
  } cases[] = {
      {"[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711",
       ExitCode::kPeerLost},
      {"[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation", ExitCode::kTimeout},
      {"wait timeout after 300000ms, keys: /here/1", ExitCode::kTimeout},
      {"CUDA error: an illegal memory access was encountered", ExitCode::kDeviceFault},
      {"CUDA out of memory. Tried to allocate 2.00 GiB", ExitCode::kOutOfMemory},
      {"NCCL error: remote process exited or there was a network error", ExitCode::kPeerLost},
      {"mat1 and mat2 shapes cannot be multiplied", ExitCode::kCrash},
  };
  for (const auto& c : cases) EXPECT_EQ(classify_fault(std::runtime_error(c.text)).code, c.code) << c.text;
  EXPECT_EQ(classify_fault(std::bad_alloc()).code, ExitCode::kOutOfMemory);
}

TEST(Fault, leaves_out_the_stack_trace) {
  const std::runtime_error error("shapes differ\nException raised from mul at x.cpp:1\nframe #0: …");
  EXPECT_EQ(classify_fault(error).message, "shapes differ");
}

}  // namespace
}  // namespace lockstep
