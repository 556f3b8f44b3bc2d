// What the operator may tell an agent, and what nobody may.
#include "runner/agent/operator_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::HasSubstr;

class OperatorRequests : public testing::Test {
 protected:
  OperatorControl node0() {
    OperatorControl control;
    control.token = "secret";
    control.max_nodes = 3;
    control.set_nodes = [this](int nodes) { nodes_.push_back(nodes); };
    return control;
  }
  OperatorControl other_node() {
    OperatorControl control;
    control.token = "secret";
    control.max_nodes = 3;
    control.set_coordinator = [this](const boost::asio::ip::address& address) {
      addresses_.push_back(address.to_string());
    };
    return control;
  }
  static HttpAnswer post(const OperatorControl& control, const std::string& path, const std::string& body,
                         const std::string& authorization = "Bearer secret") {
    return answer_post(control, {.path = path, .authorization = authorization, .body = body});
  }

  std::vector<int> nodes_;
  std::vector<std::string> addresses_;
};

TEST_F(OperatorRequests, take_where_node_0_is_and_say_it_back) {
  for (const char* address : {"10.98.0.4", "fd00::1", "127.0.0.2"}) {
    const HttpAnswer answer = post(other_node(), "/coordinator", std::string("{\"address\": \"") + address + "\"}");
    EXPECT_EQ(answer.code, 202);
    EXPECT_EQ(answer.body, std::string("{\"address\":\"") + address + "\"}\n");
    EXPECT_EQ(addresses_.back(), address);
  }
}

TEST_F(OperatorRequests, refuse_an_invalid_address) {
  for (const char* body :
       {"", "{", "[]", "{}", R"({"address": 7})", R"({"address": null})", R"({"address": ""})",
        R"({"address": "sasrec-0.sasrec.ns.svc"})", R"({"address": "10.98.0.4:29400"})", R"({"address": "[fd00::1]"})",
        R"({"address": "10.98.0.256"})", R"({"address": "10.98.4"})", R"({"address": " 10.98.0.4"})",
        R"({"address": "0.0.0.0"})", R"({"address": "::"})", R"({"address": "224.0.0.1"})",
        R"({"address": "255.255.255.255"})", R"({"address": "ff02::1"})"}) {
    const HttpAnswer answer = post(other_node(), "/coordinator", body);
    EXPECT_EQ(answer.code, 400) << body;
    EXPECT_THAT(answer.body, HasSubstr("expected {\"address\": \"10.0.0.7\"}")) << body;
  }
  EXPECT_TRUE(addresses_.empty());
}

TEST_F(OperatorRequests, are_for_one_kind_of_node_each) {
  EXPECT_EQ(post(node0(), "/coordinator", R"({"address": "10.98.0.4"})").code, 409);
  EXPECT_THAT(post(node0(), "/coordinator", "").body, HasSubstr("this is node 0, where the coordinator is"));
  EXPECT_EQ(post(other_node(), "/nodes", R"({"nodes": 2})").code, 409);
  EXPECT_EQ(post(node0(), "/nodes", R"({"nodes": 2})").body, "{\"nodes\":2}\n");
  EXPECT_EQ(nodes_, std::vector<int>{2});
}

TEST_F(OperatorRequests, need_the_job_s_token) {
  OperatorControl open = other_node();
  open.token = "";
  for (const char* path : {"/nodes", "/coordinator"}) {
    for (const char* authorization : {"", "Bearer ", "Bearer wrong", "Bearer secret ", "secret", "Basic secret"}) {
      const HttpAnswer answer = post(other_node(), path, R"({"address": "10.98.0.4"})", authorization);
      EXPECT_EQ(answer.code, 401) << authorization;
      EXPECT_THAT(answer.body, HasSubstr("LOCKSTEP_TOKEN"));
    }
    EXPECT_EQ(post(open, path, R"({"address": "10.98.0.4"})", "Bearer ").code, 401);
  }
  EXPECT_TRUE(addresses_.empty());
}

TEST_F(OperatorRequests, have_two_paths_and_a_limit) {
  EXPECT_EQ(post(other_node(), "/status", "{}").code, 405);
  EXPECT_EQ(post(other_node(), "/coordinator/", "{}").code, 405);
  EXPECT_EQ(post(other_node(), "/coordinator", std::string(kRequestBodyMax + 1, ' ')).code, 413);
  EXPECT_EQ(post(other_node(), "/coordinator", std::string(kRequestBodyMax, ' ')).code, 400);
}

}  // namespace
}  // namespace lockstep
