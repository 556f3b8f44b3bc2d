#include "runner/agent/line_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <boost/asio/local/stream_protocol.hpp>

#include "tests/runner/agent/run_until.h"

namespace lockstep {
namespace {

namespace asio = boost::asio;
using testing::ElementsAre;
using testing::HasSubstr;
using Unix = asio::local::stream_protocol;

// Two ends of one connection.
class LineSockets : public testing::Test {
 protected:
  struct End {
    std::shared_ptr<LineSocket> socket;
    std::vector<std::string> lines;
    std::vector<std::string> closed;
  };

  void connect(LineSocket::Limits limits) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    for (int i = 0; i < 2; ++i) {
      End& end = ends_[i];
      end.socket = std::make_shared<LineSocket>(loop_, LineSocket::Socket(Unix::socket(loop_, Unix(), fds[i])), limits);
    }
  }
  void start(End& end) {
    end.socket->start({.on_line = [&end](const std::string& line) { end.lines.push_back(line); },
                       .on_closed = [&end](const std::string& why) { end.closed.push_back(why); }});
  }
  bool until(const std::function<bool()>& is_so) { return run_until(loop_, is_so); }

  asio::io_context loop_;
  End ends_[2];
};

TEST_F(LineSockets, carry_lines_in_both_directions_and_say_the_end_once) {
  connect({.line_bytes_max = 100, .queue_bytes_max = 1000});
  start(ends_[0]);
  start(ends_[1]);
  ends_[0].socket->send("one");
  ends_[0].socket->send("two");
  ends_[1].socket->send("back");
  ASSERT_TRUE(until([&] { return ends_[1].lines.size() == 2 && ends_[0].lines.size() == 1; }));
  EXPECT_THAT(ends_[1].lines, ElementsAre("one", "two"));
  ends_[0].socket->close();
  ASSERT_TRUE(until([&] { return !ends_[1].closed.empty(); }));
  EXPECT_THAT(ends_[1].closed, ElementsAre(HasSubstr("closed the connection")));
  EXPECT_TRUE(ends_[0].closed.empty());
  ends_[1].socket->send("into the void");
  EXPECT_FALSE(ends_[1].socket->is_open());
}

TEST_F(LineSockets, handle_the_last_words_of_a_peer_that_takes_nothing_any_more) {
  connect({.line_bytes_max = 100, .queue_bytes_max = 1000});
  start(ends_[0]);
  ends_[0].socket->send("last words");
  ASSERT_TRUE(until([&] { return ends_[0].socket->unsent_bytes() == 0; }));
  ends_[0].socket->close();
  start(ends_[1]);
  ends_[1].socket->send("too late");  // fails before anything was read
  ASSERT_TRUE(until([&] { return !ends_[1].closed.empty(); }));
  EXPECT_THAT(ends_[1].lines, ElementsAre("last words"));
  EXPECT_EQ(ends_[1].closed.size(), 1U);
}

TEST_F(LineSockets, say_all_before_a_close_that_waits) {
  const std::string large(1 << 18, 'x');  // one is more than a socket's buffer
  const auto lines_of_five = [&] {
    for (End& end : ends_) end = End();
    connect({.line_bytes_max = 1 << 20, .queue_bytes_max = 100 << 20});
    start(ends_[0]);
    for (int i = 0; i < 5; ++i) ends_[0].socket->send(large);
    ends_[0].socket->close_after_sending();
    ends_[0].socket->send("too late");
    start(ends_[1]);
    EXPECT_TRUE(until([&] { return !ends_[1].closed.empty(); }));
    EXPECT_TRUE(until([&] { return !ends_[0].socket->is_open(); }));
    return ends_[1].lines.size();
  };
  size_t lines = lines_of_five();
  for (int i = 0; lines != 5 && i < 5; ++i) lines = lines_of_five();  // this thread may not have run for kFlushTimeout
  EXPECT_EQ(lines, 5U);
}

TEST_F(LineSockets, give_up_a_peer_that_takes_nothing) {
  connect({.line_bytes_max = 1 << 20, .queue_bytes_max = 4 << 20});
  start(ends_[0]);
  for (int i = 0; i < 10; ++i) ends_[0].socket->send(std::string(1 << 20, 'x'));
  ASSERT_TRUE(until([&] { return !ends_[0].closed.empty(); }));
  EXPECT_THAT(ends_[0].closed, ElementsAre(HasSubstr("takes no data")));
}

TEST_F(LineSockets, take_longer_lines_when_the_limit_is_raised_between_two) {
  connect({.line_bytes_max = 10, .queue_bytes_max = 1000});
  ends_[1].socket->start({.on_line =
                              [this](const std::string& line) {
                                ends_[1].lines.push_back(line);
                                ends_[1].socket->set_line_bytes_max(50);
                              },
                          .on_closed = [this](const std::string& why) { ends_[1].closed.push_back(why); }});
  start(ends_[0]);
  ends_[0].socket->send("short");
  ends_[0].socket->send(std::string(40, 'l'));
  ends_[0].socket->send(std::string(60, 'L'));
  ASSERT_TRUE(until([&] { return !ends_[1].closed.empty(); }));
  EXPECT_THAT(ends_[1].lines, ElementsAre("short", std::string(40, 'l')));
  EXPECT_THAT(ends_[1].closed, ElementsAre(HasSubstr("longer than 50 bytes")));
}

TEST(AddressText, shows_an_ipv4_address_inside_ipv6_as_such) {
  EXPECT_EQ(address_text(asio::ip::make_address("::ffff:10.0.0.7")), "10.0.0.7");
  EXPECT_EQ(address_text(asio::ip::make_address("10.0.0.7")), "10.0.0.7");
  EXPECT_EQ(address_text(asio::ip::make_address("fd00::1")), "fd00::1");
}

}  // namespace
}  // namespace lockstep
