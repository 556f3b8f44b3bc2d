#include "runner/contract/cuda_architectures.h"

#include <charconv>

namespace lockstep {
namespace {

constexpr std::string_view kPtx = "+PTX";

// False when `text` does not have the form "9.0".
bool parse_capability(std::string_view text, ComputeCapability& capability) {
  const char* const end = text.data() + text.size();
  const auto [dot, bad_major] = std::from_chars(text.data(), end, capability.major);
  if (bad_major != std::errc() || dot == end || *dot != '.') return false;
  const auto [rest, bad_minor] = std::from_chars(dot + 1, end, capability.minor);
  return bad_minor == std::errc() && rest == end;
}

bool runs_on(std::string_view entry, ComputeCapability gpu) {
  const bool is_ptx = entry.ends_with(kPtx);
  if (is_ptx) entry.remove_suffix(kPtx.size());
  ComputeCapability code;
  if (!parse_capability(entry, code)) return false;
  if (code.major == gpu.major) return code.minor <= gpu.minor;
  return is_ptx && code.major < gpu.major;
}

}  // namespace

std::string to_string(ComputeCapability capability) {
  return std::to_string(capability.major) + "." + std::to_string(capability.minor);
}

bool has_code_for(std::string_view built, ComputeCapability gpu) {
  while (!built.empty()) {
    const size_t comma = built.find(',');
    if (runs_on(built.substr(0, comma), gpu)) return true;
    built.remove_prefix(comma == std::string_view::npos ? built.size() : comma + 1);
  }
  return false;
}

}  // namespace lockstep
