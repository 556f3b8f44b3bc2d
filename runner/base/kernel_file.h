// Files of /proc and /sys: small texts that the kernel makes when they are read; stat() reports size 0 for them.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace lockstep {

// The whole text; empty when it cannot be read.
inline std::string read_kernel_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace lockstep
