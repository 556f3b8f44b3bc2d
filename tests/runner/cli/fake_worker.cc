// A worker that does what a script says: stands in for lockstep-worker in the tests of the agent.
//
// FAKE_WORKER_SCRIPT names a file of lines "COUNTER RANK COMMAND [ARGUMENT…]", where COUNTER is the lower half of the
// generation and RANK the rank ("*" = any); both come with the assignment, so hello is said before the script is read.
// A cut ends the script of its generation: the worker says Left and waits for the next assignment, as a real one does.
// With FAKE_WORKER_SILENT it says nothing at all. FAKE_WORKER_TERMS: of its hello.
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iostream>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "runner/base/line_channel.h"
#include "runner/contract/beat_page.h"
#include "runner/contract/messages.h"

namespace {

using namespace lockstep;

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// The group is gone, or this worker lost it.
struct GroupEnded {
  std::string cause;
};

class FakeWorker {
 public:
  FakeWorker()
      : link_(std::atoi(std::getenv("LOCKSTEP_AGENT_FD"))),
        page_(static_cast<BeatPage*>(::mmap(nullptr, sizeof(BeatPage), PROT_READ | PROT_WRITE, MAP_SHARED,
                                            std::atoi(std::getenv("LOCKSTEP_BEAT_FD")), 0))) {
    page_->alive_ns = page_->changed_ns = now_ns();
    // As the worker's link thread; they end with the process, and take no signals.
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([page = page_] {
      while (::poll(nullptr, 0, 100) == 0) page->alive_ns = now_ns();
    }).detach();
    std::thread([this] { read_link(); }).detach();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  int run() {
    const char* const terms = std::getenv("FAKE_WORKER_TERMS");
    say(Hello{
        .local_rank = std::atoi(std::getenv("LOCAL_RANK")), .pid = ::getpid(), .terms = terms == nullptr ? "" : terms});
    while (true) {
      page_->activity = Activity::kAwaiting;
      await_assignment();
      try {
        play();
        return 0;
      } catch (const GroupEnded& end) {
        say(Left{.generation = assignment_.generation, .cause = end.cause, .message = "", .step = page_->step});
      }
    }
  }

 private:
  void await_assignment() {
    AgentMessage message = next();
    while (!std::holds_alternative<Assignment>(message)) {
      leave_if_told(message);
      message = next();
    }
    assignment_ = std::get<Assignment>(message);
    page_->generation = assignment_.generation;
    page_->activity = Activity::kTraining;
  }

  void play() {
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
  }

  void say(const WorkerMessage& message) {
    if (!link_.write_line(encode(message)).ok()) std::_Exit(98);
  }

  AgentMessage next() {
    while (true) {
      if (std::optional<AgentMessage> message = next_within(std::chrono::hours(24))) return *message;
    }
  }

  // What the link's thread has read.
  std::optional<AgentMessage> next_within(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, time, [this] { return !messages_.empty(); })) return std::nullopt;
    AgentMessage message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

  void read_link() {
    while (true) {
      auto line = link_.read_line();
      if (!line.ok() || !line->has_value()) std::_Exit(97);
      auto message = decode_agent_message(**line);
      if (!message.ok()) std::_Exit(96);
      const std::lock_guard lock(mutex_);
      messages_.push_back(std::move(*message));
      arrived_.notify_one();
    }
  }

  static void leave_if_told(const AgentMessage& message) {
    const auto* const together = std::get_if<LeaveTogether>(&message);
    if (together != nullptr && together->leaving_code != 0) std::_Exit(together->leaving_code);
  }

  // Throws when the message ends the group.
  void obey_the_end(const AgentMessage& message) const {
    leave_if_told(message);
    const auto* const cut = std::get_if<Cut>(&message);
    if (cut != nullptr && cut->generation == assignment_.generation) throw GroupEnded{"Cut"};
    if (std::holds_alternative<LeaveTogether>(message)) throw GroupEnded{"Regroup"};
  }

  AgentMessage next_in_group() {
    AgentMessage message = next();
    obey_the_end(message);
    return message;
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
    AgentMessage answer = next_in_group();
    while (!std::holds_alternative<StoreReply>(answer)) answer = next_in_group();
    const StoreReply reply = std::get<StoreReply>(answer);
    while (reply.status == StoreStatus::kStale) static_cast<void>(next_in_group());  // the cut comes next
    return reply;
  }

  void obey(const std::string& command, const std::string& rest) {
    std::istringstream words(rest);
    int64_t number = 0;
    if (command == "collective") {
      page_->phase = Phase::kWaiting;
    } else if (command == "print") {
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
      page_->step = number;
      page_->committed_ns = page_->changed_ns = now_ns();
      page_->phase = Phase::kForward;
    } else if (command == "resumed") {
      words >> number;
      resume(number);
    } else if (command == "train") {
      words >> number;
      train(number);
    } else if (command == "lose_peer") {
      throw GroupEnded{"PeerLost"};
    } else if (command == "await_cut") {
      while (true) static_cast<void>(next_in_group());
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

  // `steps` steps, one every few milliseconds, from rank 0's on.
  void train(int64_t steps) {
    if (assignment_.rank == 0) store(StoreOp::kSet, "step", std::to_string(page_->step));
    if (assignment_.rank != 0) page_->step = std::stoll(store(StoreOp::kGet, "step").values.at(0));
    const int64_t last_step = page_->step + steps;
    bool is_first = true;
    while (page_->step < last_step) {
      if (const auto message = next_within(std::chrono::milliseconds(5))) obey_the_end(*message);
      if (is_first && assignment_.rank == 0) resume(page_->step + 1);
      if (!is_first || assignment_.rank != 0) commit();
      is_first = false;
    }
  }

  void commit() {
    ++page_->step;
    page_->committed_ns = page_->changed_ns = now_ns();
    page_->phase = Phase::kForward;
  }

  // The first commit of this group is `step`; the state before it came from nowhere.
  void resume(int64_t step) {
    const int64_t at = now_ns();
    page_->step = step;
    page_->committed_ns = page_->changed_ns = at;
    say(Resumed{.generation = assignment_.generation,
                .step = step,
                .formed_ns = at,
                .synced_ns = at,
                .committed_ns = at,
                .resumed_step = step - 1,
                .origin = "from rank 0"});
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
  BeatPage* page_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<AgentMessage> messages_;  // protected by mutex_
  Assignment assignment_;
  uint64_t last_id_ = 0;
};

}  // namespace

int main() {
  if (std::getenv("FAKE_WORKER_SILENT") != nullptr) {
    while (true) ::pause();
  }
  static FakeWorker worker;  // its threads use it until the process ends
  const int code = worker.run();
  std::cout << std::flush;
  std::_Exit(code);
}
