#include "runner/cli/trainjob_run.h"
#include "runner/models/workload_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "runner/config/run_config.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr const char* kMounted = R"(
    podTemplate: {spec: {containers: [{name: trainer, volumeMounts: [{name: d, mountPath: /data/}]}],
                         volumes: [{name: d, emptyDir: {}}]}}
)";

manifest::JobInFile job(const std::string& trainer, const std::string& spec = "") {
  const std::string text = "apiVersion: lockstep.dev/v1\nkind: TrainJob\nmetadata: {name: a}\nspec:\n" + spec +
                           "  trainer:\n    image: runner\n" + trainer;
  Result<manifest::JobFile> file = manifest::read_job_file(text, "f", {});
  EXPECT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->jobs.front().job.has_value()) << manifest::line_of("f", file->jobs.front().findings.front());
  return file->jobs.front();
}

Result<TrainJobRun> run_of(const manifest::JobInFile& of, const std::vector<std::string>& more = {},
                           const std::set<std::string>& there = {}) {
  std::vector<std::string> words = {"-f", "f"};
  words.insert(words.end(), more.begin(), more.end());
  const Result<std::optional<TrainJobRunOptions>> options = parse_trainjob_run(words);
  if (!options.ok()) return options.error();
  return local_run_of(of, **options, [&](const std::string& path) { return there.count(path) > 0; });
}

std::string refusal(const manifest::JobInFile& of, const std::vector<std::string>& more = {}) {
  const Result<TrainJobRun> run = run_of(of, more);
  return run.ok() ? "" : run.error().message;
}

const char* const kArgs = "    args: [run, sasrec, --dataset, x]\n";

TEST(TrainJobRun, takes_arguments_nodes_and_ranks) {
  const Result<TrainJobRun> run =
      run_of(job(std::string(kArgs) + "    numNodes: 2\n    numProcPerNode: 3\n"), {"--num_epochs", "2"});
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_THAT(run->arguments,
              ElementsAre("sasrec", "--nproc=3", "--local_nodes=2", "--dataset", "x", "--num_epochs", "2"));
  const Result<RunConfig> config = parse_run_config(run->arguments, all_workload_flags());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->launch.local_nodes, 2);
}

TEST(TrainJobRun, of_one_node_is_one_agent_with_its_own_number_of_ranks) {
  EXPECT_THAT(run_of(job(kArgs))->arguments, ElementsAre("sasrec", "--dataset", "x"));
}

TEST(TrainJobRun, keeps_the_elastic_bounds_and_time_outs) {
  const manifest::JobInFile elastic =
      job(std::string(kArgs) + "    numNodes: 3\n",
          "  elastic: {minNodes: 2, maxNodes: 4, rejoinTimeoutSeconds: 7}\n  health: {stallTimeoutSeconds: 9}\n");
  const Result<TrainJobRun> run = run_of(elastic);
  EXPECT_THAT(run->arguments, ElementsAre("sasrec", "--local_nodes=3", "--nnodes=2:3", "--dataset", "x"));
  EXPECT_TRUE(parse_run_config(run->arguments, all_workload_flags()).ok());
  EXPECT_THAT(run->environment, Contains(Pair("LOCKSTEP_REJOIN_TIMEOUT_SECONDS", "7")));
  EXPECT_THAT(run->environment, Contains(Pair("LOCKSTEP_STALL_TIMEOUT_SECONDS", "9")));
}

TEST(TrainJobRun, leaves_the_nodes_to_a_command_line_that_places_them) {
  const manifest::JobInFile two = job(std::string(kArgs) + "    numNodes: 2\n");
  EXPECT_THAT(run_of(two, {"--local-nodes", "3"})->arguments,
              ElementsAre("sasrec", "--dataset", "x", "--local-nodes", "3"));
  EXPECT_THAT(run_of(two, {"--nnodes=2", "--node_rank=0"})->arguments,
              ElementsAre("sasrec", "--dataset", "x", "--nnodes=2", "--node_rank=0"));
}

TEST(TrainJobRun, maps_paths_below_the_pods_mounts) {
  const manifest::JobInFile mounted =
      job(std::string("    args: [run, sasrec, --dataset, /data/a/x.inter, --data_dir=/data, --resume, /database]\n") +
          kMounted);
  const Result<TrainJobRun> run = run_of(mounted, {"--mount", "/data=./d/"}, {"./d"});
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_THAT(run->arguments,
              ElementsAre("sasrec", "--dataset", "./d/a/x.inter", "--data_dir=./d", "--resume", "/database"));
  EXPECT_THAT(run->remarks.front(), HasSubstr("/data is ./d"));
  EXPECT_THAT(refusal(mounted),
              HasSubstr("f: spec.trainer.args[3]: /data/a/x.inter is not on this machine: in the pods a "
                        "volume is mounted at /data; give its local path, such as --mount /data=./data"));
  // A path that exists needs no --mount, and a flag that is overridden needs nothing.
  EXPECT_TRUE(run_of(mounted, {}, {"/data/a/x.inter", "/data"}).ok());
  EXPECT_TRUE(run_of(mounted, {"--dataset", "y", "--data-dir=z"}).ok());
}

TEST(TrainJobRun, refuses_a_mount_without_a_use_or_a_folder) {
  const manifest::JobInFile mounted = job(std::string(kArgs) + kMounted);
  EXPECT_THAT(refusal(mounted, {"--mount", "/date=./d"}),
              HasSubstr("--mount /date: no volume is mounted there, and no argument names it; did you mean /data?"));
  EXPECT_THAT(refusal(mounted, {"--mount", "/data=./d"}), HasSubstr("there is no ./d"));
  EXPECT_THAT(refusal(mounted, {"--mount", "data=./d"}), HasSubstr("expected POD_PATH=LOCAL_PATH"));
  EXPECT_THAT(refusal(mounted, {"--mount", "/data="}), HasSubstr("expected POD_PATH=LOCAL_PATH"));
  EXPECT_THAT(refusal(mounted, {"--mount", "/data=a", "--mount=/data/=b"}), HasSubstr("given twice"));
  EXPECT_THAT(refusal(mounted, {"--mount"}), HasSubstr("--mount needs a value"));
}

TEST(TrainJobRun, keeps_checkpoints_in_a_local_folder_of_the_job) {
  const char* const kCheckpoint =
      "  checkpoint: {volume: {emptyDir: {}}, mountPath: /ckpt, onSuspendTimeoutSeconds: 33}\n";
  const manifest::JobInFile with_checkpoints =
      job("    args: [run, sasrec, --dataset, x, --resume, /ckpt/b]\n", kCheckpoint);
  const Result<TrainJobRun> run = run_of(with_checkpoints);
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_THAT(run->environment, Contains(Pair("LOCKSTEP_CHECKPOINT_DIR", "./checkpoints")));
  EXPECT_THAT(run->environment, Contains(Pair("LOCKSTEP_JOB", "a")));
  EXPECT_THAT(run->environment, Contains(Pair("LOCKSTEP_STOP_TIMEOUT_SECONDS", "33")));
  EXPECT_THAT(run->arguments, Contains("./checkpoints/b"));
  EXPECT_THAT(run->remarks.front(), HasSubstr("checkpoints in ./checkpoints/a"));
  // A folder that is made by the first run need not be there.
  EXPECT_THAT(run_of(with_checkpoints, {"--mount", "/ckpt=out"})->environment,
              Contains(Pair("LOCKSTEP_CHECKPOINT_DIR", "out")));
}

TEST(TrainJobRun, sets_the_environment_as_in_a_pod) {
  const manifest::JobInFile with_env =
      job("    args: [run, sasrec, --dataset, $(NAME).inter, --train_dir, $$(NAME)]\n"
          "    env: [{name: BASE, value: b}, {name: NAME, value: $(BASE)-$(LOCKSTEP_JOB)}, {name: S, valueFrom: "
          "{secretKeyRef: {name: s, key: k}}}]\n");
  const Result<TrainJobRun> run = run_of(with_env);
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_THAT(run->environment, Contains(Pair("NAME", "b-a")));
  EXPECT_EQ(run->environment.count("S"), 0U);
  EXPECT_THAT(run->arguments, ElementsAre("sasrec", "--dataset", "b-a.inter", "--train_dir", "$(NAME)"));
  EXPECT_THAT(run->remarks.back(), HasSubstr("env S (valueFrom)"));
  EXPECT_THAT(refusal(job("    args: [run, sasrec, --dataset, $(LOCKSTEP_NODE_RANK)]\n")),
              HasSubstr("has a value only in a pod"));
}

TEST(TrainJobRun, names_what_is_for_a_cluster) {
  const Result<TrainJobRun> run = run_of(job(std::string(kArgs) + "    resourcesPerNode: {limits: {cpu: 1}}\n",
                                             "  suspend: true\n  restartPolicy: {maxRestarts: 1}\n"));
  ASSERT_EQ(run->remarks.size(), 2U);
  EXPECT_EQ(run->remarks.back(), "f: for a cluster, and ignored here: image, resourcesPerNode, restartPolicy, suspend");
}

TEST(TrainJobRun, names_what_only_an_operator_does_about_waiting_scheduling_and_old_checkpoints) {
  const Result<TrainJobRun> run =
      run_of(job(kArgs,
                 "  scheduling: {priorityClassName: high}\n"
                 "  checkpoint: {volume: {emptyDir: {}}, mountOn: AllNodes, resume: Never}\n"
                 "  health: {startupTimeoutSeconds: 60, placementTimeoutSeconds: 60, stallTimeoutSeconds: 60, "
                 "notReadyTimeoutSeconds: 60}\n"));
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_EQ(run->remarks.back(),
            "f: for a cluster, and ignored here: image, scheduling, checkpoint.volume, checkpoint.mountOn, "
            "checkpoint.resume, "
            "health.startupTimeoutSeconds, health.placementTimeoutSeconds, health.notReadyTimeoutSeconds");
}

TEST(TrainJobRun, refuses_programs_that_only_the_image_has) {
  EXPECT_THAT(refusal(job("    launcher: Torchrun\n    args: [train.py]\n")),
              HasSubstr("f: spec.trainer.launcher: is Torchrun"));
  EXPECT_THAT(refusal(job("    launcher: None\n")), HasSubstr("use launcher Lockstep"));
  EXPECT_THAT(refusal(job(std::string(kArgs) + "    command: [mine]\n")), HasSubstr("spec.trainer.command: is given"));
  EXPECT_THAT(refusal(job("")), HasSubstr("expected run WORKLOAD [flags], found nothing"));
  EXPECT_THAT(refusal(job("    args: [ckpt, ls]\n")), HasSubstr("found \"ckpt\""));
}

TEST(ParseTrainJobRun, tells_a_file_from_a_workload) {
  EXPECT_FALSE(parse_trainjob_run({"sasrec", "--dataset", "x"})->has_value());
  EXPECT_EQ((**parse_trainjob_run({"--lr", "1", "--filename=x.yaml"})).path, "x.yaml");
  EXPECT_THAT(parse_trainjob_run({"-f", "x", "sasrec"}).error().message, HasSubstr("leave out \"sasrec\""));
  EXPECT_THAT(parse_trainjob_run({"-f", "x", "-f", "y"}).error().message, HasSubstr("given twice"));
  EXPECT_THAT(parse_trainjob_run({"-f"}).error().message, HasSubstr("-f needs a value"));
  EXPECT_THAT(parse_trainjob_run({"sasrec", "--mount", "/a=b"}).error().message,
              HasSubstr("--mount goes with -f FILE"));
}

}  // namespace
}  // namespace lockstep
