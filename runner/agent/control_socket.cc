#include "runner/agent/control_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

namespace lockstep {

namespace asio = boost::asio;
using boost::system::error_code;
using Unix = asio::local::stream_protocol;

namespace {

constexpr std::string_view kPrefix = "agent";
constexpr std::string_view kSuffix = ".sock";

// sun_path holds only 108 bytes, and a folder's path may be longer, so the socket is reached through the open folder.
std::string short_path(int folder_fd, const std::string& name) {
  return "/proc/self/fd/" + std::to_string(folder_fd) + "/" + name;
}

uint64_t inode_of(int folder_fd, const std::string& name) {
  struct stat info {};
  return ::fstatat(folder_fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 ? info.st_ino : 0;
}

// Returns a connected socket, or -1 and sets errno.
int connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  LOCKSTEP_CHECK(path.size() < sizeof(address.sun_path), "short_path is short");
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const timeval timeout{.tv_sec = kControlConnectTimeout.count(), .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  int why = 0;
  do {
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
    why = errno;
  } while (why == EINTR);  // by a signal, before anything was connected
  ::close(fd);
  errno = why;
  return -1;
}

// ---- requests ----

Result<double> seconds_in(const Json& object) {
  const auto it = object.find("seconds");
  if (it == object.end()) return 0.0;
  const double seconds = it->is_number() ? it->get<double>() : -1.0;
  if (!std::isfinite(seconds) || seconds < 0 || seconds > kControlSecondsMax) {
    return invalid("field \"seconds\" must be a number from 0 to 86400");
  }
  return seconds;
}

Result<ControlRequest> parse_recoveries(const Json& object) {
  WaitForRecoveries request;
  TRY_ASSIGN(request.seconds, seconds_in(object));
  const auto after = object.find("after");
  if (after == object.end() || !after->is_number_integer()) return invalid("field \"after\" must be an integer");
  request.after = after->get<int64_t>();
  return ControlRequest(request);
}

Result<ControlRequest> parse_decision(const Json& object) {
  Json message = object;
  message.erase("command");
  message["type"] = "restart_decision";
  TRY_ASSIGN(NodeMessage decoded, decode_node_message(dump_line(message)));
  return ControlRequest(ReportDecision{std::get<RestartDecision>(std::move(decoded))});
}

}  // namespace

Result<ControlRequest> parse_control_request(std::string_view line) {
  TRY_ASSIGN(const Json object, parse_json(line, "request"));
  if (!object.is_object()) return invalid("the request is not a JSON object");
  const auto it = object.find("command");
  if (it == object.end() || !it->is_string()) return invalid("field \"command\" must be a string");
  const std::string command = it->get<std::string>();
  if (command == "status") return ControlRequest(GetStatus{});
  if (command == "recoveries") return parse_recoveries(object);
  if (command == "decision") return parse_decision(object);
  return invalid("unknown command \"" + command.substr(0, 64) + "\": expected status, recoveries or decision");
}

std::string decision_request(const RestartDecision& decision) {
  Json request = Json::parse(encode(NodeMessage(decision)));
  request.erase("type");
  request["command"] = "decision";
  return dump_line(request);
}

// ---- names ----

std::string control_socket_name(int node_rank) {
  const std::string node = node_rank == 0 ? "" : "-" + std::to_string(node_rank);
  return std::string(kPrefix) + node + std::string(kSuffix);
}

std::string program_runs_folder() {
  std::error_code error;
  const std::string folder =
      (std::filesystem::temp_directory_path(error) / ("lockstep-" + std::to_string(::geteuid()))).string();
  if (error) return "";
  ::mkdir(folder.c_str(), S_IRWXU);
  struct stat info {};
  const bool is_ours = ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
                       (info.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  return is_ours ? folder : "";
}

std::vector<int> control_sockets_in(const std::string& folder) {
  std::vector<int> nodes;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const std::string middle = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
    int node = 0;
    if (!middle.empty()) std::from_chars(middle.data() + 1, middle.data() + middle.size(), node);
    if (control_socket_name(node) == name) nodes.push_back(node);
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

// ---- the agent's side ----

ControlSocket::ControlSocket(asio::io_context& loop, int folder_fd, std::string name, OnRequest on_request)
    : loop_(loop), folder_fd_(folder_fd), name_(std::move(name)), on_request_(std::move(on_request)), acceptor_(loop) {}

ControlSocket::~ControlSocket() {
  for (const auto& [client, socket] : clients_) socket->close();
  if (inode_ != 0 && inode_of(folder_fd_, name_) == inode_) ::unlinkat(folder_fd_, name_.c_str(), 0);
  ::close(folder_fd_);
  if (!made_folder_.empty()) ::rmdir(made_folder_.c_str());
}

Result<std::unique_ptr<ControlSocket>> ControlSocket::open(asio::io_context& loop, const std::string& folder,
                                                           int node_rank, OnRequest on_request) {
  std::error_code ignored;  // opening the folder below reports if it does not exist
  const bool made = std::filesystem::create_directories(folder, ignored);
  const int folder_fd = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd < 0) return Error{ErrorCode::kUnavailable, folder + ": " + std::strerror(errno)};
  std::unique_ptr<ControlSocket> control(
      new ControlSocket(loop, folder_fd, control_socket_name(node_rank), std::move(on_request)));
  if (made) control->made_folder_ = folder;
  const Status listening = control->listen();
  if (!listening.ok()) return listening.error().with_context(folder + "/" + control->name_);
  control->accept();
  return control;
}

Status ControlSocket::listen() {
  const std::string path = short_path(folder_fd_, name_);
  const int peer = connect_to(path);
  const int why = peer >= 0 ? 0 : errno;
  if (peer >= 0) ::close(peer);
  // An agent whose backlog is full (EAGAIN) is alive, too.
  if (why == 0 || why == EAGAIN) {
    return Error{ErrorCode::kConflict, "another agent has its socket there: is this folder used by a second run?"};
  }
  // Removes the socket only if nothing listens on it; after any other error its agent may be alive.
  if (why != ENOENT && why != ECONNREFUSED) return Error{ErrorCode::kUnavailable, std::strerror(why)};
  ::unlinkat(folder_fd_, name_.c_str(), 0);
  error_code error;
  acceptor_.open(Unix(), error);
  if (error) return Error{ErrorCode::kUnavailable, error.message()};
  close_on_exec(acceptor_.native_handle());
  const mode_t before = ::umask(0177);
  acceptor_.bind(Unix::endpoint(path), error);
  ::umask(before);
  if (!error) acceptor_.listen(static_cast<int>(kControlClientsMax), error);
  if (error) return Error{ErrorCode::kUnavailable, error.message()};
  inode_ = inode_of(folder_fd_, name_);
  return {};
}

void ControlSocket::accept() {
  acceptor_.async_accept([this](error_code error, Unix::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) on_accept(std::move(socket));
    // When no file descriptors are left, it stops accepting; training goes on without the socket.
    if (!error || error == asio::error::connection_aborted) accept();
  });
}

void ControlSocket::on_accept(Unix::socket socket) {
  close_on_exec(socket.native_handle());
  if (clients_.size() >= kControlClientsMax) return;  // closed here
  const uint64_t client = ++last_client_;
  clients_[client] = std::make_shared<LineSocket>(
      loop_, LineSocket::Socket(std::move(socket)),
      LineSocket::Limits{.line_bytes_max = kControlLineBytesMax, .queue_bytes_max = kControlQueueBytesMax});
  clients_[client]->start({.on_line = [this, client](const std::string& line) { on_line(client, line); },
                           .on_closed = [this, client](const std::string&) { clients_.erase(client); }});
}

void ControlSocket::on_line(uint64_t client, const std::string& line) {
  const Answer answer(this, client);
  const Result<ControlRequest> request = parse_control_request(line);
  if (!request.ok()) return answer({{"error", request.error().message}});
  on_request_(*request, answer);
}

bool ControlSocket::Answer::is_awaited() const { return !alive_.expired() && control_->clients_.contains(client_); }

void ControlSocket::Answer::operator()(const OrderedJson& json) const {
  if (is_awaited()) control_->clients_.at(client_)->send(dump_line(json));
}

bool ControlSocket::is_idle() const {
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const auto& client) { return client.second->unsent_bytes() == 0; });
}

// ---- a client's side ----

Result<int> connect_control_socket(const std::string& folder, int node_rank) {
  const std::string name = control_socket_name(node_rank);
  const std::string socket_path = folder + "/" + name;
  const Error nobody{ErrorCode::kNotFound, "no " + socket_path + ": no run is active in this folder"};
  const int folder_fd = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd < 0 && errno == ENOENT) return nobody;
  if (folder_fd < 0) return Error{ErrorCode::kNotFound, folder + ": " + std::strerror(errno)};
  const int fd = connect_to(short_path(folder_fd, name));
  const int why = errno;
  ::close(folder_fd);
  if (fd >= 0) return fd;
  if (why == ENOENT) return nobody;
  if (why == EAGAIN) {
    return Error{ErrorCode::kUnavailable, socket_path + ": its agent has taken no connection for " +
                                              std::to_string(kControlConnectTimeout.count()) +
                                              " s: it is stopped or very busy; look at its process, or try again"};
  }
  if (why == ECONNREFUSED) return Error{ErrorCode::kGone, socket_path + " is left over: its agent has ended"};
  return Error{ErrorCode::kUnavailable, socket_path + ": " + std::strerror(why)};
}

}  // namespace lockstep
