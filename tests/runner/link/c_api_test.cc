// What the Python package calls: each function, over a link whose other end is the test's.
#include "runner/link/c_api.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>

#include "runner/base/line_channel.h"
#include "runner/contract/beat_page.h"
#include "runner/contract/messages.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr int kPatience = 10'000;  // milliseconds: far more than anything takes

std::string taken(char* text) {
  EXPECT_NE(text, nullptr);
  std::string copy = text == nullptr ? "" : text;
  lockstep_free(text);
  return copy;
}

// As the agent makes it, in the file of this descriptor.
BeatPage* new_page(int fd) {
  EXPECT_EQ(::ftruncate(fd, sizeof(BeatPage)), 0);
  void* const memory = ::mmap(nullptr, sizeof(BeatPage), PROT_READ | PROT_WRITE, MAP_SHARED, ::dup(fd), 0);
  return new (memory) BeatPage();
}

// The link lives as long as the process, as in a rank; so the agent's end does, too.
class CApiTest : public ::testing::Test {
 protected:
  CApiTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    const int page_fd = ::memfd_create("page", MFD_CLOEXEC);
    page_ = new_page(page_fd);
    agent_ = new LineChannel(ends[1]);  // NOLINT(cppcoreguidelines-owning-memory): as said above
    link_ = lockstep_open(ends[0], page_fd, 0);
  }
  void say(const AgentMessage& message) { ASSERT_TRUE(agent_->write_line(encode(message)).ok()); }
  std::string heard() {
    const auto line = agent_->read_line();
    return line.ok() && *line ? **line : "nothing";
  }

  BeatPage* page_ = nullptr;
  LineChannel* agent_ = nullptr;
  lockstep_link* link_ = nullptr;
};

TEST_F(CApiTest, a_page_that_cannot_be_mapped_is_an_error_that_names_its_variable) {
  EXPECT_EQ(lockstep_open(-1, -1, 0), nullptr);
  EXPECT_THAT(lockstep_error(), HasSubstr("LOCKSTEP_BEAT_FD is -1"));
}

TEST_F(CApiTest, a_page_that_is_none_or_has_another_version_is_refused) {
  const int fd = ::memfd_create("page", MFD_CLOEXEC);
  EXPECT_EQ(lockstep_open(-1, fd, 0), nullptr);
  EXPECT_THAT(lockstep_error(), HasSubstr("which cannot be mapped as a beat page")) << "it is empty";
  BeatPage* const page = new_page(fd);
  page->version = 7;
  EXPECT_EQ(lockstep_open(-1, fd, 0), nullptr);
  EXPECT_THAT(lockstep_error(), HasSubstr("has version 7, and this program writes version 1"));
  page->magic = 0;
  EXPECT_EQ(lockstep_open(-1, fd, 0), nullptr);
  EXPECT_THAT(lockstep_error(), HasSubstr("which is no beat page"));
  ::munmap(page, sizeof(BeatPage));
  ::close(fd);
}

TEST_F(CApiTest, a_line_that_is_no_message_is_refused_with_the_field) {
  EXPECT_EQ(lockstep_send(link_, R"({"type":"left","cause":"Cut","message":"","step":1})"), -1);
  EXPECT_THAT(lockstep_error(), HasSubstr(R"(field "generation" is missing)"));
  EXPECT_EQ(lockstep_send(link_, R"({"type":"outlives"})"), 0);
  EXPECT_EQ(heard(), R"({"leaves_together":false,"type":"outlives"})");
}

TEST_F(CApiTest, an_assignment_is_waited_for_with_patience) {
  EXPECT_EQ(lockstep_assignment(link_, 1), nullptr);
  Assignment assignment;
  assignment.generation = 5;
  assignment.rank = 2;
  say(assignment);
  EXPECT_THAT(taken(lockstep_assignment(link_, kPatience)), HasSubstr(R"("rank":2)"));
  EXPECT_EQ(page_->generation.load(), 5U);
}

TEST_F(CApiTest, the_store_answers_by_id_and_a_cut_ends_every_wait) {
  EXPECT_EQ(lockstep_ask(link_, R"({"type":"done"})"), 0U);
  EXPECT_THAT(lockstep_error(), HasSubstr("only a message of type \"store\""));
  const char* const get =
      R"({"type":"store","id":0,"generation":3,"op":"get","keys":["k"],"values":[],"amount":0,"timeout_ms":9000})";
  const uint64_t first = lockstep_ask(link_, get);
  const uint64_t second = lockstep_ask(link_, get);
  ASSERT_NE(first, 0U);
  heard();
  EXPECT_THAT(heard(), HasSubstr("\"id\":" + std::to_string(second)));
  EXPECT_EQ(lockstep_reply(link_, first, 1), nullptr);
  say(StoreReply{.id = second, .status = StoreStatus::kOk, .values = {"v"}, .message = ""});
  EXPECT_THAT(taken(lockstep_reply(link_, second, kPatience)), HasSubstr(R"("values":["76"])"));
  EXPECT_EQ(lockstep_cut_generation(link_), 0U);
  say(Cut{.generation = 3, .cause = "SignalKILL"});
  EXPECT_THAT(taken(lockstep_reply(link_, first, kPatience)), HasSubstr("the group was cut (SignalKILL)"));
  EXPECT_EQ(lockstep_cut_generation(link_), 3U);
  EXPECT_EQ(taken(lockstep_cut_cause(link_)), "SignalKILL");
}

TEST_F(CApiTest, the_ranks_of_a_group_may_be_asked_to_leave_it_together) {
  EXPECT_EQ(lockstep_leave_together(link_, 3), -1);
  say(LeaveTogether{.generation = 3, .leaving_code = 143});
  while (lockstep_leave_together(link_, 3) < 0) std::this_thread::yield();
  EXPECT_EQ(lockstep_leave_together(link_, 3), 143);
  EXPECT_EQ(lockstep_leave_together(link_, 4), -1);
}

TEST_F(CApiTest, the_page_shows_what_the_rank_does) {
  lockstep_beat(link_, static_cast<int>(Activity::kTraining), static_cast<int>(Phase::kGradSync));
  lockstep_commit(link_, 7);
  EXPECT_EQ(page_->activity.load(), Activity::kTraining);
  EXPECT_EQ(page_->phase.load(), Phase::kGradSync);
  EXPECT_EQ(page_->step.load(), 7);
  EXPECT_GT(page_->committed_ns.load(), 0);
  EXPECT_LE(page_->changed_ns.load(), lockstep_now_ns());
}

TEST_F(CApiTest, the_page_says_how_long_each_phase_took) {
  const auto spent = [&](Phase phase) { return page_->phase_ns[static_cast<size_t>(phase)].load(); };
  lockstep_beat(link_, static_cast<int>(Activity::kTraining), static_cast<int>(Phase::kOther));
  const int64_t began = page_->changed_ns.load();
  const int64_t before = spent(Phase::kOther);
  lockstep_commit(link_, 7);
  lockstep_beat(link_, static_cast<int>(Activity::kTraining), static_cast<int>(Phase::kGradSync));
  EXPECT_EQ(spent(Phase::kOther) - before, page_->changed_ns.load() - began);
  EXPECT_EQ(spent(Phase::kGradSync), 0) << "it has just begun";
}

// A TCP connection to itself, as Gloo's are.
std::array<int, 2> connect_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::listen(listener, 1), 0);
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(client, reinterpret_cast<sockaddr*>(&address), size), 0);
  const int server = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  return {client, server};
}

TEST_F(CApiTest, a_cut_ends_a_read_of_a_socket_of_the_group_and_of_no_other) {
  const std::array<int, 2> others = connect_pair();
  lockstep_watch(link_, 4);
  const std::array<int, 2> of_group = connect_pair();
  lockstep_formed(link_);
  std::thread cutter([this] { say(Cut{.generation = 4, .cause = "NodeLost"}); });
  char byte = 0;
  EXPECT_EQ(::read(of_group[0], &byte, 1), 0);  // blocks until the reader thread has shut it down
  cutter.join();
  ASSERT_EQ(::write(others[0], "x", 1), 1);
  EXPECT_EQ(::read(others[1], &byte, 1), 1);
  lockstep_retire(link_);
}

TEST_F(CApiTest, what_opens_after_the_cut_is_shut_down_when_the_group_has_formed) {
  lockstep_watch(link_, 6);
  say(Cut{.generation = 6, .cause = "NodeLost"});
  while (lockstep_cut_generation(link_) < 6) std::this_thread::yield();
  const std::array<int, 2> of_group = connect_pair();
  lockstep_formed(link_);
  char byte = 0;
  EXPECT_EQ(::read(of_group[0], &byte, 1), 0);
  lockstep_retire(link_);
}

}  // namespace
}  // namespace lockstep
