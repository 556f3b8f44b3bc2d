#include "runner/agent/zygote.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "runner/agent/python_sources.h"
#include "runner/agent/worker_process.h"
#include "runner/base/json.h"
#include "runner/contract/env_names.h"

namespace lockstep {
namespace {

namespace asio = boost::asio;

constexpr size_t kAnswerBytesMax = 4096;
constexpr const char* kDescriptionBegins = R"({"python")";
constexpr const char* kDescriptor = "3";  // of the socket, in the zygote (spawn_program puts it there)

Error failed_call(const std::string& what) {
  return Error{ErrorCode::kUnavailable, what + ": " + std::strerror(errno)};
}

// A memfd that holds the text, read from its beginning; the caller closes it.
Result<int> file_of(const std::string& text) {
  const int fd = ::memfd_create("lockstep-fork", MFD_CLOEXEC);
  if (fd < 0) return failed_call("no memory for a request to the zygote");
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t size = ::write(fd, text.data() + written, text.size() - written);
    if (size < 0) {
      const Error error = failed_call("no memory for a request to the zygote");
      ::close(fd);
      return error;
    }
    written += static_cast<size_t>(size);
  }
  ::lseek(fd, 0, SEEK_SET);
  return fd;
}

Status send_with_descriptors(int socket, const std::vector<int>& fds) {
  std::array<char, 1> byte{'F'};
  iovec part{.iov_base = byte.data(), .iov_len = byte.size()};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
  std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0) return failed_call("the zygote cannot be asked");
  return {};
}

std::vector<std::string> words_of(const ZygoteCommand& command, bool describes) {
  const OrderedJson settings{{"agent", ::getpid()},
                             {"preload", OrderedJson::array({"torch", "torch._dynamo"})},
                             {"left_out", OrderedJson::object()},
                             {"program", command.program},
                             {"memory", command.memory},
                             {"package_folder", command.package_folder},
                             {"start_folder", command.start_folder},
                             {"spares", command.spares},
                             {"describe", describes}};
  std::vector<std::string> words{command.python};
  words.insert(words.end(), command.options.begin(), command.options.end());
  words.insert(words.end(), {"-c", describes ? kDescribeSource : kZygoteSource, kDescriptor, dump_line(settings)});
  return words;
}

}  // namespace

ZygoteCommand zygote_command(const ProgramCommand& command, const PythonCommand& python, int nproc) {
  ZygoteCommand zygote{.python = python.python,
                       .options = python.options,
                       .environment = command.environment,
                       .program = python.program,
                       .memory = "",
                       .package_folder = "",
                       .start_folder = "",
                       .spares = command.spares};
  if (nproc > 1) zygote.environment.try_emplace("OMP_NUM_THREADS", "1");
  // numpy's OpenBLAS starts its threads at import, and a fork does not copy them.
  zygote.environment.try_emplace("OPENBLAS_NUM_THREADS", "1");
  // Otherwise torch.cuda.is_available() opens the GPU, which a fork does not survive.
  zygote.environment.try_emplace("PYTORCH_NVML_BASED_CUDA_CHECK", "1");
  zygote.environment.erase(std::string(env::kToken));
  if (!command.remember_folder.empty()) zygote.memory = command.remember_folder + "/" + program_key(python) + ".json";
  return zygote;
}

Result<Json> describe_zygote(const ZygoteCommand& command) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const Result<SpawnedWorker> spawned = spawn_program(words_of(command, true), command.environment, null, {});
  ::close(null);
  if (!spawned.ok()) return spawned.error();
  std::string output;
  std::array<char, kAnswerBytesMax> bytes{};
  pollfd ready{.fd = spawned->stdout_fd, .events = POLLIN, .revents = 0};
  while (::poll(&ready, 1, -1) > 0 || errno == EINTR) {
    const ssize_t size = ::read(spawned->stdout_fd, bytes.data(), bytes.size());
    if (size > 0) output.append(bytes.data(), static_cast<size_t>(size));
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) break;
  }
  std::string problem(kAnswerBytesMax, '\0');
  problem.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(spawned->stderr_fd, problem.data(), problem.size()))));
  ::close(spawned->stdout_fd);
  ::close(spawned->stderr_fd);
  ::waitpid(spawned->pid, nullptr, 0);
  // Packages may print while they are imported.
  if (const size_t at = output.find(kDescriptionBegins); at != std::string::npos) {
    return parse_json(std::string_view(output).substr(at), "what the interpreter says of itself");
  }
  return Error{ErrorCode::kUnavailable, command.python + " cannot be asked what it imports: " +
                                            (problem.empty() ? "it ended without a word" : problem)};
}

Result<std::shared_ptr<Zygote>> Zygote::start(asio::io_context& loop, const ZygoteCommand& command, Handlers handlers) {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()) != 0) {
    return failed_call("cannot make a socket pair");
  }
  const Result<SpawnedWorker> spawned = spawn_program(words_of(command, false), command.environment, fds[1], {});
  ::close(fds[1]);
  if (!spawned.ok()) {
    ::close(fds[0]);
    return spawned.error();
  }
  std::shared_ptr<Zygote> zygote(new Zygote(loop, fds[0], spawned->pid, command.program, std::move(handlers)));
  const auto relay = [&loop, weak = std::weak_ptr(zygote)](int fd) {
    auto made = std::make_shared<OutputRelay>(loop, fd, [weak](const std::string& line) {
      const std::shared_ptr<Zygote> self = weak.lock();
      if (self && self->handlers_.on_line) self->handlers_.on_line(line);
    });
    made->start();
    return made;
  };
  zygote->out_ = relay(spawned->stdout_fd);
  zygote->err_ = relay(spawned->stderr_fd);
  zygote->wait_for_answer();
  return zygote;
}

Zygote::Zygote(asio::io_context& loop, int socket_fd, pid_t pid, std::vector<std::string> program, Handlers handlers)
    : socket_(loop, socket_fd), pid_(pid), program_(std::move(program)), handlers_(std::move(handlers)) {}

Zygote::~Zygote() { ::kill(pid_, SIGKILL); }

void Zygote::close() {
  handlers_ = {};
  boost::system::error_code ignored;
  socket_.close(ignored);
}

Status Zygote::fork(const std::vector<ForkedRank>& ranks) {
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string();
  if (error) return Error{ErrorCode::kUnavailable, "no working folder: " + error.message()};
  OrderedJson environments = OrderedJson::array();
  std::vector<int> fds{-1};
  for (const ForkedRank& rank : ranks) {
    environments.push_back(rank.environment);
    fds.insert(fds.end(), {rank.stdout_fd, rank.stderr_fd, rank.beat_fd, rank.link_fd});
  }
  TRY_ASSIGN(fds.front(),
             file_of(dump_line(OrderedJson{{"cwd", folder}, {"argv", program_}, {"ranks", std::move(environments)}})));
  const Status sent = send_with_descriptors(socket_.native_handle(), fds);
  ::close(fds.front());
  return sent;
}

void Zygote::wait_for_answer() {
  socket_.async_wait(asio::posix::descriptor_base::wait_read,
                     [weak = weak_from_this()](boost::system::error_code error) {
                       const std::shared_ptr<Zygote> self = weak.lock();
                       if (!error && self && self->read_answer()) self->wait_for_answer();
                     });
}

bool Zygote::read_answer() {
  std::array<char, kAnswerBytesMax> bytes{};
  const ssize_t size = ::recv(socket_.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  const auto end = [this](const std::string& why) {
    const auto on_end = handlers_.on_end;
    close();
    if (on_end) on_end(why);
    return false;
  };
  if (size <= 0) return end("it has ended");
  const Result<Json> answer =
      parse_json(std::string_view(bytes.data(), static_cast<size_t>(size)), "the zygote's answer");
  if (!answer.ok()) return end(answer.error().message);
  if (answer->contains("ready")) {
    if (const std::string why = text_field(*answer, {"why_no_fork"}); !why.empty()) return end(why);
    is_ready_ = true;
    return true;
  }
  std::vector<pid_t> pids;
  if (const Json* const list = field(*answer, {"pids"}); list != nullptr && list->is_array()) {
    for (const Json& pid : *list) {
      if (pid.is_number_integer()) pids.push_back(pid.get<pid_t>());
    }
  }
  if (handlers_.on_forked) handlers_.on_forked(pids);
  return true;
}

}  // namespace lockstep
