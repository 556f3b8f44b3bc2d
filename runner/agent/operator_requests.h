// What the operator may tell an agent over HTTP, and what it is answered. Pure, but for the callbacks.
//
//   POST /nodes        {"nodes": 3}               node 0: so many nodes are wanted
//   POST /coordinator  {"address": "10.98.0.4"}   the others: node 0 is there; its port is that of --coordinator
//
// Authorization: Bearer LOCKSTEP_TOKEN. 202 and the body again when it was taken; else words that say what was
// expected: 400 a body that says something else, 401 no token, 405 another path, 409 the wrong agent, 413 too long.
// Threads: on those of the status server.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <functional>
#include <string>

#include "runner/base/http_server.h"

namespace lockstep {

inline constexpr size_t kRequestBodyMax = 1024;

struct OperatorControl {
  std::string token;  // empty: nobody may tell anything
  int min_nodes = 1;
  int max_nodes = 1;
  // Called on a thread of the server.
  std::function<void(int nodes)> set_nodes;                                      // absent: this is not node 0
  std::function<void(const boost::asio::ip::address& address)> set_coordinator;  // absent: it is, or is alone
};

HttpAnswer answer_post(const OperatorControl& control, const HttpRequest& request);

}  // namespace lockstep
