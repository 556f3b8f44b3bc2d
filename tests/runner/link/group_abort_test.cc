#include "runner/link/group_abort.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace lockstep {
namespace {

// A TCP connection over loopback, and the listener that it came through.
class Connection {
 public:
  Connection() : listener(::socket(AF_INET, SOCK_STREAM, 0)), near(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const where = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener, where, size), 0);
    EXPECT_EQ(::listen(listener, 4), 0);
    EXPECT_EQ(::getsockname(listener, where, &size), 0);
    EXPECT_EQ(::connect(near, where, size), 0);
    far = ::accept(listener, nullptr, nullptr);
  }
  ~Connection() {
    for (const int fd : {listener, near, far}) ::close(fd);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Has the connection been shut down?
  [[nodiscard]] bool is_down() const {
    char byte = 0;
    return ::recv(near, &byte, 1, MSG_DONTWAIT) == 0;
  }
  [[nodiscard]] bool listens() const {
    int listening = 0;
    socklen_t size = sizeof listening;
    return ::getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening == 1;
  }

  int listener;
  int near;
  int far = -1;
};

TEST(GroupAbort, shuts_down_what_was_opened_while_the_group_was_formed_and_nothing_else) {
  const Connection before;
  GroupAbort abort;
  const Connection of_the_group;
  abort.group_is_formed();
  const Connection later;
  abort.fire();
  EXPECT_TRUE(of_the_group.is_down());
  EXPECT_TRUE(of_the_group.listens());
  EXPECT_FALSE(before.is_down());
  EXPECT_FALSE(later.is_down());
}

TEST(GroupAbort, also_ends_a_group_that_is_still_being_formed) {
  GroupAbort abort;
  const Connection half_formed;
  abort.fire();
  EXPECT_TRUE(abort.fired());
  EXPECT_TRUE(half_formed.is_down());
}

// NCCL's root waits for its peers in accept(), and no abort ends that.
TEST(GroupAbort, ends_the_listeners_of_who_still_meets_its_peers_and_spares_gloo_s) {
  GroupAbort abort;
  const Connection of_gloo;
  abort.gloo_is_ready();
  const Connection of_nccl;
  abort.fire();
  EXPECT_TRUE(of_gloo.is_down());
  EXPECT_TRUE(of_gloo.listens());
  EXPECT_TRUE(of_nccl.is_down());
  EXPECT_FALSE(of_nccl.listens());
}

// It is ended by NCCL's own calls, which use its sockets.
TEST(GroupAbort, spares_a_communicator_that_stands_and_ends_gloo_s_connections) {
  GroupAbort abort;
  const Connection of_gloo;
  abort.gloo_is_ready();
  const Connection of_nccl;
  abort.group_is_formed();
  abort.fire();
  EXPECT_TRUE(of_gloo.is_down());
  EXPECT_TRUE(of_gloo.listens());
  EXPECT_FALSE(of_nccl.is_down());
  EXPECT_TRUE(of_nccl.listens());
}

TEST(GroupAbort, a_retired_one_touches_nothing) {
  GroupAbort abort;
  const Connection somebody_elses;
  abort.group_is_formed();
  int called = 0;
  abort.add_action([&] { ++called; });
  abort.retire();
  abort.fire();
  EXPECT_FALSE(somebody_elses.is_down());
  EXPECT_EQ(called, 0);
}

TEST(GroupAbort, an_action_that_comes_too_late_runs_at_once) {
  GroupAbort abort;
  int called = 0;
  abort.add_action([&] { ++called; });
  abort.fire();
  abort.add_action([&] { called += 10; });
  EXPECT_EQ(called, 11);
}

}  // namespace
}  // namespace lockstep
