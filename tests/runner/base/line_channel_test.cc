#include "runner/base/line_channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <thread>

namespace lockstep {
namespace {

TEST(LineSplitter, gives_whole_lines_whatever_the_pieces) {
  const std::string text = "one\n\nthree\nrest";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    LineSplitter splitter;
    std::vector<std::string> lines;
    for (size_t at = 0; at < text.size(); at += piece) {
      splitter.append(std::string_view(text).substr(at, piece));
      for (auto line = splitter.next_line(); line.ok() && line->has_value(); line = splitter.next_line()) {
        lines.push_back(**line);
      }
    }
    EXPECT_EQ(lines, (std::vector<std::string>{"one", "", "three"}));
    EXPECT_EQ(splitter.flush_rest(), "rest");
  }
}

TEST(LineSplitter, refuses_a_line_above_the_limit_even_before_its_end) {
  LineSplitter splitter(4);
  splitter.append("1234\n12345");
  EXPECT_EQ(**splitter.next_line(), "1234");
  EXPECT_EQ(splitter.next_line().error().code, ErrorCode::kCorrupt);
}

class Channels : public testing::Test {
 protected:
  Channels() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    a_ = std::make_unique<LineChannel>(fds[0]);
    b_ = std::make_unique<LineChannel>(fds[1]);
  }
  std::unique_ptr<LineChannel> a_;
  std::unique_ptr<LineChannel> b_;
};

TEST_F(Channels, carry_lines_larger_than_any_buffer_from_several_threads) {
  constexpr int kLines = 20;
  const std::string line(300'000, 'x');
  std::thread one([&] {
    for (int i = 0; i < kLines; ++i) EXPECT_TRUE(a_->write_line(line).ok());
  });
  std::thread two([&] {
    for (int i = 0; i < kLines; ++i) EXPECT_TRUE(a_->write_line("short").ok());
  });
  int long_lines = 0;
  for (int i = 0; i < 2 * kLines; ++i) {
    const auto got = b_->read_line();
    ASSERT_TRUE(got.ok() && got->has_value());
    EXPECT_TRUE(**got == line || **got == "short");
    long_lines += **got == line ? 1 : 0;
  }
  one.join();
  two.join();
  EXPECT_EQ(long_lines, kLines);
}

TEST_F(Channels, say_when_the_peer_is_gone) {
  EXPECT_TRUE(a_->write_line("last").ok());
  a_.reset();
  EXPECT_EQ(**b_->read_line(), "last");
  const auto end = b_->read_line();
  ASSERT_TRUE(end.ok());
  EXPECT_FALSE(end->has_value());
  EXPECT_EQ(b_->write_line("anyone?").error().code, ErrorCode::kGone);
}

TEST_F(Channels, wake_their_reader_on_shutdown) {
  std::thread closer([&] { b_->shutdown(); });
  const auto end = b_->read_line();
  closer.join();
  ASSERT_TRUE(end.ok());
  EXPECT_FALSE(end->has_value());
}

}  // namespace
}  // namespace lockstep
