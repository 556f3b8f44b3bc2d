#include "runner/doctor/checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "runner/base/json.h"
#include "runner/doctor/report.h"

namespace lockstep::doctor {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30U;

// A machine without a GPU on which all is well.
Facts cpu_machine() {
  Facts facts{.version = "0.1.0"};
  facts.request = {.dir = ".", .nnodes = 1, .coordinator_port = 29400, .status_port = 8080};
  facts.worker = {.program = "/opt/lockstep/bin/lockstep-worker",
                  .build = WorkerBuild{.version = "0.1.0", .torch = "2.11.0"},
                  .start_seconds = 0.3};
  facts.machine = {.cores = 8,
                   .architecture = "x86_64",
                   .has_avx2 = true,
                   .memory_bytes = 32 * kGiB,
                   .shm_bytes = 16 * kGiB,
                   .shm_free_bytes = 16 * kGiB,
                   .files_max = 65536,
                   .files_hard_max = 65536,
                   .now = 2'000'000'000,
                   .program_time = 1'900'000'000};
  facts.network.ports = {{.port = 8080}, {.port = 29400}, {.port = 29500}};
  facts.network.host_name = "node7";
  facts.network.own_addresses = {"127.0.0.1", "10.0.0.7"};
  facts.network.interfaces = {"eth0", "eth1", "lo"};
  facts.disk = {.path = ".", .folder = ".", .free_bytes = 100 * kGiB, .filesystem = "ext4", .bytes_per_second = 900e6};
  return facts;
}

// Two H200 and a build for them.
Facts gpu_machine() {
  Facts facts = cpu_machine();
  facts.worker.build->cuda = "13.0";
  facts.worker.build->cuda_architectures = "7.5,8.0,8.6,8.9,9.0+PTX";
  facts.worker.build->nccl = "2.28.9";
  const GpuFacts gpu{.name = "NVIDIA H200", .capability = {9, 0}, .memory_bytes = 141 * kGiB, .uncorrected_errors = 0};
  facts.driver = {.has_kernel_module = true,
                  .has_device_files = true,
                  .has_nvml = true,
                  .has_cuda = true,
                  .version = "580.65.06",
                  .cuda_version = 13000,
                  .gpus = {gpu, gpu},
                  .visible = {0, 1}};
  facts.driver.gpus[1].index = 1;
  return facts;
}

Check check_named(const Facts& facts, const std::string& name) {
  for (const Check& check : judge(facts)) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << "no check " << name;
  return {};
}

struct Case {
  const char* what;
  Facts (*machine)();
  std::function<void(Facts&)> change;
  const char* check;
  Verdict verdict;
  const char* found;   // must be said
  const char* remedy;  // must be advised; empty: none
};

const Case kCases[] = {
    // ---- programs ----
    {"worker beside us", cpu_machine, [](Facts&) {}, "worker", Verdict::kOk, "LibTorch 2.11.0, starts in 0.3 s", ""},
    {"no worker", cpu_machine,
     [](Facts& f) { f.worker = {.problem = "no /opt/bin/lockstep-worker"}; },
     "worker", Verdict::kFail, "no /opt/bin/lockstep-worker", "LOCKSTEP_WORKER"},
    {"a library is missing", cpu_machine,
     [](Facts& f) {
       f.worker.build.reset();
       f.worker.problem = "error while loading shared libraries: libtorch_cpu.so: cannot open shared object file";
     },
     "worker", Verdict::kFail, "libtorch_cpu.so", "--component runner"},
    {"it crashes", cpu_machine,
     [](Facts& f) {
       f.worker.build.reset();
       f.worker.problem = "it is killed by signal 4";
     },
     "worker", Verdict::kFail, "killed by signal 4", "--build_info"},
    {"another version", cpu_machine, [](Facts& f) { f.worker.build->version = "0.0.9"; }, "worker", Verdict::kWarn,
     "0.0.9 with LibTorch 2.11.0, but lockstep is 0.1.0", "same build"},
    {"slow libraries", cpu_machine, [](Facts& f) { f.worker.start_seconds = 12; }, "worker", Verdict::kWarn, "12.0 s",
     "local one"},
    // ---- driver ----
    {"no driver, CPU build", cpu_machine, [](Facts&) {}, "driver", Verdict::kOk, "this build needs none", ""},
    {"no driver, CUDA build", gpu_machine, [](Facts& f) { f.driver = {}; }, "driver", Verdict::kWarn,
     "training runs on the CPU", "install NVIDIA's driver"},
    {"container without the runtime", gpu_machine,
     [](Facts& f) {
       f.driver = {.nvidia_visible_devices = "all"};
       f.machine.is_container = true;
     },
     "driver", Verdict::kWarn, "NVIDIA_VISIBLE_DEVICES is all", "nvidia-container-toolkit"},
    {"module without libraries", gpu_machine, [](Facts& f) { f.driver = {.has_kernel_module = true}; }, "driver",
     Verdict::kFail, "libcuda.so.1", "ldconfig"},
    {"module without libraries in a container", gpu_machine,
     [](Facts& f) {
       f.driver = {.has_device_files = true};
       f.machine.is_container = true;
     },
     "driver", Verdict::kFail, "libnvidia-ml.so.1", "--gpus all"},
    {"module without libraries, CPU build", cpu_machine, [](Facts& f) { f.driver = {.has_kernel_module = true}; },
     "driver", Verdict::kWarn, "libcuda.so.1", "ldconfig"},
    {"driver updated under the kernel, CPU build", cpu_machine,
     [](Facts& f) { f.driver = {.has_cuda = true, .problem = "Driver/library version mismatch"}; }, "driver",
     Verdict::kWarn, "mismatch", "reboot"},
    {"a part of the driver, CPU build", cpu_machine, [](Facts& f) { f.driver = {.has_nvml = true}; }, "driver",
     Verdict::kWarn, "without libcuda.so.1", "libcuda1"},
    {"driver updated under the kernel", gpu_machine,
     [](Facts& f) { f.driver = {.has_cuda = true, .problem = "Driver/library version mismatch"}; }, "driver",
     Verdict::kFail, "mismatch", "reboot"},
    {"a part of the driver", gpu_machine,
     [](Facts& f) {
       f.driver.has_cuda = false;
       f.machine.is_container = true;
     },
     "driver", Verdict::kFail, "without libcuda.so.1", "compute,utility"},
    {"driver", gpu_machine, [](Facts&) {}, "driver", Verdict::kOk, "NVIDIA 580.65.06, runs CUDA up to 13.0", ""},
    // ---- CUDA ----
    {"CPU build on a GPU machine", gpu_machine,
     [](Facts& f) { f.worker.build->cuda = f.worker.build->cuda_architectures = ""; }, "CUDA", Verdict::kWarn,
     "will not be used", "LOCKSTEP_CUDA=ON"},
    {"CPU build without GPUs", cpu_machine, [](Facts&) {}, "CUDA", Verdict::kSkip, "", ""},
    {"old driver", gpu_machine, [](Facts& f) { f.driver.cuda_version = 12040; }, "CUDA", Verdict::kFail,
     "needs CUDA 13.0, the driver runs CUDA up to 12.4", "580 or newer"},
    {"newer driver", gpu_machine, [](Facts& f) { f.driver.cuda_version = 14010; }, "CUDA", Verdict::kOk, "13.0", ""},
    // ---- GPUs ----
    {"GPUs", gpu_machine, [](Facts&) {}, "GPUs", Verdict::kOk, "2 × NVIDIA H200 (9.0, 141 GiB)", ""},
    {"the driver shows none", gpu_machine,
     [](Facts& f) {
       f.driver.gpus.clear();
       f.driver.visible.clear();
       f.machine.is_container = f.machine.is_pod = true;
     },
     "GPUs", Verdict::kWarn, "shows none", "nvidia.com/gpu"},
    {"CUDA_VISIBLE_DEVICES hides all", gpu_machine,
     [](Facts& f) {
       f.driver.visible.clear();
       f.driver.is_restricted = true;
       f.driver.cuda_visible_devices = "7";
     },
     "GPUs", Verdict::kWarn, "CUDA_VISIBLE_DEVICES is \"7\"", "0 to 1"},
    {"CUDA_VISIBLE_DEVICES hides one", gpu_machine,
     [](Facts& f) {
       f.driver.visible = {1};
       f.driver.is_restricted = true;
     },
     "GPUs", Verdict::kOk, "1 visible", ""},
    {"an old GPU", gpu_machine, [](Facts& f) { f.driver.gpus[1].capability = {7, 0}; }, "GPUs", Verdict::kFail,
     "GPU 1 (NVIDIA H200) has compute capability 7.0, this build has code for 7.5,8.0,8.6,8.9,9.0+PTX",
     "LOCKSTEP_CUDA_ARCHITECTURES"},
    {"an old GPU that is hidden", gpu_machine,
     [](Facts& f) {
       f.driver.gpus[1].capability = {7, 0};
       f.driver.visible = {0};
     },
     "GPUs", Verdict::kOk, "", ""},
    {"more ranks than GPUs", gpu_machine, [](Facts& f) { f.request.nproc = 3; }, "GPUs", Verdict::kFail,
     "--nproc 3, but 2 GPUs are visible", "--backend gloo"},
    {"memory errors", gpu_machine, [](Facts& f) { f.driver.gpus[1].uncorrected_errors = 2; }, "GPU health",
     Verdict::kWarn, "GPU 1 had 2 uncorrected memory errors", "nvidia-smi"},
    {"somebody else's memory", gpu_machine, [](Facts& f) { f.driver.gpus[0].memory_used_bytes = 70 * kGiB; },
     "GPU health", Verdict::kWarn, "GPU 0 has 70 GiB of 141 GiB in use", "nvidia-smi"},
    {"MIG", gpu_machine, [](Facts& f) { f.driver.gpus[0].is_split = true; }, "GPU health", Verdict::kWarn,
     "GPU 0 is split (MIG)", "CUDA_VISIBLE_DEVICES=MIG-"},
    {"healthy", gpu_machine, [](Facts&) {}, "GPU health", Verdict::kOk, "", ""},
    {"NCCL", gpu_machine, [](Facts&) {}, "NCCL", Verdict::kOk, "2.28.9", ""},
    {"no NCCL", gpu_machine, [](Facts& f) { f.worker.build->nccl.clear(); }, "NCCL", Verdict::kFail, "no NCCL",
     "--backend gloo"},
    // ---- machine ----
    {"CPU", cpu_machine, [](Facts&) {}, "CPU", Verdict::kOk, "8 cores with AVX2", ""},
    {"no AVX2", cpu_machine, [](Facts& f) { f.machine.has_avx2 = false; }, "CPU", Verdict::kWarn, "without AVX2",
     "another machine"},
    {"no AVX2 on ARM", cpu_machine,
     [](Facts& f) {
       f.machine.has_avx2 = false;
       f.machine.architecture = "aarch64";
     },
     "CPU", Verdict::kOk, "8 cores", ""},
    {"CPU limit", cpu_machine,
     [](Facts& f) {
       f.machine.cores_allowed = 1.5;
       f.request.nproc = 2;
     },
     "CPU", Verdict::kWarn, "2 ranks on 8 cores, 1.5 by the cgroup", "raise the CPU limit"},
    {"a CPU limit that is enough", cpu_machine, [](Facts& f) { f.machine.cores_allowed = 4.5; }, "CPU", Verdict::kOk,
     "8 cores, 4.5 by the cgroup", ""},
    {"a quota that limits nothing", cpu_machine, [](Facts& f) { f.machine.cores_allowed = 8.0; }, "CPU", Verdict::kOk,
     "8 cores", ""},
    {"too many ranks", cpu_machine, [](Facts& f) { f.request.nproc = 9; }, "CPU", Verdict::kWarn, "9 ranks on 8 cores",
     "--nproc"},
    {"little memory", cpu_machine, [](Facts& f) { f.machine.memory_bytes = kGiB; }, "memory", Verdict::kWarn,
     "1.0 GiB available for 1 rank", "--nproc"},
    {"little memory below the limit", cpu_machine, [](Facts& f) { f.machine.memory_left_bytes = kGiB / 2; }, "memory",
     Verdict::kWarn, "512 MiB available below the cgroup's limit", "memory limit"},
    {"enough memory below the limit", cpu_machine, [](Facts& f) { f.machine.memory_left_bytes = 4 * kGiB; }, "memory",
     Verdict::kOk, "4.0 GiB available below", ""},
    {"docker's /dev/shm with GPUs", gpu_machine,
     [](Facts& f) {
       f.machine.shm_bytes = f.machine.shm_free_bytes = uint64_t{64} << 20U;
       f.machine.is_container = true;
     },
     "/dev/shm", Verdict::kWarn, "64 MiB free of 64 MiB", "--shm-size"},
    {"a pod's /dev/shm with GPUs", gpu_machine,
     [](Facts& f) {
       f.machine.shm_bytes = f.machine.shm_free_bytes = uint64_t{64} << 20U;
       f.machine.is_container = f.machine.is_pod = true;
     },
     "/dev/shm", Verdict::kWarn, "between 2 ranks", "memory volume"},
    {"docker's /dev/shm without GPUs", cpu_machine,
     [](Facts& f) { f.machine.shm_bytes = f.machine.shm_free_bytes = uint64_t{64} << 20U; }, "/dev/shm", Verdict::kOk,
     "64 MiB", ""},
    {"no /dev/shm with GPUs", gpu_machine, [](Facts& f) { f.machine.shm_bytes.reset(); }, "/dev/shm", Verdict::kFail,
     "there is none", "/dev/shm"},
    {"few files", cpu_machine, [](Facts& f) { f.machine.files_max = 256; }, "limits", Verdict::kFail, "256 open files",
     "ulimit -n 65536 (hard limit 65536)"},
    {"few files for several nodes", cpu_machine,
     [](Facts& f) {
       f.machine.files_max = 1024;
       f.request.nnodes = 2;
     },
     "limits", Verdict::kWarn, "1024 open files", "ulimit -n"},
    {"few threads", cpu_machine, [](Facts& f) { f.machine.threads_left = 100; }, "limits", Verdict::kWarn,
     "100 threads", "--pids-limit"},
    {"InfiniBand with little locked memory", cpu_machine,
     [](Facts& f) {
       f.machine.has_infiniband = true;
       f.machine.locked_max = uint64_t{8} << 20U;
     },
     "limits", Verdict::kWarn, "8 MiB", "memlock=-1"},
    {"a clock that is behind", cpu_machine, [](Facts& f) { f.machine.now = f.machine.program_time - 7200; }, "clock",
     Verdict::kWarn, "2 hours before this program", "set-ntp"},
    // ---- network ----
    {"status port taken", cpu_machine,
     [](Facts& f) {
       f.network.ports[0].problem = "in use";
       f.network.ports[0].holder = "python3 (pid 12)";
     },
     "port 8080", Verdict::kWarn, "taken by python3 (pid 12)", "--status_port"},
    {"status port taken in a pod", cpu_machine,
     [](Facts& f) {
       f.network.ports[0].problem = "taken by a program of another user";
       f.machine.is_pod = true;
     },
     "port 8080", Verdict::kFail, "another user", "pod's port"},
    {"status port taken in a TrainJob's pod", cpu_machine,
     [](Facts& f) {
       f.network.ports[0].problem = "in use";
       f.machine.is_pod = true;
       f.machine.trainjob = "films";
     },
     "port 8080", Verdict::kFail, "in use", "spec.trainer.statusPort of TrainJob films"},
    {"coordinator's port taken, alone", cpu_machine, [](Facts& f) { f.network.ports[1].problem = "in use"; },
     "port 29400", Verdict::kSkip, "", ""},
    {"coordinator's port taken on node 0", cpu_machine,
     [](Facts& f) {
       f.network.ports[1].problem = "in use";
       f.request.nnodes = 2;
     },
     "port 29400", Verdict::kFail, "in use", "--coordinator HOST:PORT"},
    {"coordinator's port taken on node 1", cpu_machine,
     [](Facts& f) {
       f.network.ports[1].problem = "in use";
       f.request.nnodes = 2;
       f.request.coordinator_host = "node0";
       f.network.coordinator_addresses = {"10.0.0.1"};
       f.network.coordinator = Reach::kConnected;
     },
     "port 29400", Verdict::kSkip, "", ""},
    {"torchrun's port taken", cpu_machine, [](Facts& f) { f.network.ports[2].problem = "in use"; }, "port 29500",
     Verdict::kWarn, "in use", "--master_port"},
    {"no such interface for Gloo", cpu_machine, [](Facts& f) { f.network.gloo_interface = "ib0"; }, "interface",
     Verdict::kFail, "GLOO_SOCKET_IFNAME is ib0", "eth0, eth1, lo"},
    {"interfaces for Gloo", cpu_machine, [](Facts& f) { f.network.gloo_interface = "ib0,eth1,eth0"; }, "interface",
     Verdict::kOk, "eth1, the first of GLOO_SOCKET_IFNAME=ib0,eth1,eth0 that is here", ""},
    {"no such interfaces for Gloo", cpu_machine, [](Facts& f) { f.network.gloo_interface = "ib0,ib1"; }, "interface",
     Verdict::kFail, "GLOO_SOCKET_IFNAME is ib0,ib1, of which none is there", "eth0, eth1, lo"},
    {"NCCL's syntax for Gloo", cpu_machine, [](Facts& f) { f.network.gloo_interface = "^lo,docker"; }, "interface",
     Verdict::kFail, "NCCL's syntax", "eth0, eth1, lo"},
    {"no such interface for NCCL", cpu_machine, [](Facts& f) { f.network.nccl_interface = "=eth"; }, "interface",
     Verdict::kFail, "NCCL_SOCKET_IFNAME is =eth", "eth0, eth1, lo"},
    {"the beginning of an interface for NCCL", cpu_machine, [](Facts& f) { f.network.nccl_interface = "ib,eth"; },
     "interface", Verdict::kOk, "ib,eth", ""},
    {"all but some interfaces for NCCL", cpu_machine, [](Facts& f) { f.network.nccl_interface = "^docker0"; },
     "interface", Verdict::kOk, "^docker0", ""},
    {"host name, alone", cpu_machine, [](Facts&) {}, "host name", Verdict::kSkip, "", ""},
    {"host name that is the loopback", cpu_machine,
     [](Facts& f) {
       f.request.nnodes = 2;
       f.network.host_addresses = {"127.0.1.1"};
     },
     "host name", Verdict::kWarn, "node7 is 127.0.1.1, where other nodes cannot reach it", "GLOO_SOCKET_IFNAME"},
    {"host name of nobody", cpu_machine, [](Facts& f) { f.request.nnodes = 2; }, "host name", Verdict::kWarn,
     "resolves to nothing", "/etc/hosts"},
    {"host name of another", cpu_machine,
     [](Facts& f) {
       f.request.nnodes = 2;
       f.network.host_addresses = {"10.0.0.9"};
     },
     "host name", Verdict::kWarn, "no address of this machine", "/etc/hosts"},
    {"host name", cpu_machine,
     [](Facts& f) {
       f.request.nnodes = 2;
       f.network.host_addresses = {"10.0.0.7"};
     },
     "host name", Verdict::kOk, "node7 is 10.0.0.7", ""},
    {"coordinator without a name", cpu_machine, [](Facts& f) { f.request.coordinator_host = "nod0"; }, "coordinator",
     Verdict::kFail, "nod0 resolves to nothing", "10.0.0.7:29400"},
    // ---- storage ----
    {"disk", cpu_machine, [](Facts&) {}, "checkpoints", Verdict::kOk, "100 GiB free, writes 900 MB/s (ext4)", ""},
    {"folder to be made", cpu_machine,
     [](Facts& f) {
       f.disk.path = "/ckpt/new";
       f.disk.folder = "/ckpt";
     },
     "checkpoints", Verdict::kOk, "/ckpt/new (to be made in /ckpt)", ""},
    {"read-only", cpu_machine, [](Facts& f) { f.disk.problem = "cannot be written to: Read-only file system"; },
     "checkpoints", Verdict::kFail, "Read-only", "fsGroup"},
    {"full", cpu_machine, [](Facts& f) { f.disk.free_bytes = uint64_t{100} << 20U; }, "checkpoints", Verdict::kFail,
     "100 MiB free", "ckpt prune"},
    {"nearly full", cpu_machine, [](Facts& f) { f.disk.free_bytes = 2 * kGiB; }, "checkpoints", Verdict::kWarn,
     "2.0 GiB free", "make room"},
    {"slow", cpu_machine, [](Facts& f) { f.disk.bytes_per_second = 20e6; }, "checkpoints", Verdict::kWarn, "20 MB/s",
     "--checkpoint_every"},
    {"in memory", cpu_machine, [](Facts& f) { f.disk.filesystem = "tmpfs"; }, "checkpoints", Verdict::kWarn,
     "gone after a reboot", "disk"},
    {"data not asked about", cpu_machine, [](Facts&) {}, "data", Verdict::kSkip, "", ""},
    {"data", cpu_machine,
     [](Facts& f) {
       f.request.data = "ml-100k.inter";
       f.data.bytes = uint64_t{2} << 20U;
     },
     "data", Verdict::kOk, "ml-100k.inter, 2 MiB, readable", ""},
    {"data that is not there", cpu_machine,
     [](Facts& f) {
       f.request.data = "x";
       f.data.problem = "there is no such file or folder";
     },
     "data", Verdict::kFail, "no such file", "path"},
};

TEST(DoctorChecks, each_case_is_judged_described_and_remedied) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.what);
    Facts facts = c.machine();
    c.change(facts);
    const Check check = check_named(facts, c.check);
    EXPECT_EQ(to_string(check.verdict), std::string(to_string(c.verdict))) << check.found;
    EXPECT_NE(check.found.find(c.found), std::string::npos) << check.found;
    EXPECT_NE(check.remedy.find(c.remedy), std::string::npos) << check.remedy;
  }
}

TEST(DoctorChecks, what_is_wrong_comes_with_a_remedy_and_what_is_right_without) {
  for (const Case& c : kCases) {
    Facts facts = c.machine();
    c.change(facts);
    for (const Check& check : judge(facts)) {
      const bool is_wrong = check.verdict == Verdict::kWarn || check.verdict == Verdict::kFail;
      EXPECT_EQ(check.remedy.empty(), !is_wrong) << c.what << ": " << check.name;
      EXPECT_FALSE(check.found.empty()) << c.what << ": " << check.name;
    }
  }
}

TEST(DoctorChecks, where_all_is_well_nothing_is_said_against_it) {
  for (const Facts& facts : {cpu_machine(), gpu_machine()}) {
    for (const Check& check : judge(facts)) {
      EXPECT_TRUE(check.verdict == Verdict::kOk || check.verdict == Verdict::kSkip) << check.name << check.found;
    }
  }
}

TEST(DoctorChecks, a_coordinator_is_told_by_how_it_is_reached) {
  const struct {
    Reach reach;
    Verdict verdict;
    const char* found;
  } cases[] = {{Reach::kOurs, Verdict::kOk, "this machine"},
               {Reach::kConnected, Verdict::kOk, "answers"},
               {Reach::kRefused, Verdict::kWarn, "nobody listens there yet"},
               {Reach::kTimeout, Verdict::kFail, "does not answer"},
               {Reach::kUnreachable, Verdict::kFail, "cannot be reached"}};
  for (const auto& c : cases) {
    Facts facts = cpu_machine();
    facts.request.coordinator_host = "node0";
    facts.network.coordinator_addresses = {"10.0.0.1"};
    facts.network.coordinator = c.reach;
    const Check check = check_named(facts, "coordinator");
    EXPECT_EQ(check.verdict, c.verdict);
    EXPECT_TRUE(check.found.starts_with("node0:29400 (10.0.0.1) ")) << check.found;
    EXPECT_NE(check.found.find(c.found), std::string::npos) << check.found;
  }
}

TEST(DoctorChecks, ranks_are_those_asked_for_or_one_per_gpu) {
  EXPECT_EQ(ranks_meant(cpu_machine()), 1);
  Facts facts = gpu_machine();
  EXPECT_EQ(ranks_meant(facts), 2);
  facts.request.nproc = 5;
  EXPECT_EQ(ranks_meant(facts), 5);
}

TEST(DoctorReport, is_a_table_that_ends_with_what_to_do_next) {
  Facts facts = gpu_machine();
  facts.network.ports[0].problem = "in use";
  facts.network.ports[0].holder = "python3 (pid 12)";
  const std::string text = report_text(judge(facts), facts, {.color = false, .columns = 100});
  EXPECT_NE(text.find("lockstep 0.1.0 on node7\n\nPrograms\n  ok    worker "), std::string::npos) << text;
  EXPECT_NE(text.find("  warn  port 8080    taken by python3 (pid 12); /metrics, /status and the page live there\n"
                      "                     → another --status_port N"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("clock"), std::string::npos) << "what was skipped is not shown\n" << text;
  EXPECT_TRUE(text.ends_with(" ok, 1 warning, 0 failed. Ready: lockstep run sasrec --dataset auto\n")) << text;
  EXPECT_EQ(exit_code_of(judge(facts)), 0);
  facts.request.data = "my data/r.inter";
  EXPECT_NE(report_text(judge(facts), facts, {}).find("Ready: lockstep run sasrec --dataset 'my data/r.inter'\n"),
            std::string::npos);
  facts.disk.problem = "cannot be written to";
  EXPECT_TRUE(report_text(judge(facts), facts, {})
                  .ends_with("1 failed. Fix what failed, then run lockstep doctor "
                             "again.\n"));
  EXPECT_EQ(exit_code_of(judge(facts)), 1);
}

TEST(DoctorReport, keeps_to_the_width_of_the_terminal) {
  Facts facts = gpu_machine();
  facts.driver.gpus[1].capability = {7, 0};
  const std::string text = report_text(judge(facts), facts, {.color = false, .columns = 60});
  std::istringstream lines(text.substr(0, text.rfind("\n\n")));
  for (std::string line; std::getline(lines, line);) {
    const auto width = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
    EXPECT_LE(width, 60) << line;
  }
}

TEST(DoctorReport, is_coloured_only_when_asked) {
  const Facts facts = cpu_machine();
  EXPECT_EQ(report_text(judge(facts), facts, {.color = false}).find('\033'), std::string::npos);
  EXPECT_NE(report_text(judge(facts), facts, {.color = true}).find("\033[32mok"), std::string::npos);
}

TEST(DoctorReport, programs_get_every_check) {
  Facts facts = cpu_machine();
  facts.disk.free_bytes = 0;
  const Result<Json> json = parse_json(report_json(judge(facts), facts), "report");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->at("ok"), false);
  EXPECT_EQ(json->at("failures"), 1);
  EXPECT_EQ(json->at("checks").size(), judge(facts).size());
  EXPECT_EQ(json->at("checks").at(0).at("name"), "worker");
}

}  // namespace
}  // namespace lockstep::doctor
