// Which device a rank computes on, in which precision, with how many threads.
// Threads: called once at start.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/dist/process_group.h"
#include "runner/launch/world.h"

namespace lockstep {

// The GPUs of this machine.
struct GpusHere {
  bool build_has_cuda = false;
  int started = 0;             // by CUDA
  std::optional<int> counted;  // by the agent, through the driver, for its workers to use (LOCKSTEP_GPUS); 0: none are
};
// Pure. The index of this rank's GPU; nullopt: the CPU. An agent that counts GPUs decided for them, whatever --device
// says. So when CUDA starts fewer, a GPU or its driver is at fault (kUnavailable): training on the CPU would be a
// hundred times slower, and where GPUs were renumbered, this rank would share one with another rank. (A rank that is
// alone on its machine shares none. Its agent may count more than CUDA ever starts, where they are divided by MIG.)
// Other errors (kInvalid): --device cuda without a usable GPU; without an agent, a local rank above the GPUs.
Result<std::optional<int>> choose_gpu(const LaunchOptions& launch, const World& world, const GpusHere& gpus);

// As choose_gpu, with what CUDA starts here. kInvalid also for a GPU whose architecture this build lacks.
Result<at::Device> choose_device(const LaunchOptions& launch, const World& world, std::optional<int> gpus_counted);

// Makes it the calling thread's current device; nothing on the CPU.
void use_device(at::Device device);

// Errors (kInvalid): --backend nccl on the CPU or in a build without NCCL.
Result<GroupBackend> choose_backend(const LaunchOptions& launch, at::Device device);

struct PrecisionChoice {
  Precision precision = Precision::kFp32;
  std::vector<std::string> notes;  // remarks for the start table
};
// Errors (kInvalid): fp16 on the CPU (its dynamic range needs the loss scale's device checks), tf32 on the CPU.
Result<PrecisionChoice> choose_precision(const TrainingOptions& training, at::Device device);
const char* to_string(Precision precision);

// The CPU cores that this process may use.
struct CoresHere {
  int machine = 1;
  int by_affinity = 1;
  std::optional<double> quota;  // the cgroup's CPU limit in cores
};
// Pure. A rank's share, in whole cores, of what affinity and quota leave. may_be_bound: the launcher may have bound
// each rank to its own cores. Then an affinity that is no larger than machine / local_world_size is taken to belong to
// this rank alone, and is not divided again.
int threads_of_rank(const CoresHere& here, int local_world_size, bool may_be_bound);
// Threads per rank inside one operator: --threads, or else this rank's share of the cores that the agent has found
// (Assignment::node_cores); without an agent they are counted here. (The agent's number is better, because the worker's
// OpenMP may have bound this thread to fewer cores.)
int choose_threads(const LaunchOptions& launch, const World& world);

// Process-wide switches: threads, tf32, deterministic algorithms.
void apply_device_settings(const TrainingOptions& training, Precision precision, int threads);

// While it lives, eligible operators compute in bf16 or fp16.
class AutocastScope {
 public:
  AutocastScope(Precision precision, at::Device device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType type_;
  bool active_;
};

}  // namespace lockstep
