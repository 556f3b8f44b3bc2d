// The operator's HTTP requests to an agent. Pure, except that callbacks are called.
//
//   POST /nodes        {"nodes": 3}               to node 0: the number of nodes that are wanted
//   POST /coordinator  {"address": "10.98.0.4"}   to other nodes: node 0's address; the port is that of --coordinator
//
// Authorization: Bearer LOCKSTEP_TOKEN. The answer is 202 with the body repeated, or an error that says what was
// expected: 400 invalid body, 401 wrong or no token, 405 another path, 409 the wrong agent, 413 too long.
// Threads: on those of the status server.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <functional>
#include <string>

#include "runner/base/http_server.h"

namespace lockstep {

inline constexpr size_t kRequestBodyMax = 1024;

struct OperatorControl {
  std::string token;  // empty: all requests are refused
  int min_nodes = 1;
  int max_nodes = 1;
  // Called on a thread of the server.
  std::function<void(int nodes)> set_nodes;                                      // absent: this is not node 0
  std::function<void(const boost::asio::ip::address& address)> set_coordinator;  // absent: this is node 0
};

HttpAnswer answer_post(const OperatorControl& control, const HttpRequest& request);

}  // namespace lockstep
