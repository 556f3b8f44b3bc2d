#include "operator/kube/server_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::kube {
namespace {

using ::testing::HasSubstr;

TEST(ServerUrl, is_taken_apart) {
  const Result<ServerUrl> url = parse_server_url("https://API.example.com:6443/k8s/clusters/c-1/");
  ASSERT_TRUE(url.ok());
  EXPECT_TRUE(url->https);
  EXPECT_EQ(url->host, "api.example.com");
  EXPECT_EQ(url->port, 6443);
  EXPECT_EQ(url->path, "/k8s/clusters/c-1");
  EXPECT_EQ(url->authority(), "api.example.com:6443");
}

TEST(ServerUrl, ports_have_defaults_that_are_left_out_again) {
  EXPECT_EQ(parse_server_url("https://a")->authority(), "a");
  EXPECT_EQ(parse_server_url("http://a/")->authority(), "a");
  EXPECT_EQ(parse_server_url("http://a")->port, 80);
  EXPECT_EQ(parse_server_url("http://a:443")->authority(), "a:443");
}

TEST(ServerUrl, ipv6_addresses_lose_their_brackets_and_get_them_back) {
  const Result<ServerUrl> url = parse_server_url("https://[fd00::1]:6443");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "fd00::1");
  EXPECT_TRUE(url->is_ipv6());
  EXPECT_EQ(url->authority(), "[fd00::1]:6443");
  EXPECT_EQ(parse_server_url("https://[::1]")->authority(), "[::1]");
}

TEST(ServerUrl, what_cannot_be_one_is_refused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "does not begin with https:// or http://"},
      {"10.0.0.1:6443", "does not begin with https:// or http://"},
      {"https://", "has no valid host"},
      {"https://:6443", "has no valid host"},
      {"https://a b", "has no valid host"},
      {"https://fd00::1:6443", "has no port from 1 to 65535"},
      {"https://[fd00::1", "has a '[' without a ']'"},
      {"https://[nothing]", "has no valid host"},
      {"https://[::1]x", "has more than a port"},
      {"https://a:0", "has no port"},
      {"https://a:65536", "has no port"},
      {"https://a:6443x", "has no port"},
      {"https://a:", "has no port"},
      {"https://me:secret@a", "holds a user name"},
      {"https://a/?x=y", "has a query"},
      {"https://a/x y", "has an invalid path"},
  };
  for (const auto& [text, why] : cases) {
    const Result<ServerUrl> url = parse_server_url(text);
    ASSERT_FALSE(url.ok()) << text;
    EXPECT_EQ(url.error().code, ErrorCode::kInvalid);
    EXPECT_THAT(url.error().message, HasSubstr(why)) << text;
    EXPECT_THAT(url.error().message, HasSubstr("expected https://HOST:PORT"));
  }
}

TEST(ServerUrl, addresses_are_told_from_names) {
  for (const char* address : {"127.0.0.1", "::1", "fd00::1"}) EXPECT_TRUE(is_address(address)) << address;
  for (const char* name : {"localhost", "kubernetes.default.svc", "127.0.0", "[::1]", ""}) {
    EXPECT_FALSE(is_address(name)) << name;
  }
}

}  // namespace
}  // namespace lockstep::kube
