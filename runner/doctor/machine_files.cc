#include "runner/doctor/machine_files.h"

#include <algorithm>
#include <sstream>

#include "runner/base/parse_number.h"

namespace lockstep::doctor {
namespace {

constexpr uint64_t kNoLimitFrom = uint64_t{1} << 60U;  // bytes; version 1 has no word for "none"
constexpr const char* kListening = "0A";               // TCP_LISTEN

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// The value of the line "inactive_file 4096". (Version 1 also has "total_inactive_file", which is not read.)
uint64_t cache_of(const std::string& statistics) {
  for (const std::string& line : lines_of(statistics)) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() == 2 && words[0] == "inactive_file") return parse_number<uint64_t>(words[1]).value_or(0);
  }
  return 0;
}

// "\040" in /proc/self/mounts is a space.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::optional<int> code =
        text[i] == '\\' && i + 3 < text.size() ? parse_number<int>(text.substr(i + 1, 3), 8) : std::nullopt;
    if (code) i += 3;
    plain.push_back(code ? static_cast<char>(*code) : text[i]);
  }
  return plain;
}

}  // namespace

std::optional<uint64_t> memory_left(const std::string& limit, const std::string& in_use,
                                    const std::string& statistics) {
  const std::optional<uint64_t> bytes = parse_number<uint64_t>(limit.substr(0, limit.find('\n')));
  if (!bytes || *bytes >= kNoLimitFrom) return std::nullopt;
  const uint64_t used = parse_number<uint64_t>(in_use.substr(0, in_use.find('\n'))).value_or(0);
  const uint64_t needed = used - std::min(used, cache_of(statistics));
  return *bytes - std::min(*bytes, needed);
}

uint64_t available_memory(std::string_view meminfo) {
  for (const std::string& line : lines_of(meminfo)) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() >= 2 && words[0] == "MemAvailable:") return parse_number<uint64_t>(words[1]).value_or(0) * 1024;
  }
  return 0;
}

uint64_t threads_of_user(std::string_view status, uint64_t user) {
  bool is_theirs = false;
  for (const std::string& line : lines_of(status)) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() < 2) continue;
    if (words[0] == "Uid:") is_theirs = parse_number<uint64_t>(words[1]) == user;
    if (words[0] == "Threads:") return is_theirs ? parse_number<uint64_t>(words[1]).value_or(0) : 0;
  }
  return 0;
}

bool has_cpu_flag(std::string_view cpuinfo, std::string_view flag) {
  for (const std::string& line : lines_of(cpuinfo)) {
    if (!line.starts_with("flags")) continue;
    const std::vector<std::string> words = words_of(line);
    return std::find(words.begin(), words.end(), flag) != words.end();
  }
  return false;
}

std::vector<uint64_t> listening_inodes(std::string_view text, int port) {
  // "  sl  local_address rem_address   st tx_queue:rx_queue tr:tm->when retrnsmt   uid  timeout inode …"
  constexpr size_t kLocal = 1;
  constexpr size_t kState = 3;
  constexpr size_t kInode = 9;
  std::vector<uint64_t> inodes;
  for (const std::string& line : lines_of(text)) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() <= kInode || words[kState] != kListening) continue;
    const size_t colon = words[kLocal].rfind(':');
    if (colon == std::string::npos) continue;
    if (parse_number<int>(std::string_view(words[kLocal]).substr(colon + 1), 16) != port) continue;
    if (const std::optional<uint64_t> inode = parse_number<uint64_t>(words[kInode])) inodes.push_back(*inode);
  }
  return inodes;
}

std::string filesystem_of(std::string_view mounts, std::string_view path) {
  std::string best;
  std::string type = "unknown";
  for (const std::string& line : lines_of(mounts)) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() < 3) continue;
    const std::string point = unescaped(words[1]);
    const bool is_above = point == "/" || path == point || path.starts_with(point + "/");
    if (!is_above || point.size() < best.size()) continue;  // a later mount at the same point hides an earlier one
    best = point;
    type = words[2];
  }
  return type;
}

}  // namespace lockstep::doctor
