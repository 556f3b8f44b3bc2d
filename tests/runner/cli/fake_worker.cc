// A worker that does what a script says: stands in for lockstep-worker in the tests of the agent.
//
// FAKE_WORKER_SCRIPT names a file of lines "COUNTER RANK COMMAND [ARGUMENT…]", where COUNTER is the lower half of the
// generation and RANK the rank ("*" = any); both come with the assignment, so hello is said before the script is read.
// With FAKE_WORKER_SILENT it says nothing at all.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "runner/base/line_channel.h"
#include "runner/contract/messages.h"

namespace {

using namespace lockstep;

class FakeWorker {
 public:
  FakeWorker() : link_(std::atoi(std::getenv("LOCKSTEP_AGENT_FD"))) {}

  int run() {
    say(Hello{.local_rank = 0, .pid = ::getpid()});
    assignment_ = std::get<Assignment>(next());
    std::ifstream script(std::getenv("FAKE_WORKER_SCRIPT"));
    std::string line;
    while (std::getline(script, line)) {
      std::istringstream words(line);
      std::string counter;
      std::string rank;
      std::string command;
      words >> counter >> rank >> command;
      const bool mine = (counter == "*" || counter == std::to_string(assignment_.generation & 0xffffffffU)) &&
                        (rank == "*" || rank == std::to_string(assignment_.rank));
      std::string rest;
      std::getline(words >> std::ws, rest);
      if (mine) obey(command, rest);
    }
    return 0;
  }

 private:
  void say(const WorkerMessage& message) {
    if (!link_.write_line(encode(message)).ok()) std::_Exit(98);
  }

  AgentMessage next() {
    auto line = link_.read_line();
    if (!line.ok() || !line->has_value()) std::_Exit(97);
    auto message = decode_agent_message(**line);
    if (!message.ok()) std::_Exit(96);
    return *message;
  }

  StoreReply store(StoreOp op, const std::string& key, const std::string& value = "") {
    StoreRequest request;
    request.id = ++last_id_;
    request.generation = assignment_.generation;
    request.op = op;
    request.keys = {key};
    if (op == StoreOp::kSet) request.values = {value};
    request.timeout = std::chrono::milliseconds(60'000);
    say(request);
    return std::get<StoreReply>(next());
  }

  void obey(const std::string& command, const std::string& rest) {
    std::istringstream words(rest);
    int64_t number = 0;
    if (command == "print") {
      std::cout << rest << std::endl;
    } else if (command == "eprint") {
      std::cerr << rest << std::endl;
    } else if (command == "partial") {
      std::cout << rest << std::flush;
    } else if (command == "whoami") {
      std::cout << "rank " << assignment_.rank << " of " << assignment_.world_size << " pid " << ::getpid() << " group "
                << ::getpgrp() << std::endl;
    } else if (command == "env") {
      const char* value = std::getenv(rest.c_str());
      std::cout << rest << " is " << (value == nullptr ? "unset" : value) << std::endl;
    } else if (command == "beat") {
      words >> number;
      say(Beat{.step = number, .phase = "training"});
    } else if (command == "progress") {
      words >> number;
      Progress progress;
      progress.step = number;
      progress.total_steps = 100;
      progress.loss = 0.5;
      say(progress);
    } else if (command == "checkpoint") {
      words >> number;
      say(CheckpointWritten{.step = number, .path = "/checkpoints/step"});
    } else if (command == "metrics") {
      MetricSample sample;
      sample.labels = {{"rank", std::to_string(assignment_.rank)}};
      sample.value = 7;
      say(Metrics{{MetricFamily{"lockstep_steps_total", "Steps.", MetricType::kCounter, {sample}}}});
    } else if (command == "failing") {
      say(Failing{.code = 1, .message = rest, .rank = assignment_.rank, .step = 0, .generation = 0});
    } else if (command == "garbage") {
      static_cast<void>(link_.write_line("{\"type\":\"nonsense\"}"));
    } else if (command == "set") {
      store(StoreOp::kSet, rest, "1");
    } else if (command == "wait") {
      store(StoreOp::kGet, rest);
    } else if (command == "exit") {
      words >> number;
      std::cout << std::flush;
      std::_Exit(static_cast<int>(number));
    } else if (command == "kill") {
      words >> number;
      ::kill(::getpid(), static_cast<int>(number));
    } else if (command == "hang") {
      hang();
    } else if (command == "until_signal") {
      until_signal();
    } else {
      std::_Exit(95);
    }
  }

  // Deaf to signals, until the agent kills us.
  [[noreturn]] static void hang() {
    ::signal(SIGTERM, SIG_IGN);
    ::signal(SIGINT, SIG_IGN);
    std::cout << "hanging" << std::endl;
    while (true) ::pause();
  }

  // As a real worker: finishes and leaves with the stop's code.
  [[noreturn]] static void until_signal() {
    sigset_t stop;
    ::sigemptyset(&stop);
    ::sigaddset(&stop, SIGTERM);
    ::sigaddset(&stop, SIGINT);
    ::sigprocmask(SIG_BLOCK, &stop, nullptr);
    std::cout << "waiting for a signal" << std::endl;
    int signal = 0;
    ::sigwait(&stop, &signal);
    std::cout << "got signal " << signal << std::endl;
    std::_Exit(128 + signal);
  }

  LineChannel link_;
  Assignment assignment_;
  uint64_t last_id_ = 0;
};

}  // namespace

int main() {
  if (std::getenv("FAKE_WORKER_SILENT") != nullptr) {
    while (true) ::pause();
  }
  return FakeWorker().run();
}
