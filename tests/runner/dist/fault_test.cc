#include "runner/dist/fault.h"

#include <c10/util/Exception.h>
#include <gloo/common/error.h>
#include <gtest/gtest.h>

#include <future>
#include <new>
#include <stdexcept>
#include <thread>

#include "runner/dist/collectives.h"
#include "tests/runner/support/ranks_as_threads.h"

namespace lockstep {
namespace {

template <typename Type>
Type c10_error(const std::string& text) {
  return Type(c10::SourceLocation{__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text);
}

ExitCode code_of(const std::exception& e) { return classify_fault(e).code; }

// An error of NCCL as c10d words it.
c10::DistBackendError nccl_error(const std::string& name, const std::string& last) {
  return c10_error<c10::DistBackendError>("NCCL error in: NCCLUtils.cpp:94, words, NCCL version 2.28.9\n" + name +
                                          ": words.\nLast error:\n" + last);
}

TEST(Fault, is_named_by_its_type) {
  EXPECT_EQ(code_of(RunFault(ExitCode::kTimeout, "too long")), ExitCode::kTimeout);
  EXPECT_EQ(code_of(std::bad_alloc()), ExitCode::kOutOfMemory);
  EXPECT_EQ(code_of(c10_error<c10::OutOfMemoryError>("CUDA: 2.00 GiB")), ExitCode::kOutOfMemory);
  const c10::AcceleratorError illegal({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 700, "an illegal access");
  EXPECT_EQ(code_of(illegal), ExitCode::kDeviceFault);
  EXPECT_EQ(code_of(c10_error<c10::DistNetworkError>("the socket is not connected")), ExitCode::kPeerLost);
  EXPECT_EQ(code_of(c10_error<c10::DistBackendError>("NCCL communicator was aborted")), ExitCode::kPeerLost);
  EXPECT_EQ(code_of(gloo::IoException("[pair.cc:547] Connection closed by peer")), ExitCode::kPeerLost);
}

// The library has one type for both errors, so that its words decide.
TEST(Fault, of_a_library_with_one_type_for_all_is_a_timeout_where_it_says_so) {
  EXPECT_EQ(code_of(gloo::IoException("[unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation")),
            ExitCode::kTimeout);
  EXPECT_EQ(code_of(c10_error<c10::DistStoreError>("wait timeout after 300000ms, keys: /here/1")), ExitCode::kTimeout);
  EXPECT_EQ(code_of(c10_error<c10::DistNetworkError>("The client socket has timed out after 5000ms")),
            ExitCode::kTimeout);
}

TEST(Fault, classifies_our_own_errors_as_crashes_whatever_their_text) {
  for (const char* text : {"--collective_timeout_seconds must be at least 1", "the reader of gloo.txt timed out",
                           "NCCL_DEBUG is not a level", "Connection closed by peer", "CUDA error", "out of memory"}) {
    EXPECT_EQ(code_of(std::runtime_error(text)), ExitCode::kCrash) << text;
  }
  EXPECT_EQ(code_of(c10_error<c10::Error>("mat1 and mat2 shapes cannot be multiplied")), ExitCode::kCrash);
}

TEST(Fault, that_torch_checks_itself_is_named_by_torch_s_words) {
  EXPECT_EQ(code_of(c10_error<c10::Error>("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm")),
            ExitCode::kDeviceFault);
  EXPECT_EQ(code_of(c10_error<c10::Error>("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")),
            ExitCode::kOutOfMemory);
}

TEST(Fault, of_nccl_is_named_by_its_code_and_not_by_the_words_that_follow) {
  const struct {
    const char* name;
    NcclResult result;
    ExitCode code;
  } cases[] = {
      {"ncclUnhandledCudaError", NcclResult::kUnhandledCudaError, ExitCode::kDeviceFault},
      {"ncclSystemError", NcclResult::kSystemError, ExitCode::kPeerLost},
      {"ncclInternalError", NcclResult::kInternalError, ExitCode::kPeerLost},
      {"ncclInvalidArgument", NcclResult::kInvalidArgument, ExitCode::kCrash},
      {"ncclInvalidUsage", NcclResult::kInvalidUsage, ExitCode::kCrash},
      {"ncclRemoteError", NcclResult::kRemoteError, ExitCode::kPeerLost},
  };
  for (const auto& c : cases) {
    const c10::DistBackendError from_c10d = nccl_error(c.name, "connect failed: Connection timed out");
    EXPECT_EQ(nccl_result_of(from_c10d), c.result) << c.name;
    EXPECT_EQ(code_of(from_c10d), c.code) << c.name;
    EXPECT_EQ(code_of(NcclFault(c.result, "Connection timed out")), c.code) << c.name;
  }
  EXPECT_EQ(code_of(nccl_error("ncclUnhandledCudaError", "Cuda failure 2 'out of memory'")), ExitCode::kOutOfMemory);
  EXPECT_EQ(nccl_result_of(c10_error<c10::DistBackendError>("NCCL communicator was aborted")), std::nullopt);
  EXPECT_EQ(nccl_result_of(std::runtime_error("ncclRemoteError: says somebody else")), std::nullopt);
}

// What gloo throws inside of libtorch is of the types that its headers have.
TEST(Fault, of_gloo_s_own_is_a_lost_peer_or_a_timeout) {
  on_ranks(2, [](ProcessGroup& group) {
    if (group.rank() == 1) return;  // its end closes the connection
    try {
      barrier(group);
      FAIL() << "the other one is gone";
    } catch (const std::exception& e) {
      EXPECT_EQ(code_of(e), ExitCode::kPeerLost) << e.what();
    }
  });
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  std::promise<void> over;
  const auto form = [&](int rank) {
    return ProcessGroup::form(
        store, {.assignment = assigned(rank, 2), .timeout = std::chrono::milliseconds(50), .network_interface = ""});
  };
  std::thread silent([&] {
    const auto group = form(1);
    EXPECT_TRUE(group.ok()) << group.error().message;
    over.get_future().wait();
  });
  const auto group = form(0);
  EXPECT_TRUE(group.ok()) << group.error().message;
  try {
    barrier(**group);
    ADD_FAILURE() << "the other one is silent";
  } catch (const std::exception& e) {
    EXPECT_EQ(code_of(e), ExitCode::kTimeout) << e.what();
  }
  over.set_value();
  silent.join();
}

TEST(Fault, leaves_out_the_stack_trace) {
  const std::runtime_error error("shapes differ\nException raised from mul at x.cpp:1\nframe #0: …");
  EXPECT_EQ(classify_fault(error).message, "shapes differ");
  const std::runtime_error of_allocator(
      "[enforce fail at alloc_cpu.cpp:1] err == 0. can't allocate memory\nframe #0: …");
  EXPECT_EQ(classify_fault(of_allocator).message, "[enforce fail at alloc_cpu.cpp:1] err == 0. can't allocate memory");
}

}  // namespace
}  // namespace lockstep
