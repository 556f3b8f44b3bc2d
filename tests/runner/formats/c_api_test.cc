// What the Python package calls of checkpoints: JSON in, JSON out, on a real folder.
#include "runner/formats/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/formats/c_api_answers.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr std::array<float, 3> kWeights{1.0F, -2.5F, 3.25F};

Json answer(char* (*function)(const char*), const Json& request) {
  char* const text = function(dump_line(request).c_str());
  const Json said = Json::parse(text);
  std::free(text);  // as lockstep_free does
  return said;
}

class CheckpointCApi : public ::testing::Test {
 protected:
  [[nodiscard]] Json common(uint64_t generation = 7) const {
    return {{"folder", folder_.path()},
            {"environment", Json::object()},
            {"generation", generation},
            {"config", {{"models", "these"}}}};
  }
  [[nodiscard]] Json write_request(int64_t step, uint64_t generation = 7) const {
    Json request = common(generation);
    request.update({{"step", step},
                    {"lineage", 7},
                    {"world_size", 3},
                    {"keep", 2},
                    {"python", {{"rest", {{"dict", Json::array()}}}}},
                    {"tensors",
                     {{{"file", "model.safetensors"},
                       {"name", "weight"},
                       {"dtype", "F32"},
                       {"shape", {3}},
                       {"address", reinterpret_cast<uintptr_t>(kWeights.data())},
                       {"bytes", sizeof(kWeights)}}}}});
    return request;
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointCApi, what_is_written_is_found_with_the_state_of_python) {
  EXPECT_EQ(answer(lockstep_find_checkpoint, common()).at("path"), "");
  EXPECT_EQ(answer(lockstep_prepare_checkpoints, common()), Json::object());
  for (const int64_t step : {3, 6, 9}) {
    const Json written = answer(lockstep_write_checkpoint, write_request(step));
    EXPECT_EQ(written.at("warning"), "") << written;
  }
  const Json found = answer(lockstep_find_checkpoint, common());
  EXPECT_THAT(found.at("path").get<std::string>(), HasSubstr("/step-00000009"));
  const Json& state = found.at("state");
  EXPECT_EQ(state.at("progress").at("python"), write_request(9).at("python"));
  EXPECT_EQ(state.at("workload"), "python");
  EXPECT_TRUE(state.at("files").contains("model.safetensors"));
}

TEST_F(CheckpointCApi, another_programs_checkpoints_are_refused) {
  answer(lockstep_write_checkpoint, write_request(3));
  Json other = common();
  other["config"] = {{"models", "others"}};
  EXPECT_THAT(
      answer(lockstep_find_checkpoint, other).at("error").get<std::string>(),
      HasSubstr(
          "its models, or the objects given to lockstep.restore, are others); to start anew give another folder"));
}

TEST_F(CheckpointCApi, an_older_generation_publishes_nothing) {
  answer(lockstep_write_checkpoint, write_request(3, 8));
  EXPECT_THAT(answer(lockstep_write_checkpoint, write_request(6, 7)).at("error").get<std::string>(),
              HasSubstr("another rank 0 of this run has taken over"));
}

TEST_F(CheckpointCApi, a_write_that_fails_says_so_and_leaves_a_whole_one) {
  answer(lockstep_write_checkpoint, write_request(3));
  const auto newest = [&] { return answer(lockstep_find_checkpoint, common()).at("path").get<std::string>(); };
  PosixFileSystem disk;
  int failed = 0;
  for (bool written = false; !written; ++failed) {
    SCOPED_TRACE(failed);
    FaultFileSystem fs(disk, FaultFileSystem::Fault::kFailOnce, failed + 1, EIO);
    const std::string request = dump_line(write_request(6 + failed));
    const Json said = Json::parse(answer_of(CheckpointCall::kWrite, fs, request.c_str()));
    written = !said.contains("error");
    EXPECT_THAT(said.value("error", "Input/output error"), HasSubstr("Input/output error"));
    EXPECT_THAT(newest(), HasSubstr("/step-0000"));
  }
  EXPECT_GT(failed, 10) << "calls before the checkpoint has its name";
}

TEST_F(CheckpointCApi, a_wrong_request_is_an_error_and_no_exception) {
  EXPECT_TRUE(answer(lockstep_write_checkpoint, common()).contains("error"));
  EXPECT_TRUE(answer(lockstep_find_checkpoint, Json::array()).contains("error"));
  Json request = write_request(3);
  request["tensors"][0]["dtype"] = "F99";
  EXPECT_EQ(answer(lockstep_write_checkpoint, request).at("error"), "safetensors has no dtype F99");
  char* const text = lockstep_find_checkpoint("no json");
  EXPECT_TRUE(Json::parse(text).contains("error"));
  std::free(text);
}

}  // namespace
}  // namespace lockstep
