#include "operator/kube/server_url.h"

#include <arpa/inet.h>

#include <algorithm>

#include "runner/base/parse_number.h"

namespace lockstep::kube {
namespace {

Error invalid_server(std::string_view url, const std::string& why) {
  std::string message = "the server's address \"";
  message.append(url).append("\" ").append(why).append("; expected https://HOST:PORT");
  return invalid(message);
}

bool is_host_name(std::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
  });
}

bool is_ipv6_address(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace

bool is_address(const std::string& host) {
  in_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 || is_ipv6_address(host);
}

std::string ServerUrl::authority() const {
  std::string text = is_ipv6() ? "[" + host + "]" : host;
  if (port != (https ? 443 : 80)) text.append(":").append(std::to_string(port));
  return text;
}

Result<ServerUrl> parse_server_url(std::string_view url) {
  ServerUrl parsed;
  std::string_view rest = url;
  if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    parsed.https = false;
    rest.remove_prefix(7);
  } else {
    return invalid_server(url, "does not begin with https:// or http://");
  }
  if (rest.find_first_of("?#") != std::string_view::npos) return invalid_server(url, "has a query or a fragment");

  const size_t slash = std::min(rest.find('/'), rest.size());
  parsed.path = std::string(rest.substr(slash));
  while (!parsed.path.empty() && parsed.path.back() == '/') parsed.path.pop_back();
  if (parsed.path.find_first_of(" \t\r\n\"<>\\^`{|}") != std::string::npos)
    return invalid_server(url, "has an invalid path");

  const std::string_view authority = rest.substr(0, slash);
  if (authority.find('@') != std::string_view::npos) return invalid_server(url, "holds a user name");
  std::string_view host = authority;
  std::string_view port;
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return invalid_server(url, "has a '[' without a ']'");
    host = authority.substr(1, close - 1);
    port = authority.substr(close + 1);
    if (!port.empty() && port.front() != ':') return invalid_server(url, "has more than a port behind its address");
  } else if (const size_t colon = authority.find(':'); colon != std::string_view::npos) {
    host = authority.substr(0, colon);
    port = authority.substr(colon);
  }
  parsed.host = std::string(host);
  std::transform(parsed.host.begin(), parsed.host.end(), parsed.host.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  const bool host_is_good = authority.starts_with('[') ? is_ipv6_address(parsed.host) : is_host_name(parsed.host);
  if (!host_is_good) return invalid_server(url, "has no valid host");

  parsed.port = parsed.https ? 443 : 80;
  if (!port.empty()) {
    port.remove_prefix(1);
    const auto number = parse_number<uint16_t>(port);
    if (!number || *number == 0) return invalid_server(url, "has no port from 1 to 65535");
    parsed.port = *number;
  }
  return parsed;
}

}  // namespace lockstep::kube
