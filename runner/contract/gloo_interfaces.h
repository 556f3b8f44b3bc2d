// What GLOO_SOCKET_IFNAME says: names of interfaces, separated by commas, as PyTorch takes them.
// Role: shared by the group (which listens on the first that it can) and by `lockstep doctor`. Threads: pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// "eth0,ib0" → eth0, ib0. Empty where the value names nothing.
std::vector<std::string> gloo_interfaces(std::string_view value);

// "^lo,docker" and "=eth0" are NCCL's (NCCL_SOCKET_IFNAME); Gloo takes neither, in PyTorch as here.
inline bool is_nccl_syntax(std::string_view value) { return value.starts_with('^') || value.starts_with('='); }
inline constexpr std::string_view kGlooSyntax =
    "a leading ^ or = is NCCL's syntax (NCCL_SOCKET_IFNAME); GLOO_SOCKET_IFNAME takes names, separated by commas";

}  // namespace lockstep
