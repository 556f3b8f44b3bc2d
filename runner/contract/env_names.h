// Names of the environment variables that cross between operator, pod, agent, worker and foreign launchers.
//
// Role: the one list of them. Whoever reads or writes a variable takes its name from here. Pure.
#pragma once

#include <string_view>

namespace lockstep::env {

// Written by the operator, read by agent and worker.
inline constexpr std::string_view kJob = "LOCKSTEP_JOB";
inline constexpr std::string_view kNamespace = "LOCKSTEP_NAMESPACE";
inline constexpr std::string_view kJobUid = "LOCKSTEP_JOB_UID";
// Each new TrainJob has a higher number, so what a TrainJob that was deleted and made again writes counts as newer than
// what the one before wrote.
inline constexpr std::string_view kRun = "LOCKSTEP_RUN";
inline constexpr std::string_view kNodeRank = "LOCKSTEP_NODE_RANK";
inline constexpr std::string_view kNumNodes = "LOCKSTEP_NUM_NODES";
inline constexpr std::string_view kMinNodes = "LOCKSTEP_MIN_NODES";
inline constexpr std::string_view kMaxNodes = "LOCKSTEP_MAX_NODES";
inline constexpr std::string_view kNprocPerNode = "LOCKSTEP_NPROC_PER_NODE";
inline constexpr std::string_view kCoordinator = "LOCKSTEP_COORDINATOR";
inline constexpr std::string_view kPodAttempt = "LOCKSTEP_POD_ATTEMPT";
inline constexpr std::string_view kCheckpointDir = "LOCKSTEP_CHECKPOINT_DIR";
inline constexpr std::string_view kResume = "LOCKSTEP_RESUME";  // spec.checkpoint.resume
inline constexpr std::string_view kToken = "LOCKSTEP_TOKEN";
// Defaults of the flags of the same names: spec.elastic, spec.health and spec.trainer of the TrainJob.
inline constexpr std::string_view kRejoinTimeout = "LOCKSTEP_REJOIN_TIMEOUT_SECONDS";
inline constexpr std::string_view kStallTimeout = "LOCKSTEP_STALL_TIMEOUT_SECONDS";
inline constexpr std::string_view kStatusPort = "LOCKSTEP_STATUS_PORT";  // spec.trainer.statusPort
// How long workers that were told to stop may take, the last checkpoint included, before the agent kills them:
// spec.checkpoint.onSuspendTimeoutSeconds. The pod's grace period is longer.
inline constexpr std::string_view kStopTimeout = "LOCKSTEP_STOP_TIMEOUT_SECONDS";

// From the agent to its worker: the file descriptor of their socket pair.
inline constexpr std::string_view kAgentFd = "LOCKSTEP_AGENT_FD";
// The worker's beat page (contract/beat_page.h), a memfd.
inline constexpr std::string_view kBeatFd = "LOCKSTEP_BEAT_FD";
// How many GPUs the agent expects its workers to use; 0: they train on the CPU.
inline constexpr std::string_view kGpus = "LOCKSTEP_GPUS";

// From `lockstep launch --recover` to its ranks: "1" puts the package lockstep in the place of what PyTorch and its
// frameworks have for data parallelism.
inline constexpr std::string_view kRecover = "LOCKSTEP_RECOVER";

// From `lockstep run --local_nodes` to its agents: the command that the user gave, which the last lines of a run quote.
inline constexpr std::string_view kCommandLine = "LOCKSTEP_COMMAND_LINE";
// From the same: why this agent was started in place of an earlier one, a RestartDecision as a line
// (contract/coordination.h).
inline constexpr std::string_view kStartedBecause = "LOCKSTEP_STARTED_BECAUSE";

// From the program that starts the agent in a foreign image (agent_folder_main.cc): before the names of variables that
// our loader must not see, and the user's program gets back.
inline constexpr std::string_view kKeptPrefix = "LOCKSTEP_KEPT_";

// From `lockstep launch --local_nodes` to its agents: the folder of their control sockets.
inline constexpr std::string_view kControlFolder = "LOCKSTEP_CONTROL_FOLDER";

// For tests and unusual installations: the worker program, and the file for the termination message.
inline constexpr std::string_view kWorker = "LOCKSTEP_WORKER";
inline constexpr std::string_view kTerminationLog = "LOCKSTEP_TERMINATION_LOG";

// torchrun and torch.distributed.launch; the operator writes those of one process per node itself.
inline constexpr std::string_view kRank = "RANK";
inline constexpr std::string_view kWorldSize = "WORLD_SIZE";
inline constexpr std::string_view kLocalRank = "LOCAL_RANK";
inline constexpr std::string_view kLocalWorldSize = "LOCAL_WORLD_SIZE";
inline constexpr std::string_view kMasterAddr = "MASTER_ADDR";
inline constexpr std::string_view kMasterPort = "MASTER_PORT";
inline constexpr std::string_view kGroupRank = "GROUP_RANK";
inline constexpr std::string_view kGroupWorldSize = "GROUP_WORLD_SIZE";
inline constexpr std::string_view kForeignNodeRank = "NODE_RANK";
inline constexpr std::string_view kForeignNumNodes = "NNODES";
inline constexpr std::string_view kTorchUseAgentStore = "TORCHELASTIC_USE_AGENT_STORE";
inline constexpr std::string_view kTorchRestartCount = "TORCHELASTIC_RESTART_COUNT";
// How long torchrun lets ranks take that were asked to stop.
inline constexpr std::string_view kTorchShutdownTimeout = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
inline constexpr std::string_view kTorchPrefixTemplate = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";
inline constexpr std::string_view kPetNumNodes = "PET_NNODES";
inline constexpr std::string_view kPetNprocPerNode = "PET_NPROC_PER_NODE";
inline constexpr std::string_view kPetNodeRank = "PET_NODE_RANK";
inline constexpr std::string_view kPetMasterAddr = "PET_MASTER_ADDR";
inline constexpr std::string_view kPetMasterPort = "PET_MASTER_PORT";

// Kubernetes' own.
inline constexpr std::string_view kJobCompletionIndex = "JOB_COMPLETION_INDEX";
inline constexpr std::string_view kKubernetesServiceHost = "KUBERNETES_SERVICE_HOST";

// Slurm. The STEP names speak of what one srun started, the others of the whole allocation.
inline constexpr std::string_view kSlurmProcid = "SLURM_PROCID";
inline constexpr std::string_view kSlurmLocalid = "SLURM_LOCALID";
inline constexpr std::string_view kSlurmNodeid = "SLURM_NODEID";
inline constexpr std::string_view kSlurmJobId = "SLURM_JOB_ID";
inline constexpr std::string_view kSlurmStepId = "SLURM_STEP_ID";
inline constexpr std::string_view kSlurmStepNumTasks = "SLURM_STEP_NUM_TASKS";
inline constexpr std::string_view kSlurmNtasks = "SLURM_NTASKS";
inline constexpr std::string_view kSlurmStepNumNodes = "SLURM_STEP_NUM_NODES";
inline constexpr std::string_view kSlurmNnodes = "SLURM_NNODES";
inline constexpr std::string_view kSlurmStepTasksPerNode = "SLURM_STEP_TASKS_PER_NODE";
inline constexpr std::string_view kSlurmTasksPerNode = "SLURM_TASKS_PER_NODE";
inline constexpr std::string_view kSlurmStepNodelist = "SLURM_STEP_NODELIST";
inline constexpr std::string_view kSlurmJobNodelist = "SLURM_JOB_NODELIST";
inline constexpr std::string_view kSlurmNodelist = "SLURM_NODELIST";

// mpirun of Open MPI.
inline constexpr std::string_view kOpenMpiRank = "OMPI_COMM_WORLD_RANK";
inline constexpr std::string_view kOpenMpiSize = "OMPI_COMM_WORLD_SIZE";
inline constexpr std::string_view kOpenMpiLocalRank = "OMPI_COMM_WORLD_LOCAL_RANK";
inline constexpr std::string_view kOpenMpiLocalSize = "OMPI_COMM_WORLD_LOCAL_SIZE";
// mpiexec of MPICH and Intel MPI (Hydra), PALS of HPE Cray, Flux; Slurm with --mpi=pmi2 sets the first two, too.
inline constexpr std::string_view kPmiRank = "PMI_RANK";
inline constexpr std::string_view kPmiSize = "PMI_SIZE";
inline constexpr std::string_view kHydraLocalRank = "MPI_LOCALRANKID";
inline constexpr std::string_view kHydraLocalSize = "MPI_LOCALNRANKS";
inline constexpr std::string_view kPmiLocalRank = "PMI_LOCAL_RANK";
inline constexpr std::string_view kPmiLocalSize = "PMI_LOCAL_SIZE";
// mpirun of MVAPICH2.
inline constexpr std::string_view kMvapichRank = "MV2_COMM_WORLD_RANK";
inline constexpr std::string_view kMvapichSize = "MV2_COMM_WORLD_SIZE";
inline constexpr std::string_view kMvapichLocalRank = "MV2_COMM_WORLD_LOCAL_RANK";
inline constexpr std::string_view kMvapichLocalSize = "MV2_COMM_WORLD_LOCAL_SIZE";
// A rank without the number of ranks.
inline constexpr std::string_view kPmixRank = "PMIX_RANK";
inline constexpr std::string_view kPalsRank = "PALS_RANKID";

// Other systems that start several pods or machines: LeaderWorkerSet, SkyPilot, Volcano. Volcano gives each task of its
// job a VC_TASK_NUM, the number of its pods.
inline constexpr std::string_view kLwsGroupSize = "LWS_GROUP_SIZE";
inline constexpr std::string_view kSkypilotNumNodes = "SKYPILOT_NUM_NODES";
inline constexpr std::string_view kVolcanoTaskIndex = "VC_TASK_INDEX";
inline constexpr std::string_view kVolcanoPrefix = "VC_";
inline constexpr std::string_view kVolcanoNumSuffix = "_NUM";

// Devices, threads, and how output looks.
inline constexpr std::string_view kCudaVisibleDevices = "CUDA_VISIBLE_DEVICES";
inline constexpr std::string_view kNvidiaVisibleDevices = "NVIDIA_VISIBLE_DEVICES";  // of the container runtime
inline constexpr std::string_view kOmpWaitPolicy = "OMP_WAIT_POLICY";
inline constexpr std::string_view kGompSpincount = "GOMP_SPINCOUNT";
inline constexpr std::string_view kGlooStoreV2 = "GLOO_ENABLE_STORE_V2_API";
inline constexpr std::string_view kGlooRankAsSequenceNumber = "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER";
inline constexpr std::string_view kGlooInterface = "GLOO_SOCKET_IFNAME";
inline constexpr std::string_view kNcclInterface = "NCCL_SOCKET_IFNAME";
inline constexpr std::string_view kNoColor = "NO_COLOR";
inline constexpr std::string_view kCi = "CI";
inline constexpr std::string_view kTerm = "TERM";
inline constexpr std::string_view kLcAll = "LC_ALL";
inline constexpr std::string_view kLcCtype = "LC_CTYPE";
inline constexpr std::string_view kLang = "LANG";

}  // namespace lockstep::env
