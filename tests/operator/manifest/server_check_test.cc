#include "operator/manifest/server_check.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace lockstep::manifest {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr const char* kSmallJob =
    "apiVersion: lockstep.dev/v1\nkind: TrainJob\nmetadata: {name: a}\nspec:\n "
    " trainer:\n    image: runner\n"
    "    env: [{name: A, value: b}]\n    resourcesPerNode:\n      limits: "
    "{nvidia.com/gpu: 9}\n";

JobInFile small_job(const std::string& text = kSmallJob) {
  const Result<JobFile> file = read_job_file(text, "f", {});
  EXPECT_TRUE(file.ok() && file->jobs.size() == 1 && file->jobs[0].findings.empty());
  return file->jobs[0];
}

// A cluster that answers each kubectl in turn, and what it was asked.
struct Cluster {
  std::vector<ProgramEnd> answers;
  std::vector<std::vector<std::string>> arguments = {};
  std::vector<Json> objects = {};

  std::vector<std::string> lines(const JobInFile& of, const std::string& ns = "") {
    const Result<std::vector<Finding>> found = ask_server(
        of, ns, [this](const std::vector<std::string>& words, const std::string& input) -> Result<ProgramEnd> {
          arguments.push_back(words);
          objects.push_back(Json::parse(input));
          return objects.size() <= answers.size() ? answers[objects.size() - 1] : ProgramEnd{};
        });
    EXPECT_TRUE(found.ok());
    std::vector<std::string> lines;
    for (const Finding& finding : *found) lines.push_back(line_of("f", finding));
    return lines;
  }
};

TEST(AskServer, asks_about_the_job_and_its_first_pod) {
  Cluster cluster{.answers = {}};
  EXPECT_THAT(cluster.lines(small_job()), IsEmpty());
  ASSERT_EQ(cluster.objects.size(), 2U);
  EXPECT_THAT(cluster.arguments[0], ElementsAre("apply", "--dry-run=server", "--output=name", "--filename=-"));
  EXPECT_EQ(cluster.objects[0]["kind"], "TrainJob");
  EXPECT_THAT(cluster.arguments[1], ElementsAre("create", "--dry-run=server", "--output=name", "--filename=-"));
  EXPECT_EQ(cluster.objects[1]["kind"], "Pod");
  // A running job of this name is no obstacle, and its owner need not exist.
  const Json& metadata = cluster.objects[1]["metadata"];
  EXPECT_EQ(metadata["generateName"], "a-0-0-");
  for (const char* name : {"name", "namespace", "ownerReferences"}) EXPECT_FALSE(metadata.contains(name)) << name;
}

TEST(AskServer, asks_in_the_namespace_of_the_file_or_of_the_option) {
  const std::string text =
      std::string(kSmallJob).replace(std::string(kSmallJob).find("{name: a}"), 9, "{name: a, namespace: t}");
  Cluster of_file{.answers = {}};
  of_file.lines(small_job(text));
  for (const auto& words : of_file.arguments) EXPECT_THAT(words, Contains("--namespace=t"));
  Cluster of_option{.answers = {}};
  of_option.lines(small_job(text), "other");
  for (const auto& words : of_option.arguments) EXPECT_THAT(words, Contains("--namespace=other"));
  EXPECT_EQ(of_option.objects[0]["metadata"]["namespace"], "other");
}

TEST(AskServer, says_in_the_users_fields_what_is_refused_of_the_job) {
  Cluster cluster{.answers = {{.code = 1,
                               .err = "The TrainJob \"a\" is invalid: \n* "
                                      "spec.trainer.image: Invalid value: \"i\": other\n"
                                      "* <nil>: Invalid value: null: some validation rules "
                                      "were not checked\n"}}};
  EXPECT_THAT(cluster.lines(small_job()), ElementsAre("f:6:5: spec.trainer.image: Invalid value: \"i\": other",
                                                      "f:1:1: <nil>: Invalid value: null: some validation rules "
                                                      "were not checked"));
  EXPECT_EQ(cluster.objects.size(), 1U);  // its pod is not asked about
}

TEST(AskServer, says_in_the_users_fields_what_is_refused_of_the_pod) {
  const std::string pod =
      "spec.containers[0].resources.limits[nvidia.com/"
      "gpu]: Invalid value: \"9\": too many";
  Cluster invalid{.answers = {{}, {.code = 1, .err = "The Pod \"a-0-0-\" is invalid: " + pod + "\n"}}};
  EXPECT_THAT(invalid.lines(small_job()),
              ElementsAre(StartsWith("f:9:16: spec.trainer.resourcesPerNode.limits[nvidia.com/gpu]: "
                                     "Invalid value: \"9\": too many")));
  Cluster forbidden{
      .answers = {{},
                  {.code = 1,
                   .err = "Warning: old\n"
                          "I1129 20:27:50.913478   27830 request.go:752] \"Waited before sending request\"\n"
                          "Error from server (Forbidden): error "
                          "when creating \"STDIN\": "
                          "pods \"a\" is forbidden: exceeded quota: few, used: "
                          "pods=1\n"}}};
  EXPECT_THAT(forbidden.lines(small_job()),
              ElementsAre("f:1:1: pods \"a\" is forbidden: exceeded quota: few, used: pods=1"));
}

TEST(AskServer, creates_a_job_whose_name_the_server_makes) {
  const std::string text =
      std::string(kSmallJob).replace(std::string(kSmallJob).find("name: a}"), 8, "generateName: a-}");
  Cluster cluster{.answers = {}};
  EXPECT_THAT(cluster.lines(small_job(text)), IsEmpty());
  EXPECT_EQ(cluster.arguments[0][0], "create");
  EXPECT_EQ(cluster.objects.size(), 2U);
}

TEST(AskServer, says_that_kubectl_failed_without_a_word) {
  Cluster cluster{.answers = {{.code = 137}}};
  EXPECT_THAT(cluster.lines(small_job()), ElementsAre("f:1:1: kubectl ended with 137 and said nothing"));
}

std::string kubectl_that(const TemporaryFolder& folder, const std::string& script) {
  std::filesystem::permissions(folder.write("kubectl", "#!/bin/sh\n" + script), std::filesystem::perms::owner_all);
  return folder.path();
}

TEST(RunKubectl, gives_input_and_takes_both_outputs) {
  const TemporaryFolder folder;
  const std::string path = kubectl_that(folder, "echo \"$1 $HOME\" >&2\n/bin/cat\nexit 3\n");
  const Result<ProgramEnd> end = run_kubectl({"one two"}, "input", {{"PATH", path}, {"HOME", "/h"}});
  ASSERT_TRUE(end.ok()) << end.error().message;
  EXPECT_EQ(end->code, 3);
  EXPECT_EQ(end->out, "input");
  EXPECT_EQ(end->err, "one two /h\n");
  const Result<ProgramEnd> missing = run_kubectl({}, "", {{"PATH", "/nowhere"}});
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message, HasSubstr("PATH has no program of that name"));
}

// As a login does: it asks on the standard error, and waits for an answer on the standard input. Here it waits, too,
// until its question is shown.
TEST(RunKubectl, shows_what_a_login_asks_for_and_leaves_it_the_standard_input) {
  const TemporaryFolder folder;
  const std::string path =
      kubectl_that(folder, "echo 'Code?' >&2\nwhile [ ! -s $SHOWN ]; do :; done\nread code\necho \"got $code\"\n");
  const std::string shown = folder.write("shown", "");
  const std::array<int, 2> ours = {::dup(STDIN_FILENO), ::dup(STDERR_FILENO)};
  const std::array<int, 2> files = {::open(folder.write("answer", "7\n").c_str(), O_RDONLY),
                                    ::open(shown.c_str(), O_WRONLY)};
  ::dup2(files[0], STDIN_FILENO);
  ::dup2(files[1], STDERR_FILENO);
  const Result<ProgramEnd> end = run_kubectl({}, "", {{"PATH", path}, {"SHOWN", shown}});
  ::dup2(ours[0], STDIN_FILENO);
  ::dup2(ours[1], STDERR_FILENO);
  for (const int fd : {ours[0], ours[1], files[0], files[1]}) ::close(fd);
  ASSERT_TRUE(end.ok()) << end.error().message;
  EXPECT_EQ(end->out, "got 7\n");
  EXPECT_EQ(end->err, "Code?\n");
}

}  // namespace
}  // namespace lockstep::manifest
