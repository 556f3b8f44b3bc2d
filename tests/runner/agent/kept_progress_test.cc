#include "runner/agent/kept_progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

TEST(KeptProgress, is_a_start_from_a_later_step_than_all_before) {
  KeptProgress progress("");
  EXPECT_FALSE(progress.on_first_step(101)) << "the first start: nothing was lost and kept yet";
  EXPECT_FALSE(progress.on_first_step(101));
  EXPECT_TRUE(progress.on_first_step(151));
  EXPECT_FALSE(progress.on_first_step(1)) << "from the beginning";
  EXPECT_FALSE(progress.on_first_step(151)) << "no further than before";
}

TEST(KeptProgress, is_a_newer_file_in_the_checkpoint_folder_where_the_optimizer_counts_no_steps) {
  const TemporaryFolder folder;
  KeptProgress progress(folder.path());
  EXPECT_FALSE(progress.on_first_step(1));
  EXPECT_FALSE(progress.on_first_step(1));
  const std::string file = folder.write("step-1/model.pt", "");
  EXPECT_TRUE(progress.on_first_step(1));
  EXPECT_FALSE(progress.on_first_step(1)) << "the same file";
  std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) + std::chrono::seconds(1));
  EXPECT_TRUE(progress.on_first_step(1));
}

}  // namespace
}  // namespace lockstep
