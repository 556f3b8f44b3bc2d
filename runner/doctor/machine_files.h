// Parses text files of the kernel. Pure: each function takes the text of a file; a text without the value gives an
// empty result.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::doctor {

// What a cgroup's limit leaves: the limit minus what is in use, where page cache that the kernel can drop
// ("inactive_file" in memory.stat, the `statistics`) does not count as in use. nullopt: there is no limit ("max", or in
// version 1 a number near 2^63).
std::optional<uint64_t> memory_left(const std::string& limit, const std::string& in_use, const std::string& statistics);

// MemAvailable of /proc/meminfo, in bytes; 0: the text does not have it.
uint64_t available_memory(std::string_view meminfo);

// The number of threads of a process, from its /proc/<pid>/status, when `user` runs it (real user id); else 0.
uint64_t threads_of_user(std::string_view status, uint64_t user);

// True when the first processor in /proc/cpuinfo has this flag.
bool has_cpu_flag(std::string_view cpuinfo, std::string_view flag);

// The inodes of the sockets that listen on `port`, from /proc/net/tcp or tcp6.
std::vector<uint64_t> listening_inodes(std::string_view text, int port);

// The type of the filesystem that holds `path`, from /proc/self/mounts: that of the longest mount point
// above it; "unknown" when there is none.
std::string filesystem_of(std::string_view mounts, std::string_view path);

}  // namespace lockstep::doctor
