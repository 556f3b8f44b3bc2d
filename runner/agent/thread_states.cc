#include "runner/agent/thread_states.h"

#include <sys/syscall.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <utility>

namespace lockstep {
namespace {

// Names of the system calls in which a hung rank usually is.
constexpr std::pair<long, const char*> kSystemCalls[] = {
    {SYS_read, "read"},           {SYS_write, "write"},
    {SYS_futex, "futex"},         {SYS_ppoll, "ppoll"},
    {SYS_recvfrom, "recvfrom"},   {SYS_sendto, "sendto"},
    {SYS_recvmsg, "recvmsg"},     {SYS_sendmsg, "sendmsg"},
    {SYS_connect, "connect"},     {SYS_accept4, "accept4"},
    {SYS_fsync, "fsync"},         {SYS_epoll_pwait, "epoll_pwait"},
    {SYS_openat, "openat"},       {SYS_ioctl, "ioctl"},
    {SYS_pread64, "pread64"},     {SYS_pwrite64, "pwrite64"},
    {SYS_wait4, "wait4"},         {SYS_close, "close"},
    {SYS_nanosleep, "nanosleep"}, {SYS_clock_nanosleep, "clock_nanosleep"},
#ifdef SYS_poll
    {SYS_poll, "poll"},           {SYS_epoll_wait, "epoll_wait"},
    {SYS_pause, "pause"},         {SYS_select, "select"},
#endif
};

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The text after "NAME:\t" in a status file.
std::string status_field(const std::filesystem::path& status, const std::string& name) {
  const std::string field = name + ":\t";
  std::ifstream file(status);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(field)) return line.substr(field.size());
  }
  return "";
}

// "202 0x7f… …" → "system call 202 (futex)"; "running" has no call.
std::string system_call_of(const std::string& line) {
  long number = 0;
  if (std::from_chars(line.data(), line.data() + line.size(), number).ec != std::errc() || number < 0) return "";
  const auto* const known = std::find_if(std::begin(kSystemCalls), std::end(kSystemCalls),
                                         [number](const auto& entry) { return entry.first == number; });
  const std::string name = known == std::end(kSystemCalls) ? "" : " (" + std::string(known->second) + ")";
  return "system call " + std::to_string(number) + name;
}

std::string describe_thread(const std::filesystem::path& task) {
  std::string text = "thread " + task.filename().string() + " " + first_line(task / "comm") + ": ";
  text += status_field(task / "status", "State");
  const std::string channel = first_line(task / "wchan");
  if (!channel.empty() && channel != "0") text += ", in " + channel;
  const std::string call = system_call_of(first_line(task / "syscall"));
  if (!call.empty()) text += ", " + call;
  return text;
}

}  // namespace

std::vector<std::string> thread_states(const std::string& proc, pid_t pid) {
  std::vector<std::filesystem::path> tasks;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(proc) / std::to_string(pid) / "task";
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    tasks.push_back(it->path());
  }
  // Sorted by number, so that the training thread comes first; its number is that of the process.
  std::sort(tasks.begin(), tasks.end(), [](const auto& a, const auto& b) {
    const std::string left = a.filename().string();
    const std::string right = b.filename().string();
    return std::pair(left.size(), left) < std::pair(right.size(), right);
  });
  std::vector<std::string> lines;
  for (const auto& task : tasks) {
    if (lines.size() == kThreadsShownMax) {
      lines.push_back("and " + std::to_string(tasks.size() - kThreadsShownMax) + " more threads");
      break;
    }
    lines.push_back(describe_thread(task));
  }
  return lines;
}

bool handles_signal(const std::string& proc, pid_t pid, int signal) {
  const std::filesystem::path status = std::filesystem::path(proc) / std::to_string(pid) / "status";
  const std::string state = status_field(status, "State");
  if (state.starts_with('T') || state.starts_with('t')) return false;  // stopped by a signal, or by a debugger
  const std::string mask = status_field(status, "SigCgt");
  uint64_t caught = 0;
  std::from_chars(mask.data(), mask.data() + mask.size(), caught, 16);
  return (caught >> static_cast<unsigned>(signal - 1) & 1U) != 0;
}

}  // namespace lockstep
