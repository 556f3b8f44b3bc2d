// A worker of a workload, in a thread of the test: trainer, reporter and, if asked for, a link to an agent that the
// test plays.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>

#include "runner/base/line_channel.h"
#include "runner/contract/beat_page.h"
#include "runner/contract/messages.h"
#include "runner/dist/device_stream.h"
#include "runner/link/agent_session.h"
#include "runner/link/stop_signals.h"
#include "runner/loop/trainer.h"
#include "tests/runner/support/ranks_as_threads.h"

namespace lockstep {

// A worker without its process; each epoch of its batches of 4 is evaluated.
template <typename W>
class WorkerOf {
 public:
  // With an agent, a worker that loses its group waits for another one, and cut() and leave() are the agent's messages.
  enum class Agent { kNone, kOnLink };
  WorkerOf(FileSystem& fs, const std::string& folder, int rank, int world_size, Agent agent)
      : WorkerOf(fs, folder, rank, world_size, JobIdentity{}, agent) {}
  WorkerOf(FileSystem& fs, const std::string& folder, int rank, int world_size, DeviceStream* device,
           AgentSession* agent = nullptr)
      : WorkerOf(fs, folder, rank, world_size, JobIdentity{}, Agent::kNone, device, agent) {}
  WorkerOf(FileSystem& fs, const std::string& folder, int rank, int world_size, JobIdentity job = {},
           Agent on_link = Agent::kNone, DeviceStream* device = nullptr, AgentSession* agent = nullptr)
      : fs_(fs), job_(std::move(job)) {
    if (on_link == Agent::kOnLink) meet_the_agent();
    config.training.batch_size = 4;
    config.training.num_epochs = 1;
    config.training.eval_every = 1;
    config.training.checkpoint_every = 0;
    config.training.ema_decays = {0.5};
    config.training.tensorboard = false;
    reporter_ = std::make_unique<Reporter>(Reporter::Options{.config = &config,
                                                             .assignment = assigned(rank, world_size),
                                                             .clock = &clock_,
                                                             .page = &page_,
                                                             .folder = folder});
    trainer_ = std::make_unique<Trainer>(Trainer::Context{.rank = {.config = config,
                                                                   .workload = workload,
                                                                   .fs = fs_,
                                                                   .clock = clock_,
                                                                   .stream = device != nullptr ? *device : *cpu_},
                                                          .reporter = *reporter_,
                                                          .page = page_,
                                                          .stop_code = [this] { return signals_.requested(); },
                                                          .defer_stops = [this] { signals_.defer_from_now_on(); },
                                                          .agent = agent != nullptr ? agent : session_.get(),
                                                          .folder = folder,
                                                          .locks_folder = false,
                                                          .job = job_,
                                                          .on_device_fault =
                                                              [this](const Failure& fault) {
                                                                if (on_device_fault) on_device_fault(fault);
                                                              }});
  }

  Outcome run(ProcessGroup& group, const StoreHandle& store) {
    reporter_->set_assignment(group.options().assignment);
    return trainer_->run_generation(group, store, /*formed_ns=*/0);
  }
  Outcome run_alone(uint64_t generation) {
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    const auto group = ProcessGroup::solo({.assignment = assigned(0, 1, generation), .network_interface = ""});
    return run(*group, store);
  }
  [[nodiscard]] RunIdentity identity() const {
    return {.job = job_,
            .config_hash = config.config_hash(),
            .workload = workload.info().name,
            .workload_version = workload.info().version};
  }

  [[nodiscard]] int64_t step() const { return trainer_->step(); }

  // The group is cut, and this process knows.
  void cut(uint64_t generation) {
    ASSERT_TRUE(agent_->write_line(encode(AgentMessage(Cut{generation, "NodeLost"}))).ok());
    while (!session_->was_cut(generation)) std::this_thread::yield();
  }
  void leave(uint64_t generation) {
    ASSERT_TRUE(agent_->write_line(encode(AgentMessage(LeaveTogether{generation, 0}))).ok());
    while (!session_->leave_together(generation)) std::this_thread::yield();
  }

  [[nodiscard]] CommitGate& gate() { return trainer_->gate(); }

  RunConfig config;
  W workload;
  std::function<void(const Failure&)> on_device_fault;

 private:
  void meet_the_agent() {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    agent_ = std::make_unique<LineChannel>(ends[1]);
    session_ = std::make_unique<AgentSession>(ends[0], 0, page_, [] { return false; });
  }

  const std::unique_ptr<DeviceStream> cpu_ = make_device_stream(at::kCPU);
  FileSystem& fs_;
  JobIdentity job_;
  StopSignals signals_;
  BeatPage page_;
  PhaseClock clock_{Phase::kStartup, std::chrono::steady_clock::now()};
  std::unique_ptr<LineChannel> agent_;
  std::unique_ptr<AgentSession> session_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace lockstep
