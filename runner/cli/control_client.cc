#include "runner/cli/control_client.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "runner/agent/control_socket.h"

namespace lockstep {

Result<ControlClient> ControlClient::connect(const std::string& folder, int node) {
  TRY_ASSIGN(const int fd, connect_control_socket(folder, node));
  return ControlClient(fd);
}

Result<Json> ControlClient::ask(const Json& request, std::chrono::milliseconds timeout) {
  TRY(channel_->write_line(dump_line(request)));
  TRY_ASSIGN(const bool is_readable, channel_->wait_readable(timeout));
  if (!is_readable) {
    return Error{ErrorCode::kRetry, "the agent has not answered for " + std::to_string(timeout.count()) + " ms"};
  }
  TRY_ASSIGN(const std::optional<std::string> line, channel_->read_line());
  if (!line) return Error{ErrorCode::kGone, "the agent has ended"};
  TRY_ASSIGN(Json answer, parse_json(*line, "the agent's answer"));
  if (answer.is_object() && answer.contains("error")) {
    return Error{ErrorCode::kInvalid, answer["error"].is_string() ? answer["error"].get<std::string>() : "error"};
  }
  return answer;
}

Result<std::string> find_run_folder(const std::string& where) {
  std::vector<std::filesystem::path> folders{where};
  std::error_code error;
  for (std::filesystem::directory_iterator it(where, error), end; !error && it != end; it.increment(error)) {
    std::error_code no_folder;
    if (it->is_directory(no_folder)) folders.push_back(it->path());
  }
  std::string newest;
  std::filesystem::file_time_type newest_time;
  for (const auto& folder : folders) {
    std::error_code missing;
    const auto time = std::filesystem::last_write_time(folder / control_socket_name(0), missing);
    if (missing || (!newest.empty() && time <= newest_time)) continue;
    newest = folder.string();
    newest_time = time;
  }
  if (!newest.empty()) return newest;
  return Error{ErrorCode::kNotFound, "no run is active in this folder or in one below it: name the run's folder"};
}

}  // namespace lockstep
