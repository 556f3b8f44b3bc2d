#include "runner/doctor/checks.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

#include "runner/base/cgroup.h"
#include "runner/base/plural.h"
#include "runner/contract/gloo_interfaces.h"

namespace lockstep::doctor {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20U;
constexpr uint64_t kGiB = uint64_t{1} << 30U;
constexpr int kCudaMajor = 1000;
constexpr uint64_t kMemoryPerRankMin = 2 * kGiB;  // libtorch, a small model, its data
constexpr uint64_t kShmPerGpuRankMin = 256 * kMiB;
constexpr uint64_t kFilesMin = 1024;     // sockets of a group, data files
constexpr uint64_t kFilesWanted = 4096;  // a rank holds a socket to each of its peers
constexpr uint64_t kThreadsMin = 512;
constexpr uint64_t kFreeBytesMin = 256 * kMiB;
constexpr uint64_t kFreeBytesWanted = 5 * kGiB;
constexpr double kBytesPerSecondWanted = 50e6;
constexpr double kStartSecondsWanted = 5;
constexpr uint64_t kMemoryInUseMax = kGiB;  // of a GPU, by other programs

std::string number(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string size_text(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= kGiB) return number(value / static_cast<double>(kGiB), bytes < 10 * kGiB ? 1 : 0) + " GiB";
  return number(value / static_cast<double>(kMiB), 0) + " MiB";
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Each of these makes a Check with the verdict that it is named after.
Check ok(std::string name, std::string found) { return {"", std::move(name), Verdict::kOk, std::move(found), ""}; }
Check skip(std::string name, std::string found) { return {"", std::move(name), Verdict::kSkip, std::move(found), ""}; }
Check warn(std::string name, std::string found, std::string remedy) {
  return {"", std::move(name), Verdict::kWarn, std::move(found), std::move(remedy)};
}
Check fail(std::string name, std::string found, std::string remedy) {
  return {"", std::move(name), Verdict::kFail, std::move(found), std::move(remedy)};
}

bool build_has_cuda(const Facts& facts) { return facts.worker.build && !facts.worker.build->cuda.empty(); }

// The number of GPUs on which the ranks will compute; 0: they train on the CPU.
int usable_gpus(const Facts& facts) {
  return build_has_cuda(facts) && facts.driver.has_cuda ? static_cast<int>(facts.driver.visible.size()) : 0;
}

bool machine_has_gpus(const DriverFacts& driver) {
  return !driver.gpus.empty() || driver.has_device_files || driver.has_kernel_module;
}

// ---- programs ----

Check check_worker(const Facts& facts) {
  const WorkerFacts& worker = facts.worker;
  if (worker.program.empty()) {
    return fail("worker", worker.problem,
                "put lockstep-worker beside lockstep (a build with LOCKSTEP_TORCH=ON has it), or name it in "
                "LOCKSTEP_WORKER");
  }
  const bool lacks_library = worker.problem.find("shared librar") != std::string::npos;
  if (lacks_library) {
    return fail("worker", worker.program + " does not start: " + worker.problem,
                "install runner and libraries together (cmake --install … --component runner), or run scripts/setup "
                "again where it was built");
  }
  if (!worker.build) {
    return fail("worker", worker.program + " does not start: " + worker.problem,
                "run it by hand: " + worker.program + " --build_info");
  }
  std::string found = "lockstep-worker ";
  found.append(worker.build->version).append(" with LibTorch ").append(worker.build->torch);
  if (worker.build->version != facts.version) {
    return warn("worker", found + ", but lockstep is " + facts.version, "install both from the same build");
  }
  found.append(", starts in ").append(number(worker.start_seconds, 1)).append(" s");
  if (worker.start_seconds > kStartSecondsWanted) {
    return warn("worker", found, "its libraries load slowly: a slow or remote disk; keep the programs on a local one");
  }
  return ok("worker", found);
}

// ---- GPUs ----

Check driver_missing(const Facts& facts) {
  const DriverFacts& driver = facts.driver;
  const bool gpus_requested = !driver.nvidia_visible_devices.empty() && driver.nvidia_visible_devices != "void" &&
                              driver.nvidia_visible_devices != "none";
  if (driver.has_kernel_module || driver.has_device_files) {
    return fail("driver", "the kernel has NVIDIA's module, but libcuda.so.1 and libnvidia-ml.so.1 were not found",
                facts.machine.is_container
                    ? "start the container with the NVIDIA runtime: docker run --gpus all …; a pod asks for "
                      "nvidia.com/gpu"
                    : "install the driver's libraries of the same version, and run ldconfig");
  }
  if (!build_has_cuda(facts)) return ok("driver", "none, and this build needs none: training runs on the CPU");
  if (gpus_requested && facts.machine.is_container) {
    return warn("driver",
                "NVIDIA_VISIBLE_DEVICES is " + driver.nvidia_visible_devices +
                    ", but no driver is in this container: training runs on the CPU",
                "install nvidia-container-toolkit on the host and start with docker run --gpus all …");
  }
  return warn("driver", "no NVIDIA driver: training runs on the CPU",
              facts.machine.is_container ? "docker run --gpus all …; a pod asks for nvidia.com/gpu"
                                         : "install NVIDIA's driver; a machine without a GPU needs none");
}

Check state_of_driver(const Facts& facts) {
  const DriverFacts& driver = facts.driver;
  if (!driver.problem.empty()) {
    const bool is_mismatch = driver.problem.find("mismatch") != std::string::npos;
    return fail("driver", "NVIDIA's driver does not start: " + driver.problem,
                is_mismatch ? "the driver was updated under the running kernel: reload its module, or reboot"
                            : "look at nvidia-smi and dmesg; reboot if the module is stuck");
  }
  if (!driver.has_nvml && !driver.has_cuda) return driver_missing(facts);
  if (!driver.has_cuda) {
    return fail("driver", "driver " + driver.version + " without libcuda.so.1",
                facts.machine.is_container ? "NVIDIA_DRIVER_CAPABILITIES must hold compute: leave it unset, or set it "
                                             "to compute,utility"
                                           : "install the driver's CUDA library (libcuda1), and run ldconfig");
  }
  std::string found = "NVIDIA ";
  found.append(driver.version.empty() ? "of unknown version" : driver.version);
  return ok("driver", found.append(", runs CUDA up to ").append(cuda_version_text(driver.cuda_version)));
}

Check check_driver(const Facts& facts) {
  Check check = state_of_driver(facts);
  // A build without CUDA trains on the CPU whatever is wrong with the driver.
  const bool is_needed = !facts.worker.build || build_has_cuda(facts);
  if (check.verdict == Verdict::kFail && !is_needed) check.verdict = Verdict::kWarn;
  return check;
}

Check check_cuda(const Facts& facts) {
  const DriverFacts& driver = facts.driver;
  if (!facts.worker.build) return skip("CUDA", "the worker does not start");
  if (!build_has_cuda(facts)) {
    if (!machine_has_gpus(driver)) return skip("CUDA", "this build has none");
    return warn("CUDA", "this build has no CUDA: the GPUs of this machine will not be used",
                "build with -DLOCKSTEP_CUDA=ON, or take the CUDA image");
  }
  const WorkerBuild& build = *facts.worker.build;
  if (!driver.has_cuda) return skip("CUDA", "built for CUDA " + build.cuda + "; there is no driver");
  const int needed_major = std::atoi(build.cuda.c_str());
  if (driver.cuda_version / kCudaMajor < needed_major) {
    std::string found = "this build needs CUDA " + build.cuda + ", the driver runs CUDA up to ";
    return fail("CUDA", found.append(cuda_version_text(driver.cuda_version)),
                "install a newer driver (CUDA 13 needs 580 or newer, CUDA 12 525), or build against an older CUDA");
  }
  return ok("CUDA", "built for CUDA " + build.cuda + ", code for " + build.cuda_architectures);
}

std::string gpu_names(const DriverFacts& driver) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < driver.gpus.size();) {
    size_t end = i;
    const GpuFacts& gpu = driver.gpus[i];
    while (end < driver.gpus.size() && driver.gpus[end].name == gpu.name) ++end;
    std::string text = end - i > 1 ? std::to_string(end - i) + " × " : "";
    text.append(gpu.name).append(" (").append(to_string(gpu.capability)).append(", ");
    texts.push_back(text.append(size_text(gpu.memory_bytes)).append(")"));
    i = end;
  }
  return joined(texts);
}

std::string first_gpu_without_code(const Facts& facts) {
  for (const int index : facts.driver.visible) {
    if (index < 0 || index >= std::ssize(facts.driver.gpus)) continue;
    const GpuFacts& gpu = facts.driver.gpus[static_cast<size_t>(index)];
    if (has_code_for(facts.worker.build->cuda_architectures, gpu.capability)) continue;
    return "GPU " + std::to_string(index) + " (" + gpu.name + ") has compute capability " + to_string(gpu.capability);
  }
  return "";
}

Check check_gpus(const Facts& facts) {
  const DriverFacts& driver = facts.driver;
  if (driver.gpus.empty()) {
    if (!driver.has_nvml) return skip("GPUs", "none found");
    return warn("GPUs", "the driver shows none",
                facts.machine.is_container ? "this container got none: docker run --gpus all …; a pod asks for "
                                             "nvidia.com/gpu"
                                           : "look at lspci and dmesg");
  }
  if (!build_has_cuda(facts)) return ok("GPUs", gpu_names(driver) + ", not used by this build");
  if (driver.visible.empty()) {
    return warn(
        "GPUs",
        "CUDA_VISIBLE_DEVICES is \"" + driver.cuda_visible_devices + "\" and leaves none of " +
            plural(driver.gpus.size(), "GPU") + ": training runs on the CPU",
        "unset CUDA_VISIBLE_DEVICES, or name GPUs that are there: 0 to " + std::to_string(driver.gpus.size() - 1));
  }
  if (const std::string gpu = first_gpu_without_code(facts); !gpu.empty()) {
    return fail("GPUs", gpu + ", this build has code for " + facts.worker.build->cuda_architectures,
                "build with -DLOCKSTEP_CUDA_ARCHITECTURES for it, leave it out with CUDA_VISIBLE_DEVICES, or use "
                "--device cpu");
  }
  const int nproc = facts.request.nproc.value_or(1);
  if (nproc > std::ssize(driver.visible)) {
    return fail("GPUs",
                "--nproc " + std::to_string(nproc) + ", but " + plural(driver.visible.size(), "GPU") +
                    (driver.visible.size() == 1 ? " is" : " are") + " visible",
                "lower --nproc, or share GPUs with lockstep run --backend gloo");
  }
  std::string found = gpu_names(driver);
  if (driver.is_restricted) found.append(", ").append(std::to_string(driver.visible.size())).append(" visible");
  return ok("GPUs", found);
}

Check check_gpu_health(const Facts& facts) {
  if (usable_gpus(facts) == 0) return skip("GPU health", "no GPU will be used");
  std::vector<std::string> split;
  for (const int index : facts.driver.visible) {
    if (index < 0 || index >= std::ssize(facts.driver.gpus)) continue;
    const GpuFacts& gpu = facts.driver.gpus[static_cast<size_t>(index)];
    const std::string name = "GPU " + std::to_string(index);
    if (gpu.uncorrected_errors.value_or(0) > 0) {
      return warn(
          "GPU health",
          name + " had " + plural(*gpu.uncorrected_errors, "uncorrected memory error") + " since its driver was loaded",
          "reset or replace it: nvidia-smi --query-remapped-rows=gpu_bus_id,"
          "remapped_rows.failure --format=csv");
    }
    if (gpu.is_split) split.push_back(name);
    if (gpu.memory_used_bytes > kMemoryInUseMax && !gpu.is_split) {
      return warn(
          "GPU health",
          name + " has " + size_text(gpu.memory_used_bytes) + " of " + size_text(gpu.memory_bytes) + " in use already",
          "nvidia-smi shows which programs use it");
    }
  }
  if (!split.empty()) {
    return warn("GPU health",
                joined(split) +
                    " is split (MIG): a rank sees one part, and NCCL cannot connect two "
                    "parts of one GPU",
                "name a part in CUDA_VISIBLE_DEVICES=MIG-…, or turn MIG off: nvidia-smi -mig 0");
  }
  return ok("GPU health", "no uncorrected memory errors, memory free");
}

Check check_nccl(const Facts& facts) {
  if (!build_has_cuda(facts)) return skip("NCCL", "this build has none");
  const std::string& nccl = facts.worker.build->nccl;
  if (!nccl.empty()) return ok("NCCL", nccl);
  return fail("NCCL", "the worker loads no NCCL", "build against a PyTorch with NCCL, or run with --backend gloo");
}

// ---- machine ----

Check check_cpu(const Facts& facts) {
  const MachineFacts& machine = facts.machine;
  const int ranks = ranks_meant(facts);
  std::string found = plural(machine.cores, "core");
  if (machine.cores_allowed) found.append(", ").append(number(*machine.cores_allowed, 1)).append(" by the cgroup");
  const int cores = whole_cores(machine.cores, machine.cores_allowed);
  if (machine.architecture == "x86_64" && !machine.has_avx2) {
    return warn("CPU", found + ", without AVX2", "training on this CPU is several times slower: use another machine");
  }
  if (ranks > cores) {
    const bool is_limited = cores < machine.cores;
    return warn("CPU", plural(ranks, "rank") + " on " + found,
                is_limited ? "raise the CPU limit to one core per rank, or lower --nproc" : "lower --nproc");
  }
  return ok("CPU", found + (machine.has_avx2 ? " with AVX2" : ""));
}

Check check_memory(const Facts& facts) {
  const MachineFacts& machine = facts.machine;
  const uint64_t left = std::min(machine.memory_bytes, machine.memory_left_bytes.value_or(machine.memory_bytes));
  const bool is_limited = left < machine.memory_bytes;
  const std::string found = size_text(left) + " available" + (is_limited ? " below the cgroup's limit" : "");
  const auto ranks = static_cast<uint64_t>(ranks_meant(facts));
  if (left >= ranks * kMemoryPerRankMin) return ok("memory", found);
  return warn("memory", found + " for " + plural(ranks, "rank"),
              is_limited ? "raise the memory limit to " + size_text(kMemoryPerRankMin) + " per rank"
                         : "stop other programs, or lower --nproc; a rank takes about " + size_text(kMemoryPerRankMin));
}

Check check_shm(const Facts& facts) {
  const MachineFacts& machine = facts.machine;
  const std::string remedy = machine.is_pod         ? "mount a memory volume at /dev/shm (TrainJob pods have one)"
                             : machine.is_container ? "docker run --shm-size 8g …, or --ipc=host"
                                                    : "mount -o remount,size=8g /dev/shm";
  const int gpu_ranks = std::min(usable_gpus(facts), ranks_meant(facts));
  const uint64_t wanted = gpu_ranks > 1 ? static_cast<uint64_t>(gpu_ranks) * kShmPerGpuRankMin : 0;
  if (!machine.shm_bytes) {
    if (wanted == 0) return ok("/dev/shm", "none; nothing here needs it");
    return fail("/dev/shm", "there is none: NCCL needs it between the ranks of a machine", remedy);
  }
  const std::string found = size_text(machine.shm_free_bytes) + " free of " + size_text(*machine.shm_bytes);
  if (machine.shm_free_bytes >= wanted) return ok("/dev/shm", found);
  return warn("/dev/shm", found + ": NCCL may fail between " + plural(gpu_ranks, "rank"), remedy);
}

Check check_limits(const Facts& facts) {
  const MachineFacts& machine = facts.machine;
  if (machine.files_max < kFilesMin) {
    return fail("limits", std::to_string(machine.files_max) + " open files are too few",
                "ulimit -n 65536 (hard limit " + std::to_string(machine.files_hard_max) + ")");
  }
  if (machine.files_max < kFilesWanted && facts.request.several_nodes()) {
    return warn("limits", std::to_string(machine.files_max) + " open files; many ranks need more", "ulimit -n 65536");
  }
  if (machine.threads_left && *machine.threads_left < kThreadsMin) {
    return warn("limits", "room for " + plural(*machine.threads_left, "thread") + " only",
                "raise ulimit -u, or the cgroup's pids limit (docker run --pids-limit)");
  }
  if (machine.has_infiniband && machine.locked_max) {
    return warn("limits", "locked memory is limited to " + size_text(*machine.locked_max) + ", InfiniBand needs more",
                "ulimit -l unlimited (docker run --ulimit memlock=-1)");
  }
  return ok("limits", std::to_string(machine.files_max) + " open files" +
                          (machine.threads_left ? ", " + std::to_string(*machine.threads_left) + " threads" : ""));
}

Check check_clock(const Facts& facts) {
  const MachineFacts& machine = facts.machine;
  if (machine.now >= machine.program_time) return skip("clock", "not before this program was installed");
  const int64_t hours = (machine.program_time - machine.now) / 3600;
  return warn("clock", "it is set to a time " + plural(hours, "hour") + " before this program was installed",
              "set it (timedatectl set-ntp true): certificates and logs depend on it");
}

// ---- network ----

const PortFacts* find_port(const NetworkFacts& network, int port) {
  const auto it =
      std::find_if(network.ports.begin(), network.ports.end(), [&](const auto& p) { return p.port == port; });
  return it == network.ports.end() ? nullptr : &*it;
}

std::string taken_text(const PortFacts& port) { return port.holder.empty() ? port.problem : "taken by " + port.holder; }

// True on node 0, whose agent listens for the other nodes: --coordinator is this machine, or was not given.
bool is_coordinator(const Facts& facts) {
  if (!facts.request.several_nodes()) return false;
  return facts.request.coordinator_host.empty() || facts.network.coordinator == Reach::kOurs;
}

Check check_port(const Facts& facts, const PortFacts& port) {
  const std::string name = "port " + std::to_string(port.port);
  const bool is_status = port.port == facts.request.status_port;
  const bool is_of_coordinator = port.port == facts.request.coordinator_port;
  const std::string use = is_status           ? "/metrics, /status and the page"
                          : is_of_coordinator ? "node 0's agent"
                                              : "torchrun's store";
  if (port.problem.empty()) return ok(name, "free, for " + use);
  const std::string found = taken_text(port) + "; " + use + (is_status ? " live there" : " listens there");
  if (is_of_coordinator && is_coordinator(facts) && !facts.machine.trainjob.empty()) {
    return fail(name, found,
                "end that program, or set spec.trainer.coordinatorPort of TrainJob " + facts.machine.trainjob);
  }
  if (is_of_coordinator && is_coordinator(facts)) {
    return fail(name, found, "end that program, or give all nodes another port: --coordinator HOST:PORT");
  }
  if (is_of_coordinator) return skip(name, found + ", with several nodes");
  if (is_status && !facts.machine.trainjob.empty()) {
    return fail(name, found, "end that program, or set spec.trainer.statusPort of TrainJob " + facts.machine.trainjob);
  }
  if (is_status && facts.machine.is_pod) {
    return fail(name, found, "probes and Prometheus expect it: end that program, or change the pod's port");
  }
  if (is_status) return warn(name, found, "another --status_port N, or --status_port 0 for none; or end that program");
  return warn(name, found, "matters only under torchrun: give it another --master_port N");
}

// True when an interface matches `text`, the value of NCCL_SOCKET_IFNAME, as NCCL reads it: a list of beginnings of
// names, or after "=" of whole names. After "^" it lists interfaces that are not used; such a value is not checked.
bool nccl_interface_exists(const std::string& text, const std::vector<std::string>& interfaces) {
  if (text.starts_with("^")) return true;
  const bool is_exact = text.starts_with("=");
  std::set<std::string> words;
  for (size_t at = is_exact ? 1 : 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    words.insert(text.substr(at, comma - at));
    at = comma + 1;
  }
  return std::any_of(interfaces.begin(), interfaces.end(), [&](const std::string& name) {
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
      return is_exact ? name == word : !word.empty() && name.starts_with(word);
    });
  });
}

Check check_interface(const Facts& facts) {
  const NetworkFacts& network = facts.network;
  const std::string there = "interfaces here: " + joined(network.interfaces);
  if (is_nccl_syntax(network.gloo_interface)) {
    return fail("interface", "GLOO_SOCKET_IFNAME is " + network.gloo_interface + ": " + std::string(kGlooSyntax),
                "unset it, or name one that is here; " + there);
  }
  const std::vector<std::string> names = gloo_interfaces(network.gloo_interface);
  const auto used = std::find_if(names.begin(), names.end(),
                                 [&](const std::string& name) { return contains(network.interfaces, name); });
  if (!network.gloo_interface.empty() && used == names.end()) {
    return fail("interface",
                "GLOO_SOCKET_IFNAME is " + network.gloo_interface +
                    (names.size() > 1 ? ", of which none is there" : ", which is not there"),
                "unset it, or name one that is; " + there);
  }
  if (!network.nccl_interface.empty() && !nccl_interface_exists(network.nccl_interface, network.interfaces)) {
    return fail("interface", "NCCL_SOCKET_IFNAME is " + network.nccl_interface + ", which is not there",
                "unset it, or name one that is; " + there);
  }
  if (network.gloo_interface.empty() && network.nccl_interface.empty()) return skip("interface", "none is configured");
  const std::string found = network.gloo_interface.empty() ? network.nccl_interface : *used;
  return ok("interface",
            found + (names.size() > 1 ? ", the first of GLOO_SOCKET_IFNAME=" + network.gloo_interface + " that is here"
                                      : ", as the environment says"));
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

// Under torchrun and similar launchers, Gloo listens on the address that the host's name resolves to. Under `lockstep
// run` the agent gives each rank its address.
Check check_host_name(const Facts& facts) {
  const NetworkFacts& network = facts.network;
  if (!facts.request.several_nodes()) return skip("host name", "one node needs none");
  const std::string remedy = "map " + network.host_name +
                             " to this machine's address in DNS or /etc/hosts, or set "
                             "GLOO_SOCKET_IFNAME (it matters under torchrun, not under lockstep run)";
  if (network.host_addresses.empty()) return warn("host name", network.host_name + " resolves to nothing", remedy);
  const std::string found = network.host_name + " is " + joined(network.host_addresses);
  if (std::all_of(network.host_addresses.begin(), network.host_addresses.end(), is_loopback)) {
    return warn("host name", found + ", where other nodes cannot reach it", remedy);
  }
  const bool is_ours = std::any_of(network.host_addresses.begin(), network.host_addresses.end(),
                                   [&](const auto& address) { return contains(network.own_addresses, address); });
  if (!is_ours) return warn("host name", found + ", which is no address of this machine", remedy);
  return ok("host name", found);
}

Check check_coordinator(const Facts& facts) {
  const Request& request = facts.request;
  const NetworkFacts& network = facts.network;
  if (request.coordinator_host.empty()) return skip("coordinator", "--coordinator is not given");
  const std::string name = request.coordinator_host + ":" + std::to_string(request.coordinator_port);
  if (network.coordinator_addresses.empty()) {
    return fail("coordinator", request.coordinator_host + " resolves to nothing",
                "check the name, or give an address: --coordinator 10.0.0.7:29400");
  }
  const std::string at = name + " (" + joined(network.coordinator_addresses) + ")";
  switch (network.coordinator) {
    case Reach::kOurs:
      return ok("coordinator", at + " is this machine: it is node 0");
    case Reach::kConnected:
      return ok("coordinator", at + " answers");
    case Reach::kRefused:
      return warn("coordinator", at + " is reached, but nobody listens there yet",
                  "start node 0 first; later nodes wait for it");
    case Reach::kTimeout:
      return fail("coordinator", at + " does not answer",
                  "open TCP port " + std::to_string(request.coordinator_port) + " in the firewall between the nodes");
    default:
      return fail("coordinator", at + " cannot be reached from here",
                  "check the route: ip route get " + network.coordinator_addresses.front());
  }
}

// ---- storage ----

Check check_disk(const Facts& facts) {
  const DiskFacts& disk = facts.disk;
  const std::string where = disk.folder == disk.path ? disk.path : disk.path + " (to be made in " + disk.folder + ")";
  if (!disk.problem.empty()) {
    return fail("checkpoints", where + ": " + disk.problem,
                "take another folder (--train_dir PATH), or chown this one (in a pod: fsGroup)");
  }
  std::string found = where + ": " + size_text(disk.free_bytes) + " free, writes ";
  found.append(number(disk.bytes_per_second / 1e6, 0)).append(" MB/s (").append(disk.filesystem).append(")");
  if (disk.free_bytes < kFreeBytesMin) return fail("checkpoints", found, "make room: lockstep ckpt prune FOLDER");
  if (disk.filesystem == "tmpfs") {
    return warn("checkpoints", found + ": gone after a reboot, and taken from memory", "use a disk");
  }
  if (disk.free_bytes < kFreeBytesWanted) {
    return warn("checkpoints", found,
                "make room: lockstep ckpt prune FOLDER; a checkpoint takes three times the "
                "model");
  }
  if (disk.bytes_per_second < kBytesPerSecondWanted) {
    return warn("checkpoints", found, "use a faster disk, or --checkpoint_every with more steps");
  }
  return ok("checkpoints", found);
}

Check check_data(const Facts& facts) {
  if (facts.request.data.empty()) return skip("data", "--data is not given");
  if (!facts.data.problem.empty()) {
    return fail("data", facts.request.data + ": " + facts.data.problem, "check the path and who may read it");
  }
  return ok("data", facts.request.data + (facts.data.is_folder ? " is a readable folder"
                                                               : ", " + size_text(facts.data.bytes) + ", readable"));
}

}  // namespace

const char* to_string(Verdict verdict) {
  constexpr std::array kNames{"ok", "warn", "fail", "skip"};
  static_assert(kNames.size() == static_cast<size_t>(Verdict::kSkip) + 1);
  return kNames.at(static_cast<size_t>(verdict));
}

int ranks_meant(const Facts& facts) { return facts.request.nproc.value_or(std::max(1, usable_gpus(facts))); }

std::vector<Check> judge(const Facts& facts) {
  std::vector<Check> all;
  const auto add = [&all](const char* group, Check check) {
    check.group = group;
    all.push_back(std::move(check));
  };
  add("Programs", check_worker(facts));
  for (const auto& check : {check_driver, check_cuda, check_gpus, check_gpu_health, check_nccl}) {
    add("GPUs", check(facts));
  }
  for (const auto& check : {check_cpu, check_memory, check_shm, check_limits, check_clock}) {
    add("Machine", check(facts));
  }
  for (const int port : {facts.request.status_port, facts.request.coordinator_port, kTorchrunStorePort}) {
    const PortFacts* const found = find_port(facts.network, port);
    if (found != nullptr) add("Network", check_port(facts, *found));
  }
  for (const auto& check : {check_interface, check_host_name, check_coordinator}) add("Network", check(facts));
  add("Storage", check_disk(facts));
  add("Storage", check_data(facts));
  return all;
}

}  // namespace lockstep::doctor
