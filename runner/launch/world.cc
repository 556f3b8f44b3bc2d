#include "runner/launch/world.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "runner/base/json.h"
#include "runner/base/plural.h"
#include "runner/contract/env_names.h"
#include "runner/launch/announced_nodes.h"

namespace lockstep {
namespace {

constexpr int kDefaultMasterPort = 29500;
constexpr const char* kLoopback = "127.0.0.1";
// Far above any real job; keeps products of two counts inside an int.
constexpr int64_t kCountMax = 1'000'000;

// Reads variables of the environment; an empty value counts as unset.
class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  [[nodiscard]] std::string text(std::string_view name) const { return variable(environment_, name); }
  [[nodiscard]] bool has(std::string_view name) const { return !text(name).empty(); }
  // "RANK=3", for messages.
  [[nodiscard]] std::string setting(std::string_view name) const { return std::string(name) + "=" + text(name); }

  [[nodiscard]] Result<std::optional<int>> number(std::string_view name, int64_t min, int64_t max) const {
    const std::string value = text(name);
    if (value.empty()) return std::optional<int>();
    const std::optional<int64_t> parsed = parse_number(value);
    if (!parsed || *parsed < min || *parsed > max) {
      return invalid(setting(name) + ": expected a whole number from " + std::to_string(min) + " to " +
                     std::to_string(max));
    }
    return std::optional<int>(static_cast<int>(*parsed));
  }

  // The first of `names` that is set.
  [[nodiscard]] std::string_view first_set(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (has(name)) return name;
    }
    return {};
  }

 private:
  const Environment& environment_;
};

// LOCAL_RANK or --local_rank; empty when neither is given.
Result<std::optional<int>> read_local_rank(const Reader& env, const LaunchOptions& launch) {
  TRY_ASSIGN(const std::optional<int> from_env, env.number(env::kLocalRank, 0, kCountMax));
  if (from_env && launch.local_rank && *from_env != *launch.local_rank) {
    return invalid("--local_rank " + std::to_string(*launch.local_rank) + " contradicts " +
                   env.setting(env::kLocalRank) + ": leave out one of the two");
  }
  return from_env ? from_env : launch.local_rank;
}

// Flags win over variables, variables over the defaults. Returns whether a flag or a variable gives the address.
Result<bool> read_store_address(const Reader& env, const LaunchOptions& launch, World& world) {
  const std::string address = launch.master_addr.empty() ? env.text(env::kMasterAddr) : launch.master_addr;
  world.master_addr = address.empty() ? kLoopback : address;
  TRY_ASSIGN(const std::optional<int> port, env.number(env::kMasterPort, 1, 65535));
  world.master_port = launch.master_port.value_or(port.value_or(kDefaultMasterPort));
  return !address.empty();
}

// The host of "host:port" or "[v6]:port".
std::string host_of(const std::string& host_port) {
  const size_t colon = host_port.rfind(':');
  std::string host = colon == std::string::npos ? host_port : host_port.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

Status check_pair(const Reader& env) {
  if (env.has(env::kRank) && !env.has(env::kWorldSize)) {
    return invalid(env.setting(env::kRank) +
                   " without WORLD_SIZE: a launcher sets both; set WORLD_SIZE, or unset RANK to train in one process");
  }
  TRY_ASSIGN(const std::optional<int> rank, env.number(env::kRank, 0, kCountMax));
  TRY_ASSIGN(const std::optional<int> world_size, env.number(env::kWorldSize, 1, kCountMax));
  if (rank && *rank >= *world_size) {
    return invalid(env.setting(env::kRank) + " with " + env.setting(env::kWorldSize) +
                   ": ranks are counted from 0, so RANK must be below WORLD_SIZE");
  }
  return {};
}

// --ddp promises several ranks: an error when nobody says how many.
Status check_ddp(const Reader& env, const LaunchOptions& launch) {
  if (!launch.ddp || launch.nproc || launch.nnodes || launch.local_nodes) return {};
  for (const std::string_view name :
       {env::kRank, env::kNodeRank, env::kNumNodes, env::kNprocPerNode, env::kJobCompletionIndex, env::kSlurmProcid,
        env::kOpenMpiRank, env::kPmiRank, env::kMvapichRank}) {
    if (env.has(name)) return {};
  }
  std::string missing;
  for (const std::string_view name :
       {env::kRank, env::kLocalRank, env::kWorldSize, env::kMasterAddr, env::kMasterPort}) {
    if (!env.has(name)) missing += (missing.empty() ? "" : ", ") + std::string(name);
  }
  return invalid("--ddp trains on several ranks, but nothing says how many: " + missing +
                 " (which a launcher gives each rank) are not set; give --nproc N to `lockstep run`, which starts N "
                 "ranks, or start lockstep-worker by torchrun, or leave out --ddp to train on one");
}

// "^lo" (all but lo) and "=eth0" are NCCL's; to Gloo they are names of interfaces that do not exist.
Status check_gloo_interface(const Reader& env) {
  const std::string name = env.text(env::kGlooInterface);
  if (!name.starts_with('^') && !name.starts_with('=')) return {};
  return invalid(env.setting(env::kGlooInterface) +
                 ": ^ and = are understood by NCCL alone (NCCL_SOCKET_IFNAME); set it to the name of the interface "
                 "that the other nodes reach, such as eth0, or remove it");
}

// --- torchrun, torch.distributed.launch, or RANK and WORLD_SIZE by hand ---

Status check_torchrun_address(const Reader& env, const LaunchOptions& launch, int world_size) {
  if (world_size == 1) return {};
  if (launch.master_addr.empty() && !env.has(env::kMasterAddr)) {
    return invalid(
        "RANK and WORLD_SIZE are set, but not MASTER_ADDR: set it to the host of rank 0 (127.0.0.1 when all "
        "ranks run on this machine), or give --master_addr");
  }
  if (!launch.master_port && !env.has(env::kMasterPort)) {
    return invalid(
        "RANK and WORLD_SIZE are set, but not MASTER_PORT: set it to a port that is free on the host of "
        "rank 0 (29500, say), the same for all ranks, or give --master_port");
  }
  return {};
}

Result<World> torchrun_world(const Reader& env, const LaunchOptions& launch) {
  World world;
  world.source = WorldSource::kTorchrun;
  TRY_ASSIGN(const std::optional<int> rank, env.number(env::kRank, 0, kCountMax));
  TRY_ASSIGN(const std::optional<int> world_size, env.number(env::kWorldSize, 1, kCountMax));
  world.assignment.rank = *rank;
  world.assignment.world_size = *world_size;
  TRY(check_torchrun_address(env, launch, world.assignment.world_size));
  TRY(read_store_address(env, launch, world));

  TRY_ASSIGN(const std::optional<int> local_rank, read_local_rank(env, launch));
  TRY_ASSIGN(const std::optional<int> local_size, env.number(env::kLocalWorldSize, 1, kCountMax));
  world.assignment.local_rank = local_rank.value_or(0);
  // Without LOCAL_WORLD_SIZE only a lower bound is known. It is used only to share the cores.
  world.assignment.local_world_size =
      local_size.value_or(std::max(launch.nproc.value_or(1), world.assignment.local_rank + 1));
  if (world.assignment.local_rank >= world.assignment.local_world_size ||
      world.assignment.local_world_size > world.assignment.world_size) {
    return invalid("LOCAL_RANK=" + std::to_string(world.assignment.local_rank) +
                   ", LOCAL_WORLD_SIZE=" + std::to_string(world.assignment.local_world_size) +
                   ", WORLD_SIZE=" + std::to_string(world.assignment.world_size) +
                   ": expected LOCAL_RANK < LOCAL_WORLD_SIZE <= WORLD_SIZE");
  }
  const std::string_view node_name = env.first_set({env::kGroupRank, env::kForeignNodeRank});
  const std::string_view nodes_name = env.first_set({env::kGroupWorldSize, env::kForeignNumNodes});
  TRY_ASSIGN(const std::optional<int> node_rank, env.number(node_name, 0, kCountMax));
  TRY_ASSIGN(const std::optional<int> nnodes, env.number(nodes_name, 1, kCountMax));
  world.node_rank =
      node_rank.value_or((world.assignment.rank - std::min(world.assignment.rank, world.assignment.local_rank)) /
                         world.assignment.local_world_size);
  world.assignment.nnodes = nnodes.value_or((world.assignment.world_size + world.assignment.local_world_size - 1) /
                                            world.assignment.local_world_size);

  // torchrun's agent serves the store at MASTER_PORT only. At another port rank 0 must serve it.
  const bool own_port = launch.master_port && std::to_string(*launch.master_port) != env.text(env::kMasterPort);
  world.store_is_served_by_launcher = env.text(env::kTorchUseAgentStore) == "True" && !own_port;
  TRY_ASSIGN(const std::optional<int> restarts, env.number(env::kTorchRestartCount, 0, kCountMax));
  world.assignment.generation = static_cast<uint64_t>(restarts.value_or(0));
  return world;
}

// --- nodes that say only which node they are: a pod, an Indexed Job, a StatefulSet, --node_rank ---

struct NodePosition {
  WorldSource source;
  int node_rank;
  std::string given_by;  // "LOCKSTEP_NODE_RANK=1"
};

// The ordinal behind the last '-' of a StatefulSet pod's name.
std::optional<int> host_ordinal(const std::string& host_name) {
  const std::string host = host_name.substr(0, host_name.find('.'));
  const size_t dash = host.rfind('-');
  if (dash == std::string::npos || dash == 0 || dash + 1 == host.size()) return std::nullopt;
  int ordinal = 0;
  const char* first = host.data() + dash + 1;
  const char* last = host.data() + host.size();
  const auto [end, error] = std::from_chars(first, last, ordinal);
  if (error != std::errc() || end != last || ordinal < 0 || *first == '-') return std::nullopt;
  return ordinal;
}

Result<std::optional<int>> read_nnodes(const Reader& env, const LaunchOptions& launch) {
  if (launch.min_nodes.value_or(launch.nnodes.value_or(0)) != launch.nnodes.value_or(0)) {
    return invalid("--nnodes " + std::to_string(*launch.min_nodes) + ":" + std::to_string(*launch.nnodes) +
                   ": without an agent the number of nodes cannot change: give one number, or use `lockstep run`");
  }
  TRY_ASSIGN(const std::optional<int> from_env, env.number(env::kNumNodes, 1, kCountMax));
  if (from_env && launch.nnodes && *from_env != *launch.nnodes) {
    return invalid("--nnodes " + std::to_string(*launch.nnodes) + " contradicts " + env.setting(env::kNumNodes) +
                   ": leave out one of the two");
  }
  return from_env ? from_env : launch.nnodes;
}

Result<std::optional<NodePosition>> find_node_position(const Reader& env, const std::string& host_name,
                                                       const LaunchOptions& launch, std::optional<int> nnodes) {
  std::optional<NodePosition> position;
  if (env.has(env::kNodeRank)) {
    TRY_ASSIGN(const std::optional<int> rank, env.number(env::kNodeRank, 0, kCountMax));
    position = NodePosition{WorldSource::kPod, *rank, env.setting(env::kNodeRank)};
  } else if (env.has(env::kJobCompletionIndex) && nnodes != 1) {
    // With --nnodes 1 each index is a run of its own (a sweep).
    TRY_ASSIGN(const std::optional<int> rank, env.number(env::kJobCompletionIndex, 0, kCountMax));
    position = NodePosition{WorldSource::kIndexedJob, *rank, env.setting(env::kJobCompletionIndex)};
  } else if (env.has(env::kKubernetesServiceHost) && nnodes.value_or(1) > 1 && !launch.node_rank) {
    const std::optional<int> ordinal = host_ordinal(host_name);
    if (ordinal) position = NodePosition{WorldSource::kStatefulSet, *ordinal, "the host name " + host_name};
  }
  if (position && launch.node_rank && *launch.node_rank != position->node_rank) {
    return invalid("--node_rank " + std::to_string(*launch.node_rank) + " contradicts " + position->given_by +
                   ": leave out one of the two");
  }
  return position;
}

// Sets local_rank and local_world_size. Several ranks on a node need a launcher that has started them and set
// LOCAL_RANK; without one, a worker is the only rank.
Status read_position_in_node(const Reader& env, const LaunchOptions& launch, World& world) {
  TRY_ASSIGN(const std::optional<int> from_env, env.number(env::kNprocPerNode, 1, kCountMax));
  TRY_ASSIGN(const std::optional<int> local_rank, read_local_rank(env, launch));
  world.assignment.local_world_size = launch.nproc.value_or(from_env.value_or(1));
  const std::string given_by =
      launch.nproc ? "--nproc " + std::to_string(*launch.nproc) : env.setting(env::kNprocPerNode);
  if (world.assignment.local_world_size > 1 && !local_rank) {
    return invalid(given_by +
                   ", but LOCAL_RANK is not set: lockstep-worker is one rank and starts no others; use "
                   "`lockstep run` (or torchrun), which starts them all");
  }
  world.assignment.local_rank = local_rank.value_or(0);
  if (world.assignment.local_rank >= world.assignment.local_world_size) {
    const bool alone = !launch.nproc && !from_env;
    return invalid("LOCAL_RANK (--local_rank) is " + std::to_string(world.assignment.local_rank) +
                   ", but this node has " + plural(world.assignment.local_world_size, "rank") +
                   (alone ? " (neither WORLD_SIZE nor --nproc is set)" : " (" + given_by + ")") +
                   ": set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as a launcher does, or unset LOCAL_RANK");
  }
  return {};
}

Error number_of_nodes_unknown(const std::string& given_by) {
  return invalid(given_by + " says which node this is, but not how many there are: set --nnodes (or " +
                 std::string(env::kNumNodes) + "); --nnodes 1 trains each alone");
}

Result<World> node_world(const Reader& env, const LaunchOptions& launch, const NodePosition& position,
                         std::optional<int> nnodes) {
  World world;
  world.source = position.source;
  world.node_rank = position.node_rank;
  if (!nnodes) return number_of_nodes_unknown(position.given_by);
  world.assignment.nnodes = *nnodes;
  if (world.node_rank >= world.assignment.nnodes) {
    return invalid(position.given_by + " with " + std::to_string(world.assignment.nnodes) + " nodes (--nnodes or " +
                   std::string(env::kNumNodes) + "): nodes are counted from 0");
  }
  TRY(read_position_in_node(env, launch, world));
  if (int64_t{world.assignment.nnodes} * world.assignment.local_world_size > kCountMax) {
    return invalid(std::to_string(world.assignment.nnodes) + " nodes with " +
                   std::to_string(world.assignment.local_world_size) + " ranks each: at most " +
                   std::to_string(kCountMax) + " ranks");
  }
  world.assignment.rank = world.node_rank * world.assignment.local_world_size + world.assignment.local_rank;
  world.assignment.world_size = world.assignment.nnodes * world.assignment.local_world_size;

  TRY_ASSIGN(const bool address_known, read_store_address(env, launch, world));
  if (address_known || world.assignment.nnodes == 1) return world;
  // Node 0's agent and rank 0 live in the same pod, so the coordinator's host is the store's.
  const std::string coordinator = launch.coordinator.empty() ? env.text(env::kCoordinator) : launch.coordinator;
  if (coordinator.empty()) {
    return invalid(std::to_string(world.assignment.nnodes) +
                   " nodes, but nothing says where node 0 is: set MASTER_ADDR (or "
                   "--master_addr), or --coordinator HOST:PORT");
  }
  world.master_addr = host_of(coordinator);
  return world;
}

// --- Slurm ---

// "2(x3),1" → 2 for nodes 0-2, 1 for node 3.
std::optional<int> slurm_tasks_on_node(std::string_view text, int node) {
  int64_t first_node = 0;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    int tasks = 0;
    int repeat = 1;
    const char* const last = part.data() + part.size();
    const auto [end, error] = std::from_chars(part.data(), last, tasks);
    if (error != std::errc()) return std::nullopt;
    if (last - end > 3 && end[0] == '(' && end[1] == 'x') {
      if (std::from_chars(end + 2, last, repeat).ec != std::errc()) return std::nullopt;
    }
    first_node += repeat;
    if (node < first_node) return tasks;
  }
  return std::nullopt;
}

// srun's own count of the tasks it started; the allocation's in old versions.
std::string_view slurm_size_name(const Reader& env) {
  return env.first_set({env::kSlurmStepNumTasks, env::kSlurmNtasks});
}

// Inside a batch script Slurm sets SLURM_PROCID=0 and the allocation's SLURM_NTASKS, but no step: srun has started
// nothing yet.
bool is_slurm_batch_script(const Reader& env) {
  return env.has(env::kSlurmJobId) && !env.has(env::kSlurmStepId) && !env.has(env::kSlurmStepNumTasks) &&
         env.text(env::kSlurmProcid) == "0";
}

Status slurm_address(const Reader& env, const LaunchOptions& launch, World& world) {
  TRY_ASSIGN(const bool address_known, read_store_address(env, launch, world));
  if (address_known || world.assignment.nnodes == 1) return {};
  const std::string_view name = env.first_set({env::kSlurmStepNodelist, env::kSlurmJobNodelist, env::kSlurmNodelist});
  if (name.empty()) {
    return invalid("Slurm started " + std::to_string(world.assignment.world_size) + " tasks on " +
                   std::to_string(world.assignment.nnodes) +
                   " nodes, but neither MASTER_ADDR nor SLURM_JOB_NODELIST says where task 0 is: set MASTER_ADDR");
  }
  Result<std::vector<std::string>> hosts = expand_slurm_nodelist(env.text(name), 1);
  if (!hosts.ok()) return hosts.error().with_context(env.setting(name));
  world.master_addr = hosts->front();
  return {};
}

Result<World> slurm_world(const Reader& env, const LaunchOptions& launch) {
  World world;
  world.source = WorldSource::kSlurm;
  const std::string_view size_name = slurm_size_name(env);
  TRY_ASSIGN(const std::optional<int> rank, env.number(env::kSlurmProcid, 0, kCountMax));
  TRY_ASSIGN(const std::optional<int> size, env.number(size_name, 1, kCountMax));
  world.assignment.rank = *rank;
  world.assignment.world_size = *size;
  if (world.assignment.rank >= world.assignment.world_size) {
    return invalid(env.setting(env::kSlurmProcid) + " with " + env.setting(size_name) +
                   ": SLURM_PROCID must be below it");
  }
  if (env.has(env::kWorldSize) && env.text(env::kWorldSize) != env.text(size_name)) {
    return invalid(env.setting(env::kWorldSize) + " contradicts " + env.setting(size_name) +
                   ": unset WORLD_SIZE, or start with srun --ntasks " + env.text(env::kWorldSize));
  }
  const std::string_view nodes_name = env.first_set({env::kSlurmStepNumNodes, env::kSlurmNnodes});
  TRY_ASSIGN(const std::optional<int> nnodes, env.number(nodes_name, 1, kCountMax));
  TRY_ASSIGN(const std::optional<int> node_rank, env.number(env::kSlurmNodeid, 0, kCountMax));
  TRY_ASSIGN(const std::optional<int> local_id, env.number(env::kSlurmLocalid, 0, kCountMax));
  TRY_ASSIGN(const std::optional<int> local_rank, read_local_rank(env, launch));
  world.assignment.nnodes = nnodes.value_or(node_rank.value_or(0) + 1);
  world.node_rank = node_rank.value_or(0);
  world.assignment.local_rank =
      local_id.value_or(local_rank.value_or(world.assignment.nnodes == 1 ? world.assignment.rank : 0));
  const std::string_view tasks_name = env.first_set({env::kSlurmStepTasksPerNode, env::kSlurmTasksPerNode});
  const std::optional<int> tasks = slurm_tasks_on_node(env.text(tasks_name), world.node_rank);
  const int even = (world.assignment.world_size + world.assignment.nnodes - 1) / world.assignment.nnodes;
  world.assignment.local_world_size =
      std::max(std::clamp(tasks.value_or(even), 1, world.assignment.world_size), world.assignment.local_rank + 1);
  TRY(slurm_address(env, launch, world));
  return world;
}

// --- MPI ---

// The variables of one kind of mpirun. Those of a rank's position on its node have several names.
struct MpiNames {
  std::string_view rank;
  std::string_view size;
  std::array<std::string_view, 2> local_rank;
  std::array<std::string_view, 2> local_size;
};
constexpr std::array<MpiNames, 3> kMpiNames = {{
    {env::kOpenMpiRank, env::kOpenMpiSize, {env::kOpenMpiLocalRank}, {env::kOpenMpiLocalSize}},
    {env::kMvapichRank, env::kMvapichSize, {env::kMvapichLocalRank}, {env::kMvapichLocalSize}},
    {env::kPmiRank,
     env::kPmiSize,
     {env::kHydraLocalRank, env::kPmiLocalRank},
     {env::kHydraLocalSize, env::kPmiLocalSize}},
}};

Result<World> mpi_world(const Reader& env, const LaunchOptions& launch, const MpiNames& names) {
  World world;
  world.source = WorldSource::kMpi;
  const std::string_view local_rank_name = env.first_set({names.local_rank[0], names.local_rank[1]});
  const std::string_view local_size_name = env.first_set({names.local_size[0], names.local_size[1]});
  TRY_ASSIGN(const std::optional<int> rank, env.number(names.rank, 0, kCountMax));
  TRY_ASSIGN(const std::optional<int> size, env.number(names.size, 1, kCountMax));
  TRY_ASSIGN(const std::optional<int> local_rank, env.number(local_rank_name, 0, kCountMax));
  TRY_ASSIGN(const std::optional<int> local_size, env.number(local_size_name, 1, kCountMax));
  TRY_ASSIGN(const std::optional<int> given_local_rank, read_local_rank(env, launch));
  world.assignment.rank = *rank;
  world.assignment.world_size = *size;
  world.assignment.local_rank = local_rank.value_or(given_local_rank.value_or(0));
  world.assignment.local_world_size = local_size.value_or(world.assignment.local_rank + 1);
  if (world.assignment.rank >= world.assignment.world_size ||
      world.assignment.local_rank >= world.assignment.local_world_size ||
      world.assignment.local_world_size > world.assignment.world_size) {
    return invalid(env.setting(names.rank) + ", " + env.setting(names.size) + ", local rank " +
                   std::to_string(world.assignment.local_rank) + " of " +
                   std::to_string(world.assignment.local_world_size) + " (" + std::string(names.local_rank[0]) + ", " +
                   std::string(names.local_size[0]) +
                   "): expected a rank below the size, a local rank below the local size, and that not above the size");
  }
  // OMPI_COMM_WORLD_NODE_RANK counts ranks on a node, not nodes; this holds for mpirun's default of filling nodes.
  world.assignment.nnodes =
      (world.assignment.world_size + world.assignment.local_world_size - 1) / world.assignment.local_world_size;
  world.node_rank = std::min(world.assignment.rank / world.assignment.local_world_size, world.assignment.nnodes - 1);
  TRY_ASSIGN(const bool address_known, read_store_address(env, launch, world));
  if (!address_known && world.assignment.nnodes > 1) {
    return invalid(env.setting(names.size) + " ranks were started on several nodes (" +
                   plural(world.assignment.local_world_size, "rank") +
                   " on this one), but MASTER_ADDR is not set: set it to the host of rank 0 for all of them (mpirun -x "
                   "MASTER_ADDR=HOST of Open MPI, -genv MASTER_ADDR HOST of MPICH and Intel MPI), or give "
                   "--master_addr");
  }
  return world;
}

// Which of Slurm and MPI started this process.
struct HpcLauncher {
  std::string_view rank_name;  // empty: neither
  std::string_view size_name;
  const MpiNames* mpi = nullptr;  // null: Slurm

  [[nodiscard]] bool found() const { return !rank_name.empty(); }
};

// mpirun runs inside a Slurm task, never the other way round, so when the variables of both are set and disagree, it
// was mpirun.
Result<HpcLauncher> find_hpc_launcher(const Reader& env) {
  const std::string_view slurm_size = slurm_size_name(env);
  const bool slurm_counts = env.has(env::kSlurmProcid) && !slurm_size.empty();
  const MpiNames* mpi = nullptr;
  for (const MpiNames& names : kMpiNames) {
    const bool has_both = env.has(names.rank) && env.has(names.size);
    if (!has_both && !slurm_counts && (env.has(names.rank) || env.has(names.size))) {
      return invalid(std::string(names.rank) + " and " + std::string(names.size) +
                     " belong together, but only one of them is set");
    }
    if (has_both && mpi == nullptr) mpi = &names;
  }
  // One task is one process, whoever started it: an interactive shell inside an allocation must not look like a rank.
  const bool slurm = slurm_counts && env.text(slurm_size) != "1";
  if (mpi != nullptr &&
      (!slurm || env.text(mpi->size) != env.text(slurm_size) || env.text(mpi->rank) != env.text(env::kSlurmProcid))) {
    return HpcLauncher{mpi->rank, mpi->size, mpi};
  }
  if (slurm) return HpcLauncher{env::kSlurmProcid, slurm_size, nullptr};
  const std::string_view unsized = env.first_set({env::kPmixRank, env::kPalsRank});
  if (slurm_counts || unsized.empty()) return HpcLauncher{};
  return invalid(
      env.setting(unsized) +
      " says which rank this is, but nothing says how many there are (Open MPI sets OMPI_COMM_WORLD_SIZE, "
      "MPICH, Intel MPI and PALS set PMI_SIZE): set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or unset " +
      std::string(unsized) + " to train in one process");
}

Result<World> single_world(const Reader& env, const LaunchOptions& launch, std::optional<int> nnodes) {
  if (env.has(env::kWorldSize) && env.text(env::kWorldSize) != "1") {
    return invalid(env.setting(env::kWorldSize) +
                   " without RANK: nothing says which of them this process is; set RANK, or unset WORLD_SIZE");
  }
  if (nnodes.value_or(1) > 1) {
    if (!launch.node_rank) {
      return invalid("--nnodes " + std::to_string(*nnodes) +
                     ", but nothing says which node this is: give --node_rank "
                     "(0 to " +
                     std::to_string(*nnodes - 1) + ")");
    }
    return node_world(env, launch,
                      {WorldSource::kFlags, *launch.node_rank, "--node_rank " + std::to_string(*launch.node_rank)},
                      nnodes);
  }
  if (launch.node_rank.value_or(0) > 0) {
    return invalid("--node_rank " + std::to_string(*launch.node_rank) +
                   " without --nnodes: give --nnodes, or leave "
                   "--node_rank out");
  }
  World world;
  TRY(read_position_in_node(env, launch, world));
  world.assignment.rank = world.assignment.local_rank;
  world.assignment.world_size = world.assignment.local_world_size;
  TRY(read_store_address(env, launch, world));
  return world;
}

// 1 when a launcher that we do not read says that this node is alone, nothing when none speaks. An error when it
// started several: to be asked only when nobody else says how many there are.
Result<std::optional<int>> announced_nodes(const Environment& environment) {
  const std::optional<AnnouncedNodes> announced = find_announced_nodes(environment);
  if (!announced) return std::optional<int>();
  if (!announced->several) return std::optional<int>(1);
  return invalid(
      announced->given_by +
      " says that several of these were started, but --nnodes is not given, so each would train alone: give " +
      announced->flags + "; --nnodes 1 trains each alone");
}

// --- agents ---

struct NodeCounts {
  int min = 1;
  int max = 1;
  int wanted = 1;
};

Result<NodeCounts> read_node_counts(const Reader& env, const LaunchOptions& launch) {
  TRY_ASSIGN(const std::optional<int> env_min, env.number(env::kMinNodes, 1, kCountMax));
  TRY_ASSIGN(const std::optional<int> env_max, env.number(env::kMaxNodes, 1, kCountMax));
  TRY_ASSIGN(const std::optional<int> env_wanted, env.number(env::kNumNodes, 1, kCountMax));
  NodeCounts counts;
  if (launch.nnodes) {
    counts = {launch.min_nodes.value_or(*launch.nnodes), *launch.nnodes, env_wanted.value_or(*launch.nnodes)};
  } else {
    counts.wanted = env_wanted.value_or(env_max.value_or(env_min.value_or(1)));
    counts.min = env_min.value_or(counts.wanted);
    counts.max = env_max.value_or(std::max(counts.wanted, counts.min));
  }
  if (counts.min <= counts.wanted && counts.wanted <= counts.max) return counts;
  const std::string found =
      launch.nnodes ? "--nnodes with MIN " + std::to_string(counts.min) + " and MAX " + std::to_string(counts.max)
                    : "LOCKSTEP_MIN_NODES " + std::to_string(counts.min) + " and LOCKSTEP_MAX_NODES " +
                          std::to_string(counts.max);
  return invalid(found + " and " + std::string(env::kNumNodes) + " " + std::to_string(counts.wanted) +
                 ": expected the minimum not above the wanted number, and that not above the maximum");
}

// Under srun or mpirun with one task per node.
Result<std::optional<NodePosition>> find_task_position(const Reader& env, const NodeCounts& counts) {
  TRY_ASSIGN(const HpcLauncher launcher, find_hpc_launcher(env));
  const bool is_slurm = launcher.mpi == nullptr;
  if (!launcher.found() || (is_slurm && is_slurm_batch_script(env))) return std::optional<NodePosition>();
  TRY_ASSIGN(const std::optional<int> rank, env.number(launcher.rank_name, 0, kCountMax));
  TRY_ASSIGN(const std::optional<int> size, env.number(launcher.size_name, 1, kCountMax));
  if (*size != counts.max) {
    return invalid(env.setting(launcher.size_name) + " tasks for " + std::to_string(counts.max) +
                   " nodes (--nnodes): start one task on each node");
  }
  return std::optional<NodePosition>(
      NodePosition{is_slurm ? WorldSource::kSlurm : WorldSource::kMpi, *rank, env.setting(launcher.rank_name)});
}

Result<int> find_node_rank(const Reader& env, const std::string& host_name, const LaunchOptions& launch,
                           const NodeCounts& counts) {
  TRY_ASSIGN(std::optional<NodePosition> position, find_node_position(env, host_name, launch, counts.max));
  if (!position && launch.node_rank) {
    position = NodePosition{WorldSource::kFlags, *launch.node_rank, "--node_rank " + std::to_string(*launch.node_rank)};
  }
  if (!position) {
    TRY_ASSIGN(position, find_task_position(env, counts));
  }
  if (!position && counts.max == 1) return 0;
  if (!position) {
    return invalid(std::to_string(counts.max) + " nodes (--nnodes or " + std::string(env::kNumNodes) +
                   "), but nothing says which of them this is: give --node_rank (0 to " +
                   std::to_string(counts.max - 1) + "), or set " + std::string(env::kNodeRank));
  }
  if (position->node_rank < counts.max) return position->node_rank;
  return invalid(position->given_by + " with " + plural(counts.max, "node") + " (--nnodes or " +
                 std::string(env::kNumNodes) + "): nodes are counted from 0");
}

// "host:29400", "host", "[fd00::1]:29400".
Status read_coordinator(const std::string& text, const std::string& given_by, AgentPosition& position) {
  const size_t colon = text.rfind(':');
  const bool has_port = colon != std::string::npos && text.find(']', colon) == std::string::npos &&
                        (text.find(':') == colon || text.front() == '[');
  position.coordinator_host = has_port ? host_of(text) : host_of(text + ":");
  if (position.coordinator_host.empty()) return invalid(given_by + " is \"" + text + "\", expected HOST:PORT");
  if (!has_port) return {};
  const std::optional<int64_t> port = parse_number(std::string_view(text).substr(colon + 1));
  if (!port || *port < 1 || *port > 65535) {
    return invalid(given_by + " is \"" + text + "\", expected HOST:PORT with a port from 1 to 65535");
  }
  position.coordinator_port = static_cast<int>(*port);
  return {};
}

Status find_coordinator(const Reader& env, const LaunchOptions& launch, AgentPosition& position) {
  if (!launch.coordinator.empty()) return read_coordinator(launch.coordinator, "--coordinator", position);
  if (env.has(env::kCoordinator)) {
    return read_coordinator(env.text(env::kCoordinator), std::string(env::kCoordinator), position);
  }
  const std::string_view list = env.first_set({env::kSlurmStepNodelist, env::kSlurmJobNodelist, env::kSlurmNodelist});
  if (position.node_rank == 0) return {};  // it is the coordinator
  if (!list.empty() && env.has(env::kSlurmProcid)) {
    Result<std::vector<std::string>> hosts = expand_slurm_nodelist(env.text(list), 1);
    if (!hosts.ok()) return hosts.error().with_context(env.setting(list));
    position.coordinator_host = hosts->front();
    return {};
  }
  return invalid("node " + std::to_string(position.node_rank) + " of " + std::to_string(position.max_nodes) +
                 ", but nothing says where node 0 is: give --coordinator HOST:PORT, or set " +
                 std::string(env::kCoordinator));
}

}  // namespace

const char* to_string(WorldSource source) {
  constexpr std::array kNames{"agent", "torchrun", "pod",   "indexed job", "stateful set",
                              "slurm", "mpi",      "flags", "single"};
  static_assert(kNames.size() == static_cast<size_t>(WorldSource::kSingle) + 1);
  return kNames.at(static_cast<size_t>(source));
}

Result<World> derive_world(const Environment& environment, const std::string& host_name, const LaunchOptions& launch) {
  const Reader env(environment);
  TRY(check_pair(env));
  TRY(read_local_rank(env, launch));
  TRY(check_ddp(env, launch));
  if (env.has(env::kRank)) return torchrun_world(env, launch);

  TRY_ASSIGN(std::optional<int> nnodes, read_nnodes(env, launch));
  TRY_ASSIGN(const std::optional<NodePosition> position, find_node_position(env, host_name, launch, nnodes));
  if (position && !nnodes) {
    TRY_ASSIGN(nnodes, announced_nodes(environment));
  }
  if (position) return node_world(env, launch, *position, nnodes);

  TRY_ASSIGN(const HpcLauncher launcher, find_hpc_launcher(env));
  if (launcher.mpi != nullptr) return mpi_world(env, launch, *launcher.mpi);
  if (launcher.found()) {
    if (is_slurm_batch_script(env)) {
      return invalid(env.setting(launcher.size_name) +
                     ", but this is the batch script and not a task of srun: start with `srun lockstep-worker …`, or "
                     "with `lockstep run`, or unset SLURM_PROCID to train in one process");
    }
    return slurm_world(env, launch);
  }
  if (!nnodes) {
    TRY_ASSIGN(nnodes, announced_nodes(environment));
  }
  return single_world(env, launch, nnodes);
}

Status check_agent_environment(const Environment& environment, const LaunchOptions& launch, bool starts_program) {
  const Reader env(environment);
  TRY(check_pair(env));
  TRY(read_local_rank(env, launch));
  TRY(check_ddp(env, launch));
  TRY(check_gloo_interface(env));
  const std::string run_once_per_node =
      starts_program ? "`lockstep launch` starts the ranks itself: start it once per node, and give --nnodes (srun "
                       "--ntasks-per-node=1 lockstep launch --nnodes N --nproc M …; on one node without the launcher)"
                     : "`lockstep run` starts the ranks itself, once per node: put `lockstep-worker` in its place "
                       "under a launcher";
  const bool has_address = env.has(env::kMasterAddr) && env.has(env::kMasterPort);
  const bool several_ranks = env.text(env::kWorldSize) != "1" && !launch.nnodes;
  if (env.has(env::kRank) && (has_address || several_ranks)) {
    return invalid(std::string(has_address ? "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT" : "RANK and WORLD_SIZE") +
                   " are set, as torchrun does for the ranks that it starts; " + run_once_per_node + ", or unset RANK");
  }
  // With --nnodes above 1 the launcher has started one agent per node, as intended.
  if (launch.nnodes.value_or(1) > 1) return {};
  TRY_ASSIGN(const HpcLauncher launcher, find_hpc_launcher(env));
  if (launcher.found() && env.text(launcher.size_name) != "1" &&
      (launcher.mpi != nullptr || !is_slurm_batch_script(env))) {
    return invalid(env.setting(launcher.size_name) + " says that several of these were started; " + run_once_per_node);
  }
  const bool knows_nodes = launch.nnodes || launch.local_nodes || env.has(env::kNumNodes) || env.has(env::kMaxNodes);
  if (knows_nodes) return {};
  TRY_ASSIGN(const std::optional<int> announced, announced_nodes(environment));
  if (announced || !env.has(env::kJobCompletionIndex)) return {};
  return number_of_nodes_unknown(env.setting(env::kJobCompletionIndex));
}

Result<AgentPosition> derive_agent_position(const Environment& environment, const std::string& host_name,
                                            const LaunchOptions& launch) {
  const Reader env(environment);
  TRY_ASSIGN(const NodeCounts counts, read_node_counts(env, launch));
  AgentPosition position{.min_nodes = counts.min, .max_nodes = counts.max, .wanted_nodes = counts.wanted};
  TRY_ASSIGN(position.node_rank, find_node_rank(env, host_name, launch, counts));
  if (position.distributed()) TRY(find_coordinator(env, launch, position));
  return position;
}

Result<std::vector<std::string>> expand_slurm_nodelist(std::string_view text, size_t limit) {
  std::vector<std::string> hosts;
  size_t at = 0;
  while (at < text.size() && hosts.size() < limit) {
    const size_t stop = std::min(text.find_first_of(",[", at), text.size());
    const std::string prefix(text.substr(at, stop - at));
    if (stop == text.size() || text[stop] == ',') {
      if (!prefix.empty()) hosts.push_back(prefix);
      at = stop + 1;
      continue;
    }
    const size_t close = text.find(']', stop);
    if (close == std::string_view::npos) return invalid("'[' without ']' in the node list");
    const size_t end = std::min(text.find(',', close), text.size());
    const std::string suffix(text.substr(close + 1, end - close - 1));
    if (suffix.find('[') != std::string::npos)
      return invalid("a node list with two brackets in one name: set MASTER_ADDR");
    std::string_view ranges = text.substr(stop + 1, close - stop - 1);
    while (!ranges.empty() && hosts.size() < limit) {
      const std::string_view range = ranges.substr(0, ranges.find(','));
      ranges.remove_prefix(std::min(ranges.size(), range.size() + 1));
      const std::string_view first = range.substr(0, range.find('-'));
      const std::string_view last = first.size() == range.size() ? first : range.substr(first.size() + 1);
      const std::optional<int64_t> low = parse_number(first);
      const std::optional<int64_t> high = parse_number(last);
      if (!low || !high || *high < *low || last.size() > 18) {
        return invalid("'" + std::string(range) + "' in a node list: expected a number or FIRST-LAST");
      }
      // Slurm keeps the width: [08-10] is 08, 09, 10.
      for (int64_t number = *low; number <= *high && hosts.size() < limit; ++number) {
        std::string digits = std::to_string(number);
        if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
        hosts.push_back(prefix + digits + suffix);
      }
    }
    at = end + 1;
  }
  if (hosts.empty()) return invalid("the node list names no host");
  return hosts;
}

}  // namespace lockstep
