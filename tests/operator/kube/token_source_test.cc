#include "operator/kube/token_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace lockstep::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class TokenInFile : public ::testing::Test {
 protected:
  TokenSource make(const std::string& token = "") {
    return TokenSource({.token = token, .file = folder_.path() + "/token", .now = [this] { return now_; }});
  }
  TemporaryFolder folder_;
  TokenSource::Clock::time_point now_{seconds(1000)};
};

TEST(TokenSource, a_token_in_the_configuration_is_used_as_it_is) {
  TokenSource source({.token = "abc"});
  EXPECT_EQ(*source.token(), "abc");
  source.refuse();
  EXPECT_EQ(*source.token(), "abc");
}

TEST(TokenSource, nothing_is_no_token) { EXPECT_EQ(*TokenSource({}).token(), ""); }

TEST_F(TokenInFile, is_read_again_once_a_minute) {
  folder_.write("token", "one\n");
  TokenSource source = make();
  EXPECT_EQ(*source.token(), "one");
  folder_.write("token", "two\n");
  now_ += seconds(59);
  EXPECT_EQ(*source.token(), "one");
  now_ += seconds(1);
  EXPECT_EQ(*source.token(), "two");
}

TEST_F(TokenInFile, is_read_again_when_the_server_refused_it_but_not_all_the_time) {
  folder_.write("token", "one");
  TokenSource source = make();
  EXPECT_EQ(*source.token(), "one");
  folder_.write("token", "two");
  source.refuse();
  now_ += milliseconds(999);
  EXPECT_EQ(*source.token(), "one");
  now_ += milliseconds(1);
  EXPECT_EQ(*source.token(), "two");
  // One refusal causes one read of the file.
  folder_.write("token", "three");
  now_ += seconds(30);
  EXPECT_EQ(*source.token(), "two");
}

TEST_F(TokenInFile, wins_over_the_one_in_the_configuration) {
  folder_.write("token", "from-file");
  EXPECT_EQ(*make("from-config").token(), "from-file");
}

TEST_F(TokenInFile, while_the_file_is_away_the_last_one_is_good) {
  folder_.write("token", "one");
  TokenSource source = make();
  EXPECT_EQ(*source.token(), "one");
  std::filesystem::remove(folder_.path() + "/token");
  now_ += seconds(61);
  EXPECT_EQ(*source.token(), "one");
  folder_.write("token", "two");
  now_ += seconds(60);
  EXPECT_EQ(*source.token(), "two");
  EXPECT_EQ(*TokenSource({.token = "configured", .file = folder_.path() + "/nothing"}).token(), "configured");
}

TEST_F(TokenInFile, a_file_that_was_never_there_or_holds_none_is_an_error) {
  TokenSource source = make();
  EXPECT_EQ(source.token().error().code, ErrorCode::kNotFound);
  EXPECT_THAT(source.token().error().message, HasSubstr("the bearer token: open " + folder_.path() + "/token"));
  for (const char* text : {"", "\n", "two words", "line\nline", "t\xc3\xa9"}) {
    folder_.write("token", text);
    EXPECT_EQ(source.token().error().code, ErrorCode::kInvalid) << text;
    EXPECT_THAT(source.token().error().message, HasSubstr("holds no bearer token"));
  }
  folder_.write("token", "good");  // and is found as soon as it is there
  EXPECT_EQ(*source.token(), "good");
}

}  // namespace
}  // namespace lockstep::kube
