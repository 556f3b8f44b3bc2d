// What the kernel's text files say. Pure: each takes the text of a file, and text that says nothing gives nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::doctor {

// What may still be had: the limit, less what is in use, which does not count the page cache ("inactive_file" in
// memory.stat). None: "max", or version 1's way to say it, a number near 2^63.
std::optional<uint64_t> memory_left(const std::string& limit, const std::string& in_use, const std::string& statistics);

// MemAvailable of /proc/meminfo, in bytes; 0: it does not say.
uint64_t available_memory(std::string_view meminfo);

// Has the first processor of /proc/cpuinfo this flag?
bool has_cpu_flag(std::string_view cpuinfo, std::string_view flag);

// The inodes of the sockets that listen on `port`, from /proc/net/tcp or tcp6.
std::vector<uint64_t> listening_inodes(std::string_view text, int port);

// The type of the filesystem that holds `path`, from /proc/self/mounts: of the longest mount point above it.
std::string filesystem_of(std::string_view mounts, std::string_view path);

}  // namespace lockstep::doctor
