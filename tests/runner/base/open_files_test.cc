#include "runner/base/open_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace lockstep {
namespace {

// Gives the soft limit back that the process had before the test.
class OpenFiles : public testing::Test {
 protected:
  OpenFiles() { ::getrlimit(RLIMIT_NOFILE, &before_); }
  ~OpenFiles() override { ::setrlimit(RLIMIT_NOFILE, &before_); }

  void allow(rlim_t files) const {
    const rlimit limit{.rlim_cur = files, .rlim_max = before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  rlimit before_{};
};

TEST_F(OpenFiles, the_soft_limit_becomes_the_hard_one) {
  allow(64);
  raise_open_files_limit();
  rlimit now{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, before_.rlim_max);
}

TEST_F(OpenFiles, a_full_table_is_named_with_its_size_and_the_way_out) {
  allow(64);
  const std::string hint = open_files_hint(std::strerror(EMFILE));
  EXPECT_NE(hint.find("this process may have 64 files and sockets open"), std::string::npos) << hint;
  EXPECT_NE(hint.find("ulimit -Hn"), std::string::npos) << hint;
  EXPECT_NE(open_files_hint(std::strerror(ENFILE)).find("fs.file-max"), std::string::npos);
}

TEST_F(OpenFiles, more_sockets_than_the_limit_leaves_are_named_whatever_the_failure_says) {
  allow(64);
  const std::string hint = open_files_hint("Connection reset by peer", 100);
  EXPECT_NE(hint.find("and needs 100 more"), std::string::npos) << hint;
  EXPECT_EQ(open_files_hint("Connection reset by peer", 1), "");
  EXPECT_EQ(open_files_hint("Connection reset by peer"), "");
}

}  // namespace
}  // namespace lockstep
