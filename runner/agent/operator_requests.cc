#include "runner/agent/operator_requests.h"

#include <utility>

#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/base/same_secret.h"
#include "runner/contract/env_names.h"

namespace lockstep {
namespace {

namespace ip = boost::asio::ip;

// The number of nodes in the body; the error says what was expected.
Result<int> wanted_nodes(const std::string& body, const OperatorControl& control) {
  std::string expected = "expected {\"nodes\": N} with N from ";
  expected.append(std::to_string(control.min_nodes)).append(" to ").append(std::to_string(control.max_nodes));
  const Result<Json> parsed = parse_json(body, "the body");
  if (!parsed.ok()) return parsed.error().with_context(expected);
  if (!parsed->is_object() || !parsed->contains("nodes") || !(*parsed)["nodes"].is_number_integer()) {
    return Error{ErrorCode::kInvalid, "found " + dump_line(*parsed) + ", " + expected};
  }
  const auto nodes = (*parsed)["nodes"].get<int64_t>();
  if (nodes < control.min_nodes || nodes > control.max_nodes) {
    return Error{ErrorCode::kInvalid, "nodes is " + std::to_string(nodes) + ", " + expected};
  }
  return static_cast<int>(nodes);
}

// Is it the address of a single machine, and not unspecified, multicast or broadcast?
bool is_of_a_host(const ip::address& address) {
  return !address.is_unspecified() && !address.is_multicast() && address != ip::address_v4::broadcast();
}

Result<ip::address> coordinator_address(const std::string& body) {
  const std::string expected = R"(expected {"address": "10.0.0.7"}, an IPv4 or IPv6 address without a port)";
  const Result<Json> parsed = parse_json(body, "the body");
  if (!parsed.ok()) return parsed.error().with_context(expected);
  if (!parsed->is_object() || !parsed->contains("address") || !(*parsed)["address"].is_string()) {
    return Error{ErrorCode::kInvalid, "found " + dump_line(*parsed) + ", " + expected};
  }
  boost::system::error_code error;
  const ip::address address = ip::make_address((*parsed)["address"].get<std::string>(), error);
  if (error || !is_of_a_host(address)) {
    return Error{ErrorCode::kInvalid, "address is " + dump_line((*parsed)["address"]) + ", " + expected};
  }
  return address;
}

HttpAnswer answer_nodes(const OperatorControl& control, const std::string& body) {
  if (!control.set_nodes) return {409, kTextType, "this is not node 0, where the coordinator is: ask there\n"};
  const Result<int> nodes = wanted_nodes(body, control);
  if (!nodes.ok()) return {400, kTextType, nodes.error().message + "\n"};
  control.set_nodes(*nodes);
  return {202, kJsonType, dump_line(Json{{"nodes", *nodes}}) + "\n"};
}

HttpAnswer answer_coordinator(const OperatorControl& control, const std::string& body) {
  if (!control.set_coordinator) return {409, kTextType, "this is node 0, where the coordinator is\n"};
  const Result<ip::address> address = coordinator_address(body);
  if (!address.ok()) return {400, kTextType, address.error().message + "\n"};
  control.set_coordinator(*address);
  return {202, kJsonType, dump_line(Json{{"address", address->to_string()}}) + "\n"};
}

}  // namespace

HttpAnswer answer_post(const OperatorControl& control, const HttpRequest& request) {
  const bool is_nodes = request.path == "/nodes";
  if (!is_nodes && request.path != "/coordinator") {
    return {405, kTextType, "only /nodes and /coordinator take a POST\n"};
  }
  if (request.body.size() > kRequestBodyMax) return {413, kTextType, "the body is longer than 1,024 bytes\n"};
  if (control.token.empty() || !same_secret("Bearer " + control.token, request.authorization)) {
    return {401, kTextType, "Authorization must be \"Bearer \" and the job's " + std::string(env::kToken) + "\n"};
  }
  return is_nodes ? answer_nodes(control, request.body) : answer_coordinator(control, request.body);
}

}  // namespace lockstep
