#include "runner/launch/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LaunchOptions nodes(int nnodes) {
  LaunchOptions launch;
  launch.nnodes = nnodes;
  return launch;
}

World derive(const Environment& environment, const LaunchOptions& launch = {}, const std::string& host = "laptop") {
  Result<World> world = derive_world(environment, host, launch);
  EXPECT_TRUE(world.ok()) << world.error().message;
  return world.ok() ? *world : World{};
}

// The message of the expected error.
std::string refused(const Environment& environment, const LaunchOptions& launch = {},
                    const std::string& host = "laptop") {
  const Result<World> world = derive_world(environment, host, launch);
  EXPECT_FALSE(world.ok()) << "gave rank " << (world.ok() ? world->assignment.rank : -1);
  if (world.ok()) return "";
  EXPECT_EQ(world.error().code, ErrorCode::kInvalid);
  return world.error().message;
}

Environment torchrun_environment() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"GROUP_RANK", "1"},
          {"GROUP_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "host0"},
          {"MASTER_PORT", "29501"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RESTART_COUNT", "2"}};
}

TEST(World, is_one_process_in_an_empty_environment) {
  const World world = derive({});
  EXPECT_EQ(world.source, WorldSource::kSingle);
  EXPECT_EQ(world.assignment.world_size, 1);
  EXPECT_EQ(world.assignment.rank, 0);
  EXPECT_FALSE(world.distributed());
}

TEST(World, with_ddp_and_nobody_who_says_how_many_ranks_there_are_is_refused) {
  LaunchOptions ddp;
  ddp.ddp = true;
  const std::string message = refused({}, ddp);
  EXPECT_THAT(message, HasSubstr("RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"));
  EXPECT_THAT(message, HasSubstr("--nproc N"));
  EXPECT_THAT(refused({{"MASTER_ADDR", "host0"}}, ddp), HasSubstr("RANK, LOCAL_RANK, WORLD_SIZE, MASTER_PORT (which"));
  EXPECT_FALSE(check_agent_environment({}, ddp).ok());
  EXPECT_EQ(derive(torchrun_environment(), ddp).assignment.rank, 3);
  EXPECT_TRUE(check_agent_environment({{"LOCKSTEP_NODE_RANK", "0"}, {"LOCKSTEP_NUM_NODES", "2"}}, ddp).ok());
  ddp.nproc = 2;
  EXPECT_TRUE(check_agent_environment({}, ddp).ok());
}

TEST(World, takes_everything_from_torchrun) {
  const World world = derive(torchrun_environment());
  EXPECT_EQ(world.source, WorldSource::kTorchrun);
  EXPECT_EQ(world.assignment.rank, 3);
  EXPECT_EQ(world.assignment.world_size, 4);
  EXPECT_EQ(world.assignment.local_rank, 1);
  EXPECT_EQ(world.assignment.local_world_size, 2);
  EXPECT_EQ(world.node_rank, 1);
  EXPECT_EQ(world.assignment.nnodes, 2);
  EXPECT_EQ(world.master_addr, "host0");
  EXPECT_EQ(world.master_port, 29501);
  EXPECT_EQ(world.assignment.generation, 2U);
  EXPECT_TRUE(world.store_is_served_by_launcher);
}

TEST(World, defaults_the_local_rank_to_zero_when_nobody_says_it) {
  const World world =
      derive({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "job-0.job"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(world.assignment.rank, 1);
  EXPECT_EQ(world.assignment.local_rank, 0);
  EXPECT_EQ(world.assignment.local_world_size, 1);
  EXPECT_EQ(world.node_rank, 1);
  EXPECT_EQ(world.assignment.nnodes, 2);
  EXPECT_FALSE(world.store_is_served_by_launcher);
}

TEST(World, takes_the_local_rank_from_the_flag_of_old_launchers) {
  Environment environment = torchrun_environment();
  environment.erase("LOCAL_RANK");
  LaunchOptions launch;
  launch.local_rank = 1;
  EXPECT_EQ(derive(environment, launch).assignment.local_rank, 1);
  launch.local_rank = 0;
  EXPECT_THAT(refused(torchrun_environment(), launch), AllOf(HasSubstr("--local_rank 0"), HasSubstr("LOCAL_RANK=1")));
}

TEST(World, lets_master_port_win_and_then_serves_the_store_itself) {
  LaunchOptions launch;
  launch.master_port = 29777;
  const World world = derive(torchrun_environment(), launch);
  EXPECT_EQ(world.master_port, 29777);
  EXPECT_FALSE(world.store_is_served_by_launcher);
  launch.master_port = 29501;
  EXPECT_TRUE(derive(torchrun_environment(), launch).store_is_served_by_launcher);
}

TEST(World, takes_master_addr_and_master_port_alone_as_the_store_s_address_only) {
  const World world = derive({{"MASTER_PORT", "29555"}});
  EXPECT_EQ(world.source, WorldSource::kSingle);
  EXPECT_EQ(world.assignment.world_size, 1);
  EXPECT_EQ(world.master_port, 29555);
  EXPECT_EQ(derive({{"MASTER_ADDR", "elsewhere"}}).master_addr, "elsewhere");
}

TEST(World, treats_empty_variables_as_unset) {
  const World world = derive({{"RANK", ""}, {"WORLD_SIZE", ""}, {"MASTER_PORT", ""}, {"SLURM_PROCID", ""}});
  EXPECT_EQ(world.source, WorldSource::kSingle);
}

struct Contradiction {
  const char* name;
  Environment environment;
  std::vector<std::string> says;
};
class Contradictions : public ::testing::TestWithParam<Contradiction> {};

TEST_P(Contradictions, are_refused_naming_the_variables) {
  const std::string message = refused(GetParam().environment);
  for (const std::string& part : GetParam().says) EXPECT_THAT(message, HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(
    World, Contradictions,
    ::testing::Values(
        Contradiction{"rank_without_world_size", {{"RANK", "0"}}, {"RANK=0", "WORLD_SIZE"}},
        Contradiction{"world_size_without_rank", {{"WORLD_SIZE", "4"}}, {"WORLD_SIZE=4", "RANK"}},
        Contradiction{"rank_equal_to_world_size",
                      {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}},
                      {"RANK=2", "WORLD_SIZE=2"}},
        Contradiction{"negative_rank", {{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, {"RANK=-1", "whole number"}},
        Contradiction{"rank_that_is_no_number", {{"RANK", "one"}, {"WORLD_SIZE", "2"}}, {"RANK=one"}},
        Contradiction{"world_size_zero", {{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE=0"}},
        Contradiction{"port_that_is_no_number", {{"MASTER_PORT", "http"}}, {"MASTER_PORT=http", "65535"}},
        Contradiction{"port_too_large", {{"MASTER_PORT", "65536"}}, {"MASTER_PORT=65536"}},
        Contradiction{"no_master_addr", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}, {"MASTER_ADDR"}},
        Contradiction{"no_master_port", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}, {"MASTER_PORT"}},
        Contradiction{"local_rank_beyond_local_world_size",
                      {{"RANK", "0"},
                       {"WORLD_SIZE", "4"},
                       {"MASTER_ADDR", "a"},
                       {"MASTER_PORT", "1"},
                       {"LOCAL_RANK", "2"},
                       {"LOCAL_WORLD_SIZE", "2"}},
                      {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}},
        Contradiction{"local_rank_of_nobody", {{"LOCAL_RANK", "1"}}, {"LOCAL_RANK", "WORLD_SIZE"}},
        Contradiction{"node_rank_beyond_the_nodes",
                      {{"LOCKSTEP_NODE_RANK", "2"}, {"LOCKSTEP_NUM_NODES", "2"}},
                      {"LOCKSTEP_NODE_RANK=2", "2 nodes"}},
        Contradiction{"several_ranks_in_a_pod_without_local_rank",
                      {{"LOCKSTEP_NODE_RANK", "0"}, {"LOCKSTEP_NUM_NODES", "1"}, {"LOCKSTEP_NPROC_PER_NODE", "2"}},
                      {"LOCKSTEP_NPROC_PER_NODE=2", "LOCAL_RANK", "lockstep run"}},
        Contradiction{"several_nodes_and_no_address",
                      {{"LOCKSTEP_NODE_RANK", "0"}, {"LOCKSTEP_NUM_NODES", "2"}},
                      {"MASTER_ADDR", "--coordinator"}},
        Contradiction{"an_index_without_the_number_of_nodes",
                      {{"JOB_COMPLETION_INDEX", "1"}},
                      {"JOB_COMPLETION_INDEX=1", "--nnodes", "LOCKSTEP_NUM_NODES"}},
        Contradiction{"slurm_rank_beyond_the_tasks",
                      {{"SLURM_PROCID", "4"}, {"SLURM_NTASKS", "4"}},
                      {"SLURM_PROCID=4", "SLURM_NTASKS=4"}},
        Contradiction{"slurm_against_world_size",
                      {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"WORLD_SIZE", "8"}},
                      {"WORLD_SIZE=8", "SLURM_NTASKS=4"}},
        Contradiction{"slurm_nodes_without_a_list",
                      {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_NNODES", "2"}},
                      {"MASTER_ADDR"}},
        Contradiction{"slurm_batch_script",
                      {{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
                      {"SLURM_NTASKS=4", "srun"}},
        Contradiction{"mpi_rank_without_size", {{"OMPI_COMM_WORLD_RANK", "0"}}, {"OMPI_COMM_WORLD_SIZE"}},
        Contradiction{"mpich_size_without_rank", {{"PMI_SIZE", "2"}}, {"PMI_RANK"}},
        Contradiction{"pmix_rank_alone", {{"PMIX_RANK", "1"}}, {"PMIX_RANK=1", "how many", "WORLD_SIZE"}},
        Contradiction{"pals_rank_alone", {{"PALS_RANKID", "1"}}, {"PALS_RANKID=1", "PMI_SIZE"}},
        Contradiction{"mpi_rank_beyond_size",
                      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
                      {"RANK=2", "SIZE=2"}}),
    [](const auto& info) { return info.param.name; });

TEST(World, of_a_pod_counts_ranks_by_node_and_takes_the_store_s_host_from_the_coordinator) {
  const World world = derive({{"LOCKSTEP_NODE_RANK", "1"},
                              {"LOCKSTEP_NUM_NODES", "3"},
                              {"LOCKSTEP_NPROC_PER_NODE", "2"},
                              {"LOCAL_RANK", "1"},
                              {"LOCKSTEP_COORDINATOR", "job-0.job.ns.svc:29400"}});
  EXPECT_EQ(world.source, WorldSource::kPod);
  EXPECT_EQ(world.assignment.rank, 3);
  EXPECT_EQ(world.assignment.world_size, 6);
  EXPECT_EQ(world.assignment.local_rank, 1);
  EXPECT_EQ(world.node_rank, 1);
  EXPECT_EQ(world.assignment.nnodes, 3);
  EXPECT_EQ(world.master_addr, "job-0.job.ns.svc");
  EXPECT_EQ(world.master_port, 29500);
}

TEST(World, prefers_torchrun_inside_a_pod) {
  Environment environment = torchrun_environment();
  environment["LOCKSTEP_NODE_RANK"] = "0";
  environment["LOCKSTEP_NUM_NODES"] = "2";
  environment["JOB_COMPLETION_INDEX"] = "0";
  EXPECT_EQ(derive(environment).source, WorldSource::kTorchrun);
}

TEST(World, of_an_indexed_job_takes_the_rest_from_the_flags) {
  LaunchOptions launch = nodes(4);
  launch.coordinator = "[fd00::1]:29400";
  const World world = derive({{"JOB_COMPLETION_INDEX", "2"}}, launch);
  EXPECT_EQ(world.source, WorldSource::kIndexedJob);
  EXPECT_EQ(world.assignment.rank, 2);
  EXPECT_EQ(world.assignment.world_size, 4);
  EXPECT_EQ(world.master_addr, "fd00::1");
}

TEST(World, of_an_indexed_job_with_one_node_each_is_single) {
  EXPECT_EQ(derive({{"JOB_COMPLETION_INDEX", "2"}}, nodes(1)).source, WorldSource::kSingle);
}

TEST(World, takes_the_ordinal_of_the_host_name_only_in_kubernetes_with_several_nodes) {
  LaunchOptions launch = nodes(3);
  launch.master_addr = "web-0.web";
  const Environment kubernetes = {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}};
  const World world = derive(kubernetes, launch, "web-2");
  EXPECT_EQ(world.source, WorldSource::kStatefulSet);
  EXPECT_EQ(world.assignment.rank, 2);
  EXPECT_EQ(derive(kubernetes, {}, "web-2").source, WorldSource::kSingle);
  EXPECT_EQ(derive(kubernetes, nodes(1), "web-2").source, WorldSource::kSingle);
  EXPECT_THAT(refused({}, launch, "web-2"), HasSubstr("--node_rank"));
  EXPECT_THAT(refused(kubernetes, launch, "web-7d9f-x2x"), HasSubstr("--node_rank"));
  EXPECT_THAT(refused(kubernetes, launch, "web-3"), AllOf(HasSubstr("web-3"), HasSubstr("3 nodes")));
}

TEST(World, takes_node_rank_from_the_flag_when_no_launcher_says_it) {
  LaunchOptions launch = nodes(2);
  launch.node_rank = 1;
  launch.master_addr = "first";
  const World world = derive({}, launch);
  EXPECT_EQ(world.source, WorldSource::kFlags);
  EXPECT_EQ(world.assignment.rank, 1);
  EXPECT_EQ(world.master_addr, "first");
  EXPECT_THAT(refused({{"LOCKSTEP_NODE_RANK", "0"}, {"LOCKSTEP_NUM_NODES", "2"}}, launch),
              AllOf(HasSubstr("--node_rank 1"), HasSubstr("LOCKSTEP_NODE_RANK=0")));
  EXPECT_THAT(refused({{"LOCKSTEP_NUM_NODES", "3"}}, launch), HasSubstr("LOCKSTEP_NUM_NODES=3"));
}

TEST(World, refuses_several_local_ranks_that_nobody_starts) {
  LaunchOptions launch;
  launch.nproc = 2;
  EXPECT_THAT(refused({}, launch), AllOf(HasSubstr("--nproc 2"), HasSubstr("lockstep run")));
}

Environment slurm_environment() {
  return {{"SLURM_JOB_ID", "99"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NUM_TASKS", "5"},
          {"SLURM_NTASKS", "5"},
          {"SLURM_PROCID", "4"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "2"},
          {"SLURM_NNODES", "3"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
          {"SLURM_JOB_NODELIST", "node[08-10]"}};
}

TEST(World, of_slurm_takes_rank_node_and_the_first_host) {
  const World world = derive(slurm_environment());
  EXPECT_EQ(world.source, WorldSource::kSlurm);
  EXPECT_EQ(world.assignment.rank, 4);
  EXPECT_EQ(world.assignment.world_size, 5);
  EXPECT_EQ(world.assignment.local_rank, 0);
  EXPECT_EQ(world.assignment.local_world_size, 1);
  EXPECT_EQ(world.node_rank, 2);
  EXPECT_EQ(world.assignment.nnodes, 3);
  EXPECT_EQ(world.master_addr, "node08");
}

TEST(World, of_slurm_prefers_master_addr_and_accepts_an_agreeing_world_size) {
  Environment environment = slurm_environment();
  environment["MASTER_ADDR"] = "chosen";
  environment["WORLD_SIZE"] = "5";
  EXPECT_EQ(derive(environment).master_addr, "chosen");
}

TEST(World, of_slurm_on_one_node_needs_nothing_but_rank_and_size) {
  const World world = derive({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}});
  EXPECT_EQ(world.source, WorldSource::kSlurm);
  EXPECT_EQ(world.assignment.local_rank, 1);
  EXPECT_EQ(world.assignment.local_world_size, 2);
  EXPECT_EQ(world.master_addr, "127.0.0.1");
}

TEST(World, of_an_interactive_slurm_shell_is_single) {
  EXPECT_EQ(derive({{"SLURM_JOB_ID", "1"},
                    {"SLURM_STEP_ID", "4294967290"},
                    {"SLURM_STEP_NUM_TASKS", "1"},
                    {"SLURM_NTASKS", "8"},
                    {"SLURM_PROCID", "0"}})
                .source,
            WorldSource::kSingle);
  EXPECT_EQ(derive({{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "8"}}).source, WorldSource::kSingle);
  EXPECT_EQ(derive({{"SLURM_JOB_ID", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}).source, WorldSource::kSingle);
}

TEST(World, of_mpirun_takes_its_ranks) {
  Environment environment = {{"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const World world = derive(environment);
  EXPECT_EQ(world.source, WorldSource::kMpi);
  EXPECT_EQ(world.assignment.rank, 1);
  EXPECT_EQ(world.assignment.local_rank, 1);
  EXPECT_EQ(world.assignment.nnodes, 1);
  environment["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  environment["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_THAT(refused(environment), HasSubstr("MASTER_ADDR"));
  environment["MASTER_ADDR"] = "first";
  EXPECT_EQ(derive(environment).node_rank, 1);
}

TEST(World, of_mpirun_inside_a_slurm_step_is_mpirun_s) {
  Environment environment = slurm_environment();
  environment["OMPI_COMM_WORLD_RANK"] = "7";
  environment["OMPI_COMM_WORLD_SIZE"] = "8";
  environment["OMPI_COMM_WORLD_LOCAL_RANK"] = "7";
  environment["OMPI_COMM_WORLD_LOCAL_SIZE"] = "8";
  const World world = derive(environment);
  EXPECT_EQ(world.source, WorldSource::kMpi);
  EXPECT_EQ(world.assignment.rank, 7);
}

TEST(World, of_mpich_and_intel_mpi_takes_its_ranks) {
  Environment environment = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  const World world = derive(environment);
  EXPECT_EQ(world.source, WorldSource::kMpi);
  EXPECT_EQ(world.assignment.rank, 1);
  EXPECT_EQ(world.assignment.world_size, 2);
  EXPECT_EQ(world.assignment.local_rank, 1);
  EXPECT_EQ(world.assignment.local_world_size, 2);
  EXPECT_EQ(world.assignment.nnodes, 1);
  environment["MPI_LOCALRANKID"] = "0";
  environment["MPI_LOCALNRANKS"] = "1";
  EXPECT_THAT(refused(environment), AllOf(HasSubstr("PMI_SIZE=2"), HasSubstr("MASTER_ADDR"), HasSubstr("-genv")));
}

TEST(World, of_pals_takes_the_local_rank_from_pmi_s_own_variables) {
  const World world = derive({{"PMI_RANK", "5"},
                              {"PMI_SIZE", "8"},
                              {"PMI_LOCAL_RANK", "1"},
                              {"PMI_LOCAL_SIZE", "4"},
                              {"PALS_RANKID", "5"},
                              {"MASTER_ADDR", "first"}});
  EXPECT_EQ(world.assignment.rank, 5);
  EXPECT_EQ(world.assignment.local_rank, 1);
  EXPECT_EQ(world.node_rank, 1);
  EXPECT_EQ(world.assignment.nnodes, 2);
}

TEST(World, of_mvapich_takes_its_ranks) {
  const World world = derive({{"MV2_COMM_WORLD_RANK", "1"},
                              {"MV2_COMM_WORLD_SIZE", "2"},
                              {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                              {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(world.assignment.rank, 1);
  EXPECT_EQ(world.assignment.local_world_size, 2);
}

TEST(World, of_slurm_with_pmi_is_slurm_s) {
  Environment environment = slurm_environment();
  environment["PMI_RANK"] = "4";
  environment["PMI_SIZE"] = "5";
  environment["PMIX_RANK"] = "4";
  EXPECT_EQ(derive(environment).source, WorldSource::kSlurm);
  // One task of srun with PMIx, and Cray's Slurm, which sets no PMI_SIZE.
  EXPECT_FALSE(derive({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"PMIX_RANK", "0"}}).distributed());
  EXPECT_FALSE(derive({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"PMI_RANK", "0"}}).distributed());
}

TEST(World, of_one_mpi_rank_is_one_process) {
  EXPECT_FALSE(derive({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).distributed());
  EXPECT_TRUE(check_agent_environment({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}, {}).ok());
}

// srun or mpirun has started several of these on one machine.
TEST(World, of_several_agents_without_a_number_of_nodes_is_refused_with_what_to_type) {
  for (const Environment& environment :
       {Environment{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}},
        {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
        {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}}}) {
    const Status run = check_agent_environment(environment, {});
    ASSERT_FALSE(run.ok());
    EXPECT_THAT(run.error().message, HasSubstr("`lockstep run` starts the ranks itself"));
    EXPECT_THAT(run.error().message, HasSubstr("lockstep-worker"));
    const Status program = check_agent_environment(environment, {}, /*starts_program=*/true);
    ASSERT_FALSE(program.ok());
    EXPECT_THAT(program.error().message, HasSubstr("--ntasks-per-node=1 lockstep launch --nnodes N"));
    EXPECT_THAT(program.error().message, testing::Not(HasSubstr("lockstep-worker")));
  }
}

struct Announcement {
  const char* name;
  Environment environment;  // of one of several
  std::vector<std::string> says;
};
class Announcements : public ::testing::TestWithParam<Announcement> {};

// By worker and agent; each would train alone.
TEST_P(Announcements, of_launchers_that_are_not_read_are_refused_with_the_flags) {
  const Status agent = check_agent_environment(GetParam().environment, {});
  ASSERT_FALSE(agent.ok());
  for (const std::string& message : {refused(GetParam().environment), agent.error().message}) {
    for (const std::string& part : GetParam().says) EXPECT_THAT(message, HasSubstr(part));
  }
  EXPECT_TRUE(check_agent_environment(GetParam().environment, nodes(2)).ok());
}

// As each sets them for the second of two.
INSTANTIATE_TEST_SUITE_P(
    World, Announcements,
    ::testing::Values(
        Announcement{"kubeflow_trainer",
                     {{"PET_NNODES", "2"},
                      {"PET_NPROC_PER_NODE", "1"},
                      {"PET_NODE_RANK", "1"},
                      {"PET_MASTER_ADDR", "x-node-0-0.x"},
                      {"PET_MASTER_PORT", "29400"},
                      {"JOB_COMPLETION_INDEX", "1"},
                      {"KUBERNETES_SERVICE_HOST", "10.0.0.1"}},
                     {"PET_NNODES=2 (Kubeflow Trainer)",
                      "--nnodes 2 --node_rank $PET_NODE_RANK --coordinator $PET_MASTER_ADDR:29400",
                      "--nnodes 1 trains each alone"}},
        Announcement{"elastic_torchrun", {{"PET_NNODES", "1:4"}}, {"PET_NNODES=1:4", "--nnodes 1:4"}},
        Announcement{"leader_worker_set",
                     {{"LWS_LEADER_ADDRESS", "lws-0.lws.default"}, {"LWS_GROUP_SIZE", "2"}, {"LWS_WORKER_INDEX", "1"}},
                     {"LWS_GROUP_SIZE=2 (LeaderWorkerSet)", "--coordinator $LWS_LEADER_ADDRESS:29400"}},
        Announcement{"sky_pilot",
                     {{"SKYPILOT_NODE_RANK", "1"}, {"SKYPILOT_NUM_NODES", "2"}},
                     {"SKYPILOT_NUM_NODES=2 (SkyPilot)", "--node_rank $SKYPILOT_NODE_RANK"}},
        Announcement{"volcano",
                     {{"VC_TASK_INDEX", "0"}, {"VC_MASTER_NUM", "1"}, {"VC_WORKER_NUM", "1"}},
                     {"VC_MASTER_NUM=1, VC_WORKER_NUM=1 (Volcano)", "--nnodes 2"}},
        Announcement{"nnodes", {{"NODE_RANK", "1"}, {"NNODES", "2"}}, {"NNODES=2", "--node_rank $NODE_RANK"}},
        Announcement{"an_indexed_job", {{"JOB_COMPLETION_INDEX", "1"}}, {"JOB_COMPLETION_INDEX=1", "--nnodes"}}),
    [](const auto& info) { return info.param.name; });

TEST(World, with_one_announced_node_is_alone) {
  for (const Environment& environment :
       {Environment{{"PET_NNODES", "1"}, {"JOB_COMPLETION_INDEX", "0"}}, Environment{{"LWS_GROUP_SIZE", "1"}},
        Environment{{"SKYPILOT_NUM_NODES", "1"}}, Environment{{"VC_TASK_INDEX", "0"}, {"VC_TRAIN_NUM", "1"}},
        Environment{{"NNODES", "1"}}}) {
    EXPECT_FALSE(derive(environment).distributed());
    EXPECT_TRUE(check_agent_environment(environment, {}).ok());
  }
}

TEST(World, of_a_trainjob_s_pod_ignores_what_other_launchers_announce) {
  const Environment pod = {{"LOCKSTEP_NODE_RANK", "1"}, {"LOCKSTEP_NUM_NODES", "2"},
                           {"PET_NNODES", "4"},         {"NNODES", "4"},
                           {"MASTER_ADDR", "job-0"},    {"PMIX_RANK", "7"}};
  EXPECT_EQ(derive(pod).source, WorldSource::kPod);
}

TEST(AgentEnvironment, is_fine_where_nobody_started_ranks) {
  EXPECT_TRUE(check_agent_environment({}, {}).ok());
  EXPECT_TRUE(check_agent_environment({{"MASTER_PORT", "29501"}}, {}).ok());
  EXPECT_TRUE(check_agent_environment({{"LOCKSTEP_NODE_RANK", "0"}, {"LOCKSTEP_NUM_NODES", "2"}}, {}).ok());
  // A batch script, and one task of srun.
  EXPECT_TRUE(check_agent_environment({{"SLURM_JOB_ID", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}, {}).ok());
  EXPECT_TRUE(check_agent_environment({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}, {}).ok());
  // One agent per node.
  EXPECT_TRUE(check_agent_environment(slurm_environment(), nodes(5)).ok());
}

TEST(AgentEnvironment, names_lockstep_worker_where_a_launcher_started_the_ranks) {
  for (const Environment& environment :
       {torchrun_environment(), slurm_environment(),
        Environment{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
        Environment{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, Environment{{"RANK", "1"}, {"WORLD_SIZE", "2"}},
        // mpirun in a batch script of Slurm
        Environment{{"SLURM_JOB_ID", "1"},
                    {"SLURM_PROCID", "0"},
                    {"SLURM_NTASKS", "8"},
                    {"OMPI_COMM_WORLD_RANK", "1"},
                    {"OMPI_COMM_WORLD_SIZE", "8"}}}) {
    const Status status = check_agent_environment(environment, {});
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalid);
    EXPECT_THAT(status.error().message, HasSubstr("lockstep-worker"));
  }
}

TEST(AgentEnvironment, refuses_the_same_contradictions_as_the_worker) {
  EXPECT_FALSE(check_agent_environment({{"RANK", "0"}}, {}).ok());
  EXPECT_FALSE(check_agent_environment({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {}).ok());
}

TEST(AgentEnvironment, takes_no_notice_of_a_port_that_only_workers_without_an_agent_use) {
  // Of a Service named "master" in the pod's namespace Kubernetes makes this variable.
  EXPECT_TRUE(check_agent_environment({{"MASTER_PORT", "tcp://10.96.0.12:6379"}}, {}).ok());
}

TEST(AgentEnvironment, refuses_the_names_of_interfaces_that_only_nccl_understands) {
  for (const char* names : {"^lo,docker", "=eth0"}) {
    const Status status = check_agent_environment({{"GLOO_SOCKET_IFNAME", names}}, {});
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message, HasSubstr(std::string("GLOO_SOCKET_IFNAME=") + names));
    EXPECT_THAT(status.error().message, HasSubstr("NCCL_SOCKET_IFNAME"));
  }
  EXPECT_TRUE(check_agent_environment({{"GLOO_SOCKET_IFNAME", "lo"}}, {}).ok());
}

TEST(SlurmNodelist, expands_ranges_lists_and_padding) {
  const auto hosts = [](std::string_view text, size_t limit = 100) {
    Result<std::vector<std::string>> expanded = expand_slurm_nodelist(text, limit);
    EXPECT_TRUE(expanded.ok()) << text;
    return expanded.ok() ? *expanded : std::vector<std::string>{};
  };
  EXPECT_THAT(hosts("alone"), ElementsAre("alone"));
  EXPECT_THAT(hosts("a,b-1"), ElementsAre("a", "b-1"));
  EXPECT_THAT(hosts("node[01-04,7]"), ElementsAre("node01", "node02", "node03", "node04", "node7"));
  EXPECT_THAT(hosts("n[9-10]-ib,gpu3"), ElementsAre("n9-ib", "n10-ib", "gpu3"));
  EXPECT_THAT(hosts("n[1-999999999999]", 2), ElementsAre("n1", "n2"));
}

TEST(SlurmNodelist, refuses_what_it_cannot_read) {
  for (const char* text : {"", "n[1-", "n[a-b]", "n[3-1]", "n[]", "r[1-2]n[1-2]", "n[1-99999999999999999999]"}) {
    EXPECT_FALSE(expand_slurm_nodelist(text, 10).ok()) << text;
  }
}

// ---- agents ----

LaunchOptions elastic(int min, int max) {
  LaunchOptions launch = nodes(max);
  launch.min_nodes = min;
  return launch;
}

AgentPosition position_of(const Environment& environment, const LaunchOptions& launch = {},
                          const std::string& host = "laptop") {
  const Result<AgentPosition> position = derive_agent_position(environment, host, launch);
  EXPECT_TRUE(position.ok()) << position.error().message;
  return position.ok() ? *position : AgentPosition{};
}

std::string misplaced(const Environment& environment, const LaunchOptions& launch = {},
                      const std::string& host = "laptop") {
  const Result<AgentPosition> position = derive_agent_position(environment, host, launch);
  EXPECT_FALSE(position.ok());
  return position.ok() ? "" : position.error().message;
}

TEST(AgentPosition, is_alone_in_an_empty_environment) {
  const AgentPosition position = position_of({});
  EXPECT_EQ(position.node_rank, 0);
  EXPECT_EQ(position.max_nodes, 1);
  EXPECT_FALSE(position.distributed());
  // Each index of a sweep is a run of its own.
  EXPECT_FALSE(position_of({{"JOB_COMPLETION_INDEX", "3"}}).distributed());
}

TEST(AgentPosition, comes_from_flags) {
  LaunchOptions launch = elastic(1, 4);
  launch.node_rank = 3;
  launch.coordinator = "host0:4711";
  const AgentPosition position = position_of({}, launch);
  EXPECT_EQ(position.node_rank, 3);
  EXPECT_EQ(position.min_nodes, 1);
  EXPECT_EQ(position.max_nodes, 4);
  EXPECT_EQ(position.wanted_nodes, 4);
  EXPECT_EQ(position.coordinator_host, "host0");
  EXPECT_EQ(position.coordinator_port, 4711);
}

TEST(AgentPosition, comes_from_a_pod_s_variables) {
  const AgentPosition position = position_of({{"LOCKSTEP_NODE_RANK", "2"},
                                              {"LOCKSTEP_NUM_NODES", "3"},
                                              {"LOCKSTEP_MIN_NODES", "2"},
                                              {"LOCKSTEP_MAX_NODES", "8"},
                                              {"LOCKSTEP_COORDINATOR", "job-0.job.ns.svc:29400"}});
  EXPECT_EQ(position.node_rank, 2);
  EXPECT_EQ(position.min_nodes, 2);
  EXPECT_EQ(position.wanted_nodes, 3);
  EXPECT_EQ(position.max_nodes, 8);
  EXPECT_EQ(position.coordinator_host, "job-0.job.ns.svc");
  EXPECT_EQ(position.coordinator_port, 29400);
  EXPECT_EQ(position_of({{"LOCKSTEP_NODE_RANK", "0"}, {"LOCKSTEP_NUM_NODES", "2"}}).min_nodes, 2);
}

TEST(AgentPosition, comes_from_an_indexed_job_or_a_stateful_set_with_flags) {
  LaunchOptions launch = nodes(2);
  launch.coordinator = "web-0.web";
  EXPECT_EQ(position_of({{"JOB_COMPLETION_INDEX", "1"}}, launch).node_rank, 1);
  EXPECT_EQ(position_of({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}, launch, "web-1").node_rank, 1);
  EXPECT_EQ(position_of({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}, launch, "web-1").coordinator_port, 29400);
}

TEST(AgentPosition, comes_from_a_task_per_node) {
  const Environment slurm{{"SLURM_PROCID", "1"},
                          {"SLURM_STEP_NUM_TASKS", "2"},
                          {"SLURM_JOB_ID", "7"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NODELIST", "gpu[3-4]"}};
  EXPECT_EQ(position_of(slurm, nodes(2)).node_rank, 1);
  EXPECT_EQ(position_of(slurm, nodes(2)).coordinator_host, "gpu3");
  EXPECT_THAT(misplaced(slurm, nodes(3)), HasSubstr("SLURM_STEP_NUM_TASKS=2 tasks for 3 nodes"));
  LaunchOptions launch = nodes(2);
  launch.coordinator = "host0:1";
  EXPECT_EQ(position_of({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, launch).node_rank, 1);
}

TEST(AgentPosition, reads_addresses_with_and_without_ports) {
  const auto coordinator = [](const std::string& text) {
    return position_of({{"LOCKSTEP_NODE_RANK", "1"}, {"LOCKSTEP_NUM_NODES", "2"}, {"LOCKSTEP_COORDINATOR", text}});
  };
  EXPECT_EQ(coordinator("host").coordinator_host, "host");
  EXPECT_EQ(coordinator("host").coordinator_port, 29400);
  EXPECT_EQ(coordinator("10.0.0.7:99").coordinator_host, "10.0.0.7");
  EXPECT_EQ(coordinator("[fd00::1]:99").coordinator_host, "fd00::1");
  EXPECT_EQ(coordinator("[fd00::1]:99").coordinator_port, 99);
  EXPECT_EQ(coordinator("[fd00::1]").coordinator_host, "fd00::1");
  EXPECT_EQ(coordinator("fd00::1").coordinator_host, "fd00::1");
}

TEST(AgentPosition, names_what_is_missing_or_contradicts) {
  EXPECT_THAT(misplaced({}, nodes(2)), HasSubstr("--node_rank (0 to 1), or set LOCKSTEP_NODE_RANK"));
  LaunchOptions second = nodes(2);
  second.node_rank = 1;
  EXPECT_THAT(misplaced({}, second), HasSubstr("--coordinator HOST:PORT, or set LOCKSTEP_COORDINATOR"));
  second.node_rank = 0;
  EXPECT_EQ(position_of({}, second).coordinator_host, "");  // it is the coordinator itself
  EXPECT_THAT(misplaced({{"LOCKSTEP_NODE_RANK", "1"}}, second), HasSubstr("contradicts LOCKSTEP_NODE_RANK=1"));
  EXPECT_THAT(misplaced({{"LOCKSTEP_NODE_RANK", "5"}, {"LOCKSTEP_NUM_NODES", "2"}}), HasSubstr("LOCKSTEP_NODE_RANK=5"));
  EXPECT_THAT(misplaced({{"LOCKSTEP_MIN_NODES", "3"}, {"LOCKSTEP_MAX_NODES", "2"}}),
              HasSubstr("LOCKSTEP_MIN_NODES 3 and LOCKSTEP_MAX_NODES 2"));
  EXPECT_THAT(misplaced({{"LOCKSTEP_NUM_NODES", "3"}}, nodes(2)), HasSubstr("LOCKSTEP_NUM_NODES 3"));
  EXPECT_THAT(misplaced({{"LOCKSTEP_NODE_RANK", "1"}, {"LOCKSTEP_NUM_NODES", "2"}, {"LOCKSTEP_COORDINATOR", "h:x"}}),
              HasSubstr("expected HOST:PORT"));
}

TEST(World, has_a_fixed_number_of_nodes_without_an_agent) {
  LaunchOptions launch = elastic(1, 2);
  launch.node_rank = 0;
  EXPECT_THAT(refused({}, launch), HasSubstr("--nnodes 1:2: without an agent"));
  EXPECT_EQ(derive({{"MASTER_ADDR", "h"}},
                   [] {
                     LaunchOptions same = elastic(2, 2);
                     same.node_rank = 1;
                     return same;
                   }())
                .assignment.nnodes,
            2);
}

}  // namespace
}  // namespace lockstep
