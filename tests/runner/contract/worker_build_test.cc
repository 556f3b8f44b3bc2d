#include "runner/contract/worker_build.h"

#include "gtest/gtest.h"
#include "runner/contract/cuda_architectures.h"

namespace lockstep {
namespace {

TEST(WorkerBuild, survives_a_round_trip_through_json) {
  const WorkerBuild build{
      .version = "0.1.0", .torch = "2.11.0", .cuda = "13.0", .cuda_architectures = "8.0,9.0+PTX", .nccl = "2.28.9"};
  const Result<WorkerBuild> read = decode_worker_build(encode(build));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(encode(*read), encode(build));
  EXPECT_EQ(read->cuda_architectures, "8.0,9.0+PTX");
}

TEST(WorkerBuild, refuses_text_that_is_no_build_info) {
  for (const char* const line : {"", "lockstep-worker 0.1.0", "[]", "{}", R"({"version": 1})"}) {
    const Result<WorkerBuild> read = decode_worker_build(line);
    ASSERT_FALSE(read.ok()) << line;
    EXPECT_NE(read.error().message.find("build info"), std::string::npos) << read.error().message;
  }
}

TEST(WorkerBuild, reads_the_versions_of_cuda_and_nccl) {
  EXPECT_EQ(cuda_version_text(13000), "13.0");
  EXPECT_EQ(cuda_version_text(12040), "12.4");
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
}

TEST(CudaArchitectures, machine_code_runs_on_its_major_version_from_its_minor_on) {
  constexpr std::string_view kBuilt = "7.5,8.0,8.6";
  EXPECT_TRUE(has_code_for(kBuilt, {8, 0}));
  EXPECT_TRUE(has_code_for(kBuilt, {8, 9}));
  EXPECT_TRUE(has_code_for(kBuilt, {7, 5}));
  EXPECT_FALSE(has_code_for(kBuilt, {7, 0}));
  EXPECT_FALSE(has_code_for(kBuilt, {9, 0}));
}

TEST(CudaArchitectures, ptx_runs_on_what_is_newer) {
  EXPECT_TRUE(has_code_for("8.0,9.0+PTX", {12, 0}));
  EXPECT_TRUE(has_code_for("9.0+PTX", {9, 0}));
  EXPECT_FALSE(has_code_for("9.0+PTX", {8, 9}));
}

TEST(CudaArchitectures, a_list_that_says_nothing_has_code_for_nothing) {
  for (const char* const built : {"", ",", "abc", "9", "19.0", "9.0.1"}) {
    EXPECT_FALSE(has_code_for(built, {9, 0})) << built;
  }
}

}  // namespace
}  // namespace lockstep
