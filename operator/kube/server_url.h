// ServerUrl: the address of an API server, taken apart. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runner/base/result.h"

namespace lockstep::kube {

struct ServerUrl {
  bool https = true;
  std::string host;  // a name or an address; IPv6 without brackets; in lower case
  uint16_t port = 443;
  std::string path;  // "" or "/prefix", without a final '/'

  [[nodiscard]] bool is_ipv6() const { return host.find(':') != std::string::npos; }
  // "host:6443", "[::1]:6443"; without the scheme's own port.
  [[nodiscard]] std::string authority() const;
};

// "https://host:6443/prefix". kInvalid says what of it is wrong.
Result<ServerUrl> parse_server_url(std::string_view url);

// An address in digits, IPv4 or IPv6 (without brackets).
bool is_address(const std::string& host);

}  // namespace lockstep::kube
