// Programs that give credentials: what they are told, what they answer, and what goes wrong with them.
#include "operator/kube/exec_credential.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/temporary_folder.h"

namespace lockstep::kube {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kWhere = "/c: users[u].exec";
const std::map<std::string, std::string> kEnvironment{{"PATH", "/usr/bin:/bin"}};
constexpr const char* kV1 = "client.authentication.k8s.io/v1";

Json exec_of(const std::string& command) {
  return {{"apiVersion", kV1}, {"command", command}, {"interactiveMode", "IfAvailable"}};
}

std::string refusal(const Json& exec) {
  const Result<ExecPlugin> plugin = parse_exec_plugin(exec, kWhere, "/folder");
  return plugin.ok() ? "accepted" : plugin.error().message;
}

ExecPlugin plugin_of(const Json& exec) {
  const Result<ExecPlugin> plugin = parse_exec_plugin(exec, kWhere, "/folder");
  EXPECT_TRUE(plugin.ok()) << plugin.error().message;
  return plugin.ok() ? *plugin : ExecPlugin();
}

Json with(Json exec, const char* field, const Json& value) {
  exec[field] = value;
  return exec;
}

std::string answer_of(const Json& status, const char* version = kV1) {
  return Json{{"apiVersion", version}, {"kind", "ExecCredential"}, {"status", status}}.dump();
}

std::string wrong_answer(const std::string& text) {
  const Result<ExecCredential> credential = parse_exec_credential(text, plugin_of(exec_of("log-in")));
  if (credential.ok()) return "accepted";
  EXPECT_THAT(credential.error().message, HasSubstr("/c: users[u].exec: the answer of log-in"));
  return credential.error().message;
}

TEST(ExecCredential, a_command_is_a_name_or_a_path_from_the_files_folder) {
  EXPECT_EQ(plugin_of(exec_of("aws")).command, "aws");
  EXPECT_EQ(plugin_of(exec_of("/bin/aws")).command, "/bin/aws");
  EXPECT_EQ(plugin_of(exec_of("./aws")).command, "/folder/./aws");
}

TEST(ExecCredential, wrong_fields_are_named) {
  const Json good = exec_of("aws");
  EXPECT_EQ(refusal(good), "accepted");
  EXPECT_THAT(refusal(Json::array()), HasSubstr("users[u].exec: is array, expected a map"));
  EXPECT_THAT(refusal(with(good, "apiVersion", "client.authentication.k8s.io/v1alpha1")),
              HasSubstr(".apiVersion: is \"client.authentication.k8s.io/v1alpha1\", expected"));
  EXPECT_THAT(refusal(with(good, "command", "")), HasSubstr(".command: is missing"));
  EXPECT_THAT(refusal(with(good, "args", "one two")), HasSubstr(".args: expected a list of strings"));
  EXPECT_THAT(refusal(with(good, "args", {1})), HasSubstr(".args: expected a list of strings"));
  EXPECT_THAT(refusal(with(good, "env", {{{"name", "A=B"}, {"value", "c"}}})), HasSubstr(".env: expected a list of"));
  EXPECT_THAT(refusal(with(good, "env", Json::object({{"A", "b"}}))), HasSubstr(".env: expected a list of"));
  EXPECT_THAT(refusal(with(good, "provideClusterInfo", "yes")),
              HasSubstr(".provideClusterInfo: is string, expected true or false"));
  EXPECT_THAT(refusal(with(good, "interactiveMode", "Perhaps")), HasSubstr("is \"Perhaps\"; expected Never"));
  EXPECT_THAT(refusal(with(good, "interactiveMode", nullptr)), HasSubstr(".interactiveMode: is missing"));
}

TEST(ExecCredential, the_older_version_has_a_default_for_the_terminal) {
  Json exec{{"apiVersion", "client.authentication.k8s.io/v1beta1"}, {"command", "aws"}};
  EXPECT_EQ(plugin_of(exec).terminal, ExecPlugin::Terminal::kIfAvailable);
}

TEST(ExecCredential, the_program_is_told_what_the_specification_says) {
  ExecPlugin plugin = plugin_of(exec_of("aws"));
  EXPECT_EQ(Json::parse(exec_info(plugin, true)),
            Json::parse(R"({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                            "spec": {"interactive": true}})"));
  plugin.cluster = {{"server", "https://a"}};
  EXPECT_EQ(Json::parse(exec_info(plugin, false))["spec"],
            Json::parse(R"({"interactive": false, "cluster": {"server": "https://a"}})"));
}

TEST(ExecCredential, an_answer_is_a_token_or_a_pair_of_certificate_and_key) {
  const ExecPlugin plugin = plugin_of(exec_of("log-in"));
  const Result<ExecCredential> token = parse_exec_credential(answer_of({{"token", "abc"}}), plugin);
  ASSERT_TRUE(token.ok()) << token.error().message;
  EXPECT_EQ(token->token, "abc");
  const Result<ExecCredential> pair = parse_exec_credential(
      answer_of({{"clientCertificateData", "C"}, {"clientKeyData", "K"}, {"expirationTimestamp", "x"}}), plugin);
  ASSERT_TRUE(pair.ok()) << pair.error().message;
  EXPECT_EQ(pair->client_certificate + pair->client_key + pair->token, "CK");
}

TEST(ExecCredential, a_wrong_answer_is_named_without_what_may_be_secret) {
  EXPECT_THAT(wrong_answer("s3cret"), HasSubstr("is not JSON; expected an ExecCredential"));
  EXPECT_THAT(wrong_answer("s3cret"), Not(HasSubstr("s3cret")));
  EXPECT_THAT(wrong_answer("{}"), HasSubstr("is not of kind ExecCredential"));
  EXPECT_THAT(wrong_answer(answer_of({{"token", "t"}}, "client.authentication.k8s.io/v1beta1")),
              HasSubstr("is not of apiVersion client.authentication.k8s.io/v1"));
  EXPECT_THAT(wrong_answer(answer_of(nullptr)), HasSubstr("has no status"));
  EXPECT_THAT(wrong_answer(answer_of(Json::object())), HasSubstr("has neither token nor clientCertificateData"));
  EXPECT_THAT(wrong_answer(answer_of({{"token", 7}})), HasSubstr("status.token: is number"));
  EXPECT_THAT(wrong_answer(answer_of({{"token", "s3cret\r\nX: y"}})), HasSubstr("status.token: is not one word"));
  EXPECT_THAT(wrong_answer(answer_of({{"token", "s3cret\r\nX: y"}})), Not(HasSubstr("s3cret")));
  EXPECT_THAT(wrong_answer(answer_of({{"clientKeyData", "K"}})), HasSubstr("expected both"));
  EXPECT_THAT(wrong_answer(std::string(2 << 20, 'x')), HasSubstr("larger than 1 MiB"));
}

// --- real programs

class ExecProgram : public ::testing::Test {
 protected:
  // A shell script with these lines.
  Result<ExecCredential> run(const std::string& lines, const Json& more = Json::object()) {
    const std::string path = folder_.write("log-in", "#!/bin/sh\n" + lines + "\n");
    ::chmod(path.c_str(), 0700);
    Json exec = exec_of(path);
    exec.update(more);
    return run_exec_plugin(plugin_of(exec), kEnvironment);
  }
  std::string failure(const std::string& lines, const Json& more = Json::object()) {
    const Result<ExecCredential> credential = run(lines, more);
    return credential.ok() ? "accepted" : credential.error().message;
  }

  TemporaryFolder folder_;
};

TEST_F(ExecProgram, it_gets_arguments_and_environment_and_its_answer_is_taken) {
  const Result<ExecCredential> credential =
      run(R"(case "$KUBERNETES_EXEC_INFO" in *'"interactive":false'*) ;; *) exit 9;; esac
test -n "$PATH" || exit 8
printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s-%s"}}' "$1" "$WHO")",
          {{"args", {"for"}}, {"env", {{{"name", "WHO"}, {"value", "me"}}}}, {"interactiveMode", "Never"}});
  ASSERT_TRUE(credential.ok()) << credential.error().message;
  EXPECT_EQ(credential->token, "for-me");
}

TEST_F(ExecProgram, one_that_fails_is_named_with_how_it_ended) {
  EXPECT_THAT(failure("exit 3"), HasSubstr("log-in ended with exit code 3; its own messages are above"));
  EXPECT_THAT(failure("kill -TERM $$"), HasSubstr("log-in was ended by Terminated"));
}

TEST_F(ExecProgram, one_that_is_not_there_is_named_with_the_hint) {
  const Result<ExecCredential> credential =
      run_exec_plugin(plugin_of(with(exec_of("/nowhere/log-in"), "installHint", "apt install log-in")), kEnvironment);
  ASSERT_FALSE(credential.ok());
  EXPECT_EQ(credential.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(credential.error().message,
            "/c: users[u].exec: cannot run /nowhere/log-in: No such file or directory; install it, or put it on "
            "PATH\napt install log-in");
}

TEST_F(ExecProgram, one_that_never_stops_printing_is_ended) {
  EXPECT_THAT(failure("exec yes"), HasSubstr("larger than 1 MiB"));
}

TEST_F(ExecProgram, one_that_must_have_a_terminal_is_not_started_without) {
  EXPECT_THAT(failure("exit 0", {{"interactiveMode", "Always"}}), HasSubstr(".interactiveMode: is Always, and stdin"));
}

}  // namespace
}  // namespace lockstep::kube
