#include "runner/agent/output_relay.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string_view>
#include <vector>

namespace lockstep {
namespace {

using testing::ElementsAre;

class Relayed : public testing::Test {
 protected:
  Relayed() {
    EXPECT_EQ(::pipe2(fds_, O_CLOEXEC), 0);
    relay_ = std::make_shared<OutputRelay>(
        loop_, fds_[0], [this](const std::string& line) { said_.push_back(line + "\n"); },
        [this](const std::string& text) { said_.push_back(text); });
    relay_->start();
  }
  ~Relayed() override { ::close(fds_[1]); }
  // What is relayed of these bytes.
  std::vector<std::string> write(std::string_view bytes) {
    EXPECT_EQ(::write(fds_[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    loop_.restart();
    loop_.run_one();
    return std::exchange(said_, {});
  }
  boost::asio::io_context loop_;
  int fds_[2] = {-1, -1};
  std::shared_ptr<OutputRelay> relay_;
  std::vector<std::string> said_;
};

TEST_F(Relayed, shows_what_a_progress_bar_draws_before_its_line_ends) {
  EXPECT_THAT(write("\r  0%|"), ElementsAre("  0%|"));
  EXPECT_THAT(write("\r 10%|\r 20%|"), ElementsAre(" 20%|"));
  EXPECT_THAT(write("\r 20%|"), ElementsAre());  // nothing new
  EXPECT_THAT(write("\r100%|\nthe end"), ElementsAre("100%|\n", "the end"));
  EXPECT_THAT(write("\r\n"), ElementsAre("the end\n", ""));
}

TEST_F(Relayed, knows_a_bar_that_is_wiped_out) {
  EXPECT_THAT(write("\r 50%|"), ElementsAre(" 50%|"));
  EXPECT_THAT(write("\r      \r"), ElementsAre(""));
  EXPECT_THAT(write("epoch 1 is done\n"), ElementsAre("epoch 1 is done\n"));
}

TEST_F(Relayed, says_an_unfinished_line_at_the_end_as_a_line) {
  EXPECT_THAT(write("a question?"), ElementsAre("a question?"));
  relay_->finish();
  EXPECT_THAT(said_, ElementsAre("a question?\n", ""));
}

TEST_F(Relayed, keeps_lines_of_other_programs_as_they_are) {
  EXPECT_THAT(write("a\r\n  b\n\n"), ElementsAre("a\n", "  b\n", "\n"));
}

}  // namespace
}  // namespace lockstep
