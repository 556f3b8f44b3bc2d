#include "operator/manifest/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::manifest {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr const char* kHead = "apiVersion: lockstep.dev/v1\nkind: TrainJob\nmetadata: {name: a, namespace: team}\n";

std::string job(const std::string& spec) { return std::string(kHead) + "spec:\n" + spec; }

// "3:5: spec.x: message" of every finding, or the error that the file is.
std::vector<std::string> lines(const std::string& text, const CheckArgs& check_args = {}) {
  const Result<JobFile> file = read_job_file(text, "f", check_args);
  if (!file.ok()) return {file.error().message};
  std::vector<std::string> all;
  for (const JobInFile& one : file->jobs) {
    EXPECT_EQ(one.findings.empty(), one.job.has_value());
    for (const Finding& finding : one.findings) all.push_back(line_of("f", finding));
  }
  return all;
}

TEST(JobFile, a_valid_job_is_read_with_its_defaults) {
  const Result<JobFile> file = read_job_file(job("  trainer: {image: runner}\n"), "f", {});
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->jobs.size(), 1U);
  EXPECT_EQ(file->jobs[0].name, "team/a");
  ASSERT_TRUE(file->jobs[0].job.has_value());
  EXPECT_EQ(file->jobs[0].job->spec.trainer.num_nodes, 1);
  EXPECT_FALSE(file->jobs[0].written["spec"]["trainer"].contains("numNodes"));
}

TEST(JobFile, findings_come_in_the_order_of_the_text) {
  EXPECT_THAT(lines(job("  trainer:\n    numNodes: 0\n    imaeg: i\n  elastik: {}\n")),
              ElementsAre("f:5:3: spec.trainer.image: is missing, and has no default",
                          "f:6:5: spec.trainer.numNodes: is 0, expected at least 1",
                          "f:7:5: spec.trainer.imaeg: is not a field of spec.trainer; did you mean image?",
                          "f:8:3: spec.elastik: is not a field of spec; did you mean elastic?"));
}

TEST(JobFile, what_the_operator_would_refuse_is_found) {
  EXPECT_THAT(lines(job("  trainer:\n    image: runner\n    podTemplate:\n      spec:\n        hostname: mine\n")),
              ElementsAre(StartsWith("f:9:9: spec.trainer.podTemplate.spec.hostname: is \"mine\", but")));
}

TEST(JobFile, a_command_is_no_other_launcher) {
  EXPECT_THAT(lines(job("  trainer: {image: i, command: [python, /app/train.py], numNodes: 2}\n")), IsEmpty());
  EXPECT_THAT(lines(job("  trainer: {image: i, command: [torchrun, /app/train.py], numNodes: 2}\n")), IsEmpty());
  EXPECT_THAT(lines(job("  trainer: {image: i, command: [/opt/bin/accelerate, launch]}\n")),
              ElementsAre("f:5:33: spec.trainer.command[0]: is \"/opt/bin/accelerate\", which starts ranks itself, and "
                          "so does launcher Lockstep: leave `accelerate launch` and its flags out: command: [python, "
                          "train.py]; or set spec.trainer.launcher: None, with which a failure restarts all pods"));
  EXPECT_THAT(lines(job("  trainer: {image: i, command: [/venv/bin/torchrun, train.py]}\n")),
              ElementsAre(HasSubstr("command: [/venv/bin/python, train.py], without torchrun's flags")));
  EXPECT_THAT(lines(job("  trainer: {image: i, command: [python, -m, torch.distributed.run, train.py]}\n")),
              ElementsAre(HasSubstr("spec.trainer.command[2]: is \"torch.distributed.run\"")));
  EXPECT_THAT(lines(job("  trainer: {image: i, command: [torchrun, /app/train.py], launcher: Torchrun}\n")), IsEmpty());
  EXPECT_THAT(lines(job("  trainer: {image: i, command: [mpirun, /app/train], launcher: None}\n")), IsEmpty());
  EXPECT_THAT(lines(job("  trainer: {image: i, command: [/bin/sh, -c, torchrun]}\n")), IsEmpty());
}

TEST(JobFile, without_a_command_the_image_must_be_one_of_ours) {
  EXPECT_THAT(lines(job("  trainer: {image: mine, args: [--epochs, '3']}\n")),
              ElementsAre("f:5:3: spec.trainer.command: is missing, and args begin with \"--epochs\" and not with run: "
                          "what the image starts is not known here; write the program, command: [python, train.py], or "
                          "for an image of Lockstep args: [run, WORKLOAD, …]"));
  EXPECT_THAT(lines(job("  trainer: {image: 'pytorch/pytorch:2.11'}\n")),
              ElementsAre(HasSubstr("is missing, and no args")));
  EXPECT_THAT(lines(job("  trainer: {image: 'mine:2', args: [run, byte_lm]}\n")), IsEmpty());
  EXPECT_THAT(lines(job("  trainer: {image: 'r.example:5000/lockstep/runner:1@sha256:00'}\n")), IsEmpty());
  EXPECT_THAT(lines(job("  trainer: {image: 'r.example:5000/team/runner:1'}\n")), IsEmpty());
}

TEST(JobFile, the_status_port_is_a_field_and_no_argument) {
  EXPECT_THAT(
      lines(job("  trainer: {image: i, args: [run, sasrec, --status_port, '9090']}\n")),
      ElementsAre("f:5:43: spec.trainer.args[2]: is --status_port 9090, but the probe, the Service and the operator "
                  "use port 8080; remove it, and set spec.trainer.statusPort to another port"));
  EXPECT_THAT(lines(job("  trainer: {image: i, args: [run, sasrec, --status-port=0], statusPort: 9090}\n")),
              ElementsAre(HasSubstr("is --status-port=0, but the probe, the Service and the operator use port 9090")));
  EXPECT_THAT(lines(job("  trainer: {image: i, args: [run, sasrec, --status_port, '9090'], statusPort: 9090}\n")),
              IsEmpty());
  EXPECT_THAT(lines(job("  trainer: {image: i, args: [--status_port, '9090'], launcher: None}\n")), IsEmpty());
}

TEST(JobFile, a_queue_is_named_as_queues_are_and_by_the_job) {
  const std::string queued =
      "apiVersion: lockstep.dev/v1\nkind: TrainJob\nmetadata: {name: a, labels: "
      "{kueue.x-k8s.io/queue-name: Team_A}}\nspec: {trainer: {image: runner}}\n";
  EXPECT_THAT(lines(queued), ElementsAre(HasSubstr("metadata.labels[kueue.x-k8s.io/queue-name]: is \"Team_A\"")));
  EXPECT_THAT(lines(job("  trainer:\n    image: runner\n    podTemplate:\n      metadata: {labels: "
                        "{kueue.x-k8s.io/queue-name: team}}\n")),
              ElementsAre(HasSubstr("a queue is the job's, not a pod's")));
}

TEST(JobFile, several_documents_lists_and_other_kinds_are_told_apart) {
  const std::string list =
      "kind: List\napiVersion: v1\nitems:\n- {kind: ConfigMap, metadata: {name: c}}\n- {apiVersion: "
      "lockstep.dev/v1, kind: TrainJob, metadata: {name: b},\n   spec: {trainer: {image: 3}}}\n";
  const Result<JobFile> file = read_job_file(job("  trainer: {image: runner}\n") + "---\n" + list, "f", {});
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_THAT(file->others, ElementsAre("ConfigMap c"));
  ASSERT_EQ(file->jobs.size(), 2U);
  EXPECT_EQ(file->jobs[1].name, "b");
  ASSERT_EQ(file->jobs[1].findings.size(), 1U);
  EXPECT_THAT(line_of("f", file->jobs[1].findings[0]),
              StartsWith("f:12:21: spec.trainer.image: is 3, expected a string"));
}

TEST(JobFile, a_slip_in_the_kind_is_no_other_kind) {
  std::string text = job("  trainer: {image: runner}\n");
  text.replace(text.find("TrainJob"), 8, "TrainJobs");
  EXPECT_THAT(lines(text), ElementsAre(HasSubstr("f:2:1: kind: is \"TrainJobs\", expected TrainJob")));
  text = job("  trainer: {image: runner}\n");
  text.replace(text.find("/v1"), 3, "/v2");
  EXPECT_THAT(lines(text), ElementsAre(HasSubstr("apiVersion: is \"lockstep.dev/v2\", expected lockstep.dev/v1")));
}

TEST(JobFile, what_is_no_object_of_kubernetes_is_an_error) {
  EXPECT_THAT(lines("- a\n"), ElementsAre(HasSubstr("f:1:1: is no object")));
  EXPECT_THAT(lines("a: 1\n"), ElementsAre(HasSubstr("f:1:1: has no kind")));
  EXPECT_THAT(lines("kind: List\nitems: [3]\n"), ElementsAre(HasSubstr("f:2:9: is no object")));
  EXPECT_THAT(lines("a: [\n"), ElementsAre(HasSubstr("f:2:1: not YAML")));
  EXPECT_THAT(lines(""), IsEmpty());
}

TEST(JobFile, an_object_that_etcd_would_not_take_is_refused) {
  std::string text = job("  trainer:\n    image: runner\n    podTemplate: {metadata: {annotations: {x: \"");
  text += std::string(kObjectBytesMax, 'x') + "\"}}}\n";
  EXPECT_THAT(lines(text), ElementsAre(AllOf(StartsWith("f:1:1: is 157"), HasSubstr("stores at most 1572864"))));
}

// --- trainer.args

std::optional<ArgumentProblem> refuse_second(const AgentCommand& of) {
  return ArgumentProblem{1, of.arguments[1] + " with " + std::to_string(of.ranks) + " ranks"};
}

TEST(JobFile, arguments_are_checked_with_the_most_ranks_there_may_be) {
  EXPECT_THAT(lines(job("  trainer: {image: i, args: [run, x], numProcPerNode: 2, numNodes: 3}\n"), refuse_second),
              ElementsAre("f:5:35: spec.trainer.args[1]: x with 6 ranks"));
  EXPECT_THAT(
      lines(job("  elastic: {minNodes: 1, maxNodes: 4}\n  trainer: {image: i, args: [run, x]}\n"), refuse_second),
      ElementsAre(HasSubstr("x with 4 ranks")));
}

TEST(JobFile, variables_in_arguments_are_written_out_and_unknown_ones_left_to_the_pod) {
  const std::string env = ", env: [{name: A, value: b}]}\n";
  EXPECT_THAT(lines(job("  trainer: {image: i, args: [run, $(A)c]" + env), refuse_second),
              ElementsAre(HasSubstr("bc with 1 ranks")));
  EXPECT_THAT(lines(job("  trainer: {image: i, args: [run, $(B)c]" + env), refuse_second), IsEmpty());
}

TEST(JobFile, arguments_of_another_program_are_not_checked) {
  for (const char* more : {", launcher: Torchrun", ", launcher: None", ", command: [mine]"}) {
    EXPECT_THAT(lines(job(std::string("  trainer: {image: i, args: [run, x]") + more + "}\n"), refuse_second),
                IsEmpty());
  }
  EXPECT_THAT(lines(job("  trainer: {image: runner}\n"), refuse_second), IsEmpty());
}

// --- the environment

// As check_arguments does: the message names variables.
std::optional<ArgumentProblem> refuse_slurm(const AgentCommand& of) {
  const auto it = of.environment.find("SLURM_NTASKS");
  if (it == of.environment.end()) return std::nullopt;
  return ArgumentProblem{std::nullopt, "SLURM_NTASKS=" + it->second + " says that several of these were started", true};
}

TEST(JobFile, variables_are_checked_as_the_agent_does_where_they_stand) {
  EXPECT_THAT(lines(job("  trainer:\n    image: runner\n    args: [run, x]\n    env:\n    - {name: A, value: b}\n"
                        "    - name: SLURM_NTASKS\n      value: \"8\"\n"),
                    refuse_slurm),
              ElementsAre("f:10:7: spec.trainer.env[1]: SLURM_NTASKS=8 says that several of these were started"));
  const std::string in_template =
      "  trainer:\n    image: runner\n    args: [run, x]\n    podTemplate: {spec: {containers: [{name: trainer,\n"
      "      env: [{name: SIZE, value: \"4\"}, {name: SLURM_NTASKS, value: $(SIZE)$(SIZE)}]}]}}\n";
  EXPECT_THAT(
      lines(job(in_template), refuse_slurm),
      ElementsAre("f:9:39: spec.trainer.podTemplate.spec.containers[0].env[1]: SLURM_NTASKS=44 says that several "
                  "of these were started"));
  // The field's variable takes the place of the template's.
  EXPECT_THAT(lines(job(in_template + "    env: [{name: SLURM_NTASKS, value: \"1\"}]\n"), refuse_slurm),
              ElementsAre(AllOf(StartsWith("f:10:"), HasSubstr("spec.trainer.env[0]: SLURM_NTASKS=1"))));
}

TEST(JobFile, variables_whose_values_only_the_pod_has_are_left_to_it) {
  const auto with_env = [](const std::string& env) {
    return job("  trainer: {image: i, args: [run, x], env: [" + env + "]}\n");
  };
  EXPECT_THAT(lines(with_env("{name: SLURM_NTASKS, value: $(UNKNOWN)}"), refuse_slurm), IsEmpty());
  EXPECT_THAT(lines(with_env("{name: SLURM_NTASKS, valueFrom: {secretKeyRef: {name: s, key: k}}}"), refuse_slurm),
              IsEmpty());
  EXPECT_THAT(
      lines(job("  trainer:\n    image: runner\n    args: [run, x]\n    env: [{name: SLURM_NTASKS, value: \"8\"}]\n"
                "    podTemplate: {spec: {containers: [{name: trainer, envFrom: [{configMapRef: {name: c}}]}]}}\n"),
            refuse_slurm),
      IsEmpty());
}

TEST(JobFile, mounts_at_one_place_are_found_in_spite_of_their_slashes) {
  const auto with_mounts = [](const std::string& mounts, const std::string& more = "") {
    return job(
        "  trainer:\n    image: runner\n    podTemplate:\n      spec:\n        containers: [{name: trainer, "
        "volumeMounts: "
        "[" +
        mounts + "]}]\n        volumes: [{name: v, emptyDir: {}}]\n" + more);
  };
  const std::string checkpoint = "  checkpoint: {volume: {emptyDir: {}}}\n";
  EXPECT_THAT(lines(with_mounts("{name: v, mountPath: /checkpoints/}", checkpoint)),
              ElementsAre(AllOf(StartsWith("f:9:"), HasSubstr("volumeMounts[0].mountPath: is \"/checkpoints/\", where "
                                                              "spec.checkpoint.volume is mounted"))));
  EXPECT_THAT(lines(with_mounts("{name: v, mountPath: /checkpoints/mine}", checkpoint)), IsEmpty());
  EXPECT_THAT(
      lines(with_mounts("{name: v, mountPath: /data}, {name: v, mountPath: //data/}")),
      ElementsAre(HasSubstr("volumeMounts[1].mountPath: is \"//data/\", where another volume is mounted already "
                            "(\"/data\")")));
  EXPECT_THAT(lines(with_mounts("{name: v, mountPath: /data}, {name: v, mountPath: /data/x}")), IsEmpty());
  EXPECT_THAT(
      lines(job("  trainer: {image: runner}\n  checkpoint: {volume: {emptyDir: {}}, mountPath: /dev//shm/x}\n")),
      ElementsAre(HasSubstr("spec.checkpoint.mountPath: must not be in /dev/shm")));
}

TEST(JobFile, labels_of_the_job_itself_are_checked) {
  EXPECT_THAT(
      lines("apiVersion: lockstep.dev/v1\nkind: TrainJob\nmetadata: {name: a, labels: {x: \"lr=3\"}, annotations: {y: "
            "\"lr=3\"}}\nspec: {trainer: {image: runner}}\n"),
      ElementsAre(StartsWith("f:3:30: metadata.labels.x: is \"lr=3\", expected at most 63")));
}

TEST(ExpandVariables, is_that_of_kubernetes) {
  const auto value_of = [](const std::string& name) -> std::optional<std::string> {
    return name == "A" ? std::optional<std::string>("1") : std::nullopt;
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"$(A)", "1"},  {"x$(A)y$(A)", "x1y1"}, {"$$(A)", "$(A)"}, {"$(B)", "$(B)"},
      {"$(A", "$(A"}, {"$A", "$A"},           {"$$", "$"},       {"$", "$"},
      {"$()", "$()"}, {"$$$(A)", "$1"}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(expand_variables(text, value_of), expected) << text;
}

}  // namespace
}  // namespace lockstep::manifest
