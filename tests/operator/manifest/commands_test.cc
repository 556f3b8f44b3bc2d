#include "operator/manifest/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "operator/api/yaml.h"

namespace lockstep::manifest {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kExample = LOCKSTEP_EXAMPLES "/trainjob.yaml";
constexpr const char* kValid =
    "apiVersion: lockstep.dev/v1\nkind: TrainJob\nmetadata: {name: a}\nspec: {trainer: {image: runner}}\n";

struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
};

Outcome run(int (*command)(const std::vector<std::string>&, const CommandContext&),
            const std::vector<std::string>& arguments, const std::string& input = "") {
  std::istringstream in(input);
  std::ostringstream out;
  std::ostringstream err;
  Outcome outcome;
  outcome.code = command(arguments, {.program = "lockstep", .in = in, .out = out, .err = err, .check_args = {}});
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

class Folder : public testing::Test {
 protected:
  Folder() : path_(testing::TempDir() + "/manifest-" + std::to_string(::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() override { std::filesystem::remove_all(path_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name) << text;
    return path_ + "/" + name;
  }

  const std::string path_;
};

TEST(Validate, says_of_each_file_what_it_holds) {
  const Outcome outcome = run(validate_command, {"-f", kExample});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("trainjob.yaml: TrainJob sasrec is valid\n"));
  EXPECT_THAT(outcome.out, HasSubstr("PersistentVolumeClaim datasets is no TrainJob: passed over\n"));
}

TEST(Validate, reads_standard_input_and_several_files) {
  EXPECT_EQ(run(validate_command, {"-f", "-"}, kValid).out, "standard input: TrainJob a is valid\n");
  const Outcome both = run(validate_command, {kExample, "-"}, "kind: ConfigMap\n");
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.out, HasSubstr("is valid"));
  EXPECT_THAT(both.out, HasSubstr("standard input: holds no TrainJob"));
}

TEST(Validate, says_what_it_cannot_read) {
  const Outcome missing = run(validate_command, {"-f", "/nowhere/job.yaml"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.err, "lockstep: /nowhere/job.yaml: cannot be opened: No such file or directory\n");
  EXPECT_THAT(run(validate_command, {}).err, HasSubstr("see lockstep validate --help"));
  EXPECT_THAT(run(validate_command, {"--flie", "x"}).err, HasSubstr("lockstep validate: "));
  EXPECT_THAT(run(validate_command, {"--help"}).out, HasSubstr("Exit codes"));
}

TEST(Validate, says_that_it_does_not_know_the_flags_of_a_plugin) {
  const std::string job =
      "apiVersion: lockstep.dev/v1\nkind: TrainJob\nmetadata: {name: a}\n"
      "spec: {trainer: {image: i, args: [run, mine, --plugin, /mine.so, --its_flag, x]}}\n";
  EXPECT_EQ(run(validate_command, {"-f", "-"}, job).out,
            "standard input: TrainJob a is valid (its arguments are checked in the pod, which has the plugin)\n");
}

TEST_F(Folder, stands_for_the_manifests_in_it) {
  write("b.yaml", "kind: TrainJob\napiVersion: lockstep.dev/v1\n");
  write("a.yml", kValid);
  write("c.json", R"({"kind": "ConfigMap"})");
  write("d.txt", "not YAML: [");
  const Outcome outcome = run(validate_command, {"-f", path_});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.out, StartsWith(path_ + "/a.yml: TrainJob a is valid\n" + path_ + "/b.yaml:1:1: "));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("c.json: holds no")));
  EXPECT_THAT(run(render_command, {"-f", path_}).err, HasSubstr("is a folder, expected a file"));
}

TEST_F(Folder, without_manifests_is_an_error) {
  EXPECT_THAT(run(validate_command, {"-f", path_}).err, HasSubstr("a folder without .yaml, .yml or .json files"));
}

TEST_F(Folder, a_file_of_hostile_size_is_refused) {
  const std::string path = write("large.yaml", std::string(api::kYamlBytesMax + 10, ' '));
  const Outcome outcome = run(validate_command, {"-f", path});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.out, HasSubstr("8388609 bytes; expected at most 8388608"));
}

TEST(Render, prints_documents_that_read_back) {
  const Outcome yaml = run(render_command, {"-f", kExample, "--nodes", "3"});
  EXPECT_EQ(yaml.code, 0) << yaml.err;
  const auto documents = api::parse_yaml_documents(yaml.out, "rendered");
  ASSERT_TRUE(documents.ok()) << documents.error().message;
  const Outcome json = run(render_command, {"-f", kExample, "--nodes", "3", "-o", "json"});
  const OrderedJson list = OrderedJson::parse(json.out);
  ASSERT_EQ(documents->size(), 4U);
  ASSERT_EQ(list["items"].size(), 4U);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(Json(list["items"][i]), Json((*documents)[i]));
}

TEST(Validate, names_the_word_that_moves_a_job_from_torchrun) {
  const std::string job =
      "apiVersion: lockstep.dev/v1\nkind: TrainJob\nmetadata: {name: a}\n"
      "spec: {trainer: {image: i, launcher: Torchrun, command: [";
  EXPECT_EQ(run(validate_command, {"-f", "-"}, job + "torchrun, train.py]}}\n").out,
            "standard input: TrainJob a is valid (launcher: Lockstep in the place of Torchrun would start the same "
            "command, and restart lost ranks without new pods)\n");
  EXPECT_EQ(run(validate_command, {"-f", "-"}, job + "accelerate, launch, train.py]}}\n").out,
            "standard input: TrainJob a is valid\n");
}

TEST(Render, wants_one_valid_job_with_a_name) {
  const std::string two = std::string(kValid) + "---\n" + kValid;
  EXPECT_EQ(run(render_command, {"-f", "-"}, two).err,
            "standard input: holds 2 TrainJobs (a, a), expected one; put each into a file of its own\n");
  std::string broken = kValid;
  broken.replace(broken.find("image"), 5, "imaeg");
  const Outcome outcome = run(render_command, {"-f", "-"}, broken);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("standard input:4:18: spec.trainer.imaeg: is not a field"));
  std::string generated = kValid;
  generated.replace(generated.find("name:"), 5, "generateName:");
  EXPECT_THAT(run(render_command, {"-f", "-"}, generated).err, HasSubstr("generateName"));
  EXPECT_THAT(run(render_command, {"-f", "-"}, "kind: ConfigMap\n").err, HasSubstr("holds no TrainJob"));
  EXPECT_EQ(run(render_command, {"-f", "-", "--nodes", "0"}, kValid).code, 2);
}

}  // namespace
}  // namespace lockstep::manifest
