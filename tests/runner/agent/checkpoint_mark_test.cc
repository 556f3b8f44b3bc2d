#include "runner/agent/checkpoint_mark.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

class CheckpointMark : public testing::Test {
 protected:
  [[nodiscard]] std::string path() const { return folder_.path() + "/mark"; }
  void write(const std::string& text) const { std::ofstream(path()) << text; }
  [[nodiscard]] int64_t read() const {
    const int fd = ::open(path().c_str(), O_RDONLY | O_CLOEXEC);
    const int64_t step = read_checkpoint_mark(fd);
    ::close(fd);
    return step;
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(CheckpointMark, holds_the_highest_step) {
  write("");
  EXPECT_EQ(read(), -1);
  leave_checkpoint_mark(path(), 0);
  EXPECT_EQ(read(), 0);
  leave_checkpoint_mark(path(), 1'200'000'000'000);
  EXPECT_EQ(read(), 1'200'000'000'000);
  leave_checkpoint_mark(path(), 0);  // by the first step of an agent that was started later
  EXPECT_EQ(read(), 1'200'000'000'000);
}

TEST_F(CheckpointMark, is_nothing_when_something_else_is_there) {
  for (const char* text : {"120", "x0000000000000000120", "0000000000000000012x", "99999999999999999999"}) {
    write(text);
    EXPECT_EQ(read(), -1) << text;
  }
  EXPECT_EQ(read_checkpoint_mark(-1), -1);
}

TEST_F(CheckpointMark, is_left_nowhere_when_nobody_asks_for_it) {
  leave_checkpoint_mark("", 5);
  leave_checkpoint_mark(path(), 5);  // its reader is gone
  EXPECT_FALSE(std::ifstream(path()).good());
}

}  // namespace
}  // namespace lockstep
