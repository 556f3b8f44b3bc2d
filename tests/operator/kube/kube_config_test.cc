// kubeconfig as kubectl and kubeadm write it, what is refused, and what a pod finds in itself.
#include "operator/kube/kube_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace lockstep::kube {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr const char* kTwoContexts = R"(
apiVersion: v1
kind: Config
preferences: {}
current-context: admin@lab
clusters:
- name: lab
  cluster:
    server: https://10.0.0.1:6443
    certificate-authority-data: Q0E=
- name: prod
  cluster:
    server: https://api.prod.example.com
    certificate-authority: pki/ca.crt
    tls-server-name: kubernetes
users:
- name: admin
  user:
    client-certificate-data: Q0VSVA==
    client-key-data: S0VZ
- name: robot
  user:
    token: abc.def
    tokenFile: token
- name: nobody
contexts:
- name: admin@lab
  context: {cluster: lab, user: admin, namespace: team-a}
- name: robot@prod
  context: {cluster: prod, user: robot}
- name: nobody@lab
  context: {cluster: lab, user: nobody}
- name: anonymous@lab
  context: {cluster: lab}
)";

Result<ServerAccess> select(const std::string& text, const std::string& context = "") {
  const Result<KubeConfigFile> file = parse_kube_config(text, "/home/me/.kube/config");
  if (!file.ok()) return file.error();
  return select_access({*file}, context);
}

std::string refusal(const std::string& text, const std::string& context = "") {
  const Result<ServerAccess> access = select(text, context);
  if (access.ok()) return "accepted";
  EXPECT_EQ(access.error().code, ErrorCode::kInvalid);
  return access.error().message;
}

// One cluster, one user, one context, with these bodies.
std::string config_of(const std::string& cluster, const std::string& user) {
  return "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\nclusters: [{name: k, cluster: " +
         cluster + "}]\nusers: [{name: u, user: " + user + "}]\n";
}
constexpr const char* kGoodCluster = "{server: 'https://a'}";

TEST(KubeConfig, the_current_context_is_used) {
  const Result<ServerAccess> access = select(kTwoContexts);
  ASSERT_TRUE(access.ok()) << access.error().message;
  EXPECT_EQ(access->url, "https://10.0.0.1:6443");
  EXPECT_EQ(access->tls.authority, (PemSource{"", "CA"}));
  EXPECT_EQ(access->tls.client_certificate, (PemSource{"", "CERT"}));
  EXPECT_EQ(access->tls.client_key, (PemSource{"", "KEY"}));
  EXPECT_EQ(access->ns, "team-a");
  EXPECT_EQ(access->token, "");
  EXPECT_EQ(access->source, "kubeconfig /home/me/.kube/config, context admin@lab");
  EXPECT_THAT(access->warnings, IsEmpty());
}

TEST(KubeConfig, a_context_can_be_named_and_paths_start_from_the_file) {
  const Result<ServerAccess> access = select(kTwoContexts, "robot@prod");
  ASSERT_TRUE(access.ok()) << access.error().message;
  EXPECT_EQ(access->url, "https://api.prod.example.com");
  EXPECT_EQ(access->tls.authority, (PemSource{"/home/me/.kube/pki/ca.crt", ""}));
  EXPECT_EQ(access->tls.server_name, "kubernetes");
  EXPECT_EQ(access->token, "abc.def");
  EXPECT_EQ(access->token_file, "/home/me/.kube/token");
  EXPECT_EQ(access->ns, "");
}

TEST(KubeConfig, a_user_may_have_no_credentials) {
  EXPECT_TRUE(select(kTwoContexts, "nobody@lab").ok());
  EXPECT_TRUE(select(kTwoContexts, "anonymous@lab").ok());
}

TEST(KubeConfig, what_stands_inline_wins_over_a_file) {
  const Result<ServerAccess> access = select(
      config_of("{server: 'https://a', certificate-authority: /x, certificate-authority-data: Q0E=}", "{token: t}"));
  ASSERT_TRUE(access.ok());
  EXPECT_EQ(access->tls.authority, (PemSource{"", "CA"}));
}

TEST(KubeConfig, unknown_names_are_said_with_the_known_ones) {
  EXPECT_THAT(refusal(kTwoContexts, "robot@prad"), HasSubstr("did you mean \"robot@prod\"?"));
  EXPECT_EQ(refusal(kTwoContexts, "elsewhere"),
            "/home/me/.kube/config: the request names the context \"elsewhere\", which is not in contexts; there is "
            "\"admin@lab\", "
            "\"anonymous@lab\", \"nobody@lab\", \"robot@prod\"");
  EXPECT_THAT(
      refusal("current-context: c"),
      StartsWith(
          "/home/me/.kube/config: current-context names the context \"c\", which is not in contexts (there is none)"));
  EXPECT_THAT(refusal("current-context: c\ncontexts: [{name: c, context: {cluster: k}}]"),
              StartsWith("/home/me/.kube/config: contexts[c] names the cluster \"k\", which is not in clusters"));
}

TEST(KubeConfig, what_is_not_supported_is_refused_with_the_way_out) {
  const std::string way_out =
      "; use a service account's token (token or tokenFile) or a client certificate (client-certificate, client-key)";
  const auto of_user = [&](const std::string& user) { return refusal(config_of(kGoodCluster, user)); };
  EXPECT_THAT(of_user("{auth-provider: {name: gcp}}"), HasSubstr("users[u].auth-provider: is not supported"));
  EXPECT_THAT(of_user("{auth-provider: {name: gcp}}"), HasSubstr(way_out));
  EXPECT_THAT(of_user("{username: me, password: secret}"), HasSubstr("no basic authentication"));
  EXPECT_THAT(of_user("{username: me, password: secret}"), ::testing::Not(HasSubstr("secret")));
  EXPECT_THAT(of_user("{token: t, as: somebody}"), HasSubstr("users[u].as: acting as somebody else is not supported"));
  EXPECT_THAT(of_user("{token: t, as-groups: [g]}"), HasSubstr("users[u].as-groups"));
  EXPECT_EQ(of_user("{token: t, exec: null, as-groups: []}"), "accepted");
  EXPECT_THAT(refusal(config_of("{server: 'https://a', proxy-url: 'http://proxy'}", "{}")),
              HasSubstr("clusters[k].proxy-url: proxies are not supported"));
}

TEST(KubeConfig, a_program_that_logs_in_is_refused_where_it_is_needed) {
  const std::string exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: log-in}";
  EXPECT_THAT(
      refusal(config_of(kGoodCluster, "{" + exec + "}")),
      StartsWith("/home/me/.kube/config: users[u].exec: programs that log in are not run, because the credentials "
                 "that they give expire; use a service account's token"));
  EXPECT_EQ(refusal(config_of(kGoodCluster, "{token: t, " + exec + "}")), "accepted");
}

TEST(KubeConfig, wrong_fields_are_named) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {config_of("{}", "{}"), "clusters[k].server: is missing; expected https://HOST:PORT"},
      {config_of("{server: 6443}", "{}"), "clusters[k].server: is number, expected a string"},
      {config_of("{server: 'a:6443'}", "{}"), "clusters[k].server: the server's address \"a:6443\" does not begin"},
      {config_of("{server: 'https://a', certificate-authority-data: '%%'}", "{}"),
       "clusters[k].certificate-authority-data: is not base64"},
      {config_of("{server: 'https://a', insecure-skip-tls-verify: 'yes'}", "{}"),
       "clusters[k].insecure-skip-tls-verify: is string, expected true or false"},
      {config_of("{server: 'https://a', insecure-skip-tls-verify: true, certificate-authority: ca}", "{}"),
       "expected one of the two"},
      {config_of(kGoodCluster, "{client-certificate: c}"), "users[u]: has client-certificate without client-key"},
      {config_of(kGoodCluster, "{client-key: c}"), "users[u]: has client-key without client-certificate"},
      {config_of(kGoodCluster, "{token: 'a b'}"), "users[u].token: is not one word"},
      {config_of(kGoodCluster, "{token: \"a\\nb\"}"), "users[u].token: is not one word"},
      {config_of(kGoodCluster, "{token: [a]}"), "users[u].token: is array, expected a string"},
      {config_of(kGoodCluster, "token"), "users[u].user: is not a map"},
      {"current-context: 5", "current-context: is number, expected a string"},
      {"current-context: c\ncontexts: {}", "contexts: is object, expected a list"},
      {"current-context: c\ncontexts: [c]", "contexts: holds an entry that is not a map"},
      {"current-context: c\ncontexts: [{context: {}}]", "contexts: holds an entry without a name"},
      {"current-context: c\ncontexts: [{name: c}]", "contexts[c].cluster: is missing"},
      {"", "has no current-context; set one (kubectl config use-context NAME)"},
      {"- a", "is not a kubeconfig"},
      {"kind: Secret", "kind: is \"Secret\", expected Config"},
      {"a: 1\n---\nb: 2\n", "holds several YAML documents"},
      {"a: 1\na: 2\n", "/home/me/.kube/config:2:1: the key \"a\" is given twice"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string message = refusal(text);
    EXPECT_THAT(message, HasSubstr(expected)) << text;
    EXPECT_THAT(message, HasSubstr("/home/me/.kube/config")) << text;
  }
}

TEST(KubeConfig, dangerous_settings_are_accepted_with_a_warning) {
  const Result<ServerAccess> skip = select(config_of("{server: 'https://a', insecure-skip-tls-verify: true}", "{}"));
  ASSERT_TRUE(skip.ok());
  EXPECT_TRUE(skip->tls.skip_verify);
  EXPECT_THAT(skip->warnings, ElementsAre(HasSubstr("the server's certificate is not checked")));
  const Result<ServerAccess> plain = select(config_of("{server: 'http://a'}", "{token: t}"));
  ASSERT_TRUE(plain.ok());
  EXPECT_THAT(plain->warnings, ElementsAre(HasSubstr("in the clear")));
}

TEST(KubeConfigFiles, of_several_the_first_that_says_something_wins) {
  const TemporaryFolder folder;
  const std::string a = folder.write("a/config",
                                     "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
                                     "users: [{name: u, user: {tokenFile: t}}]\n");
  const std::string b = folder.write("b/config",
                                     "current-context: c\n"
                                     "clusters: [{name: k, cluster: {server: 'https://b', "
                                     "certificate-authority: ca}}]\n"
                                     "users: [{name: u, user: {token: other}}]\n"
                                     "contexts: [{name: c, context: {cluster: nowhere}}]\n");
  const Result<ServerAccess> access = load_kube_config(folder.path() + "/missing::" + a + ":" + b, "");
  ASSERT_TRUE(access.ok()) << access.error().message;
  EXPECT_EQ(access->url, "https://b");
  EXPECT_EQ(access->tls.authority.file, folder.path() + "/b/ca");
  EXPECT_EQ(access->token_file, folder.path() + "/a/t");
  EXPECT_EQ(access->token, "");
}

TEST(KubeConfigFiles, missing_files_are_named) {
  const TemporaryFolder folder;
  const std::string one = folder.path() + "/one";
  const Result<ServerAccess> single = load_kube_config(one, "");
  EXPECT_EQ(single.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(single.error().message, HasSubstr("kubeconfig: open " + one));
  const Result<ServerAccess> several = load_kube_config(one + ":" + one, "");
  EXPECT_EQ(several.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(several.error().message, HasSubstr("none of these files exists: " + one));
  EXPECT_EQ(load_kube_config("", "").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(load_kube_config(folder.path(), "").error().message, HasSubstr("is not a file"));
}

TEST(InCluster, a_pod_finds_its_server_and_its_files) {
  const TemporaryFolder folder;
  folder.write("ca.crt", "CA");
  folder.write("token", "t\n");
  folder.write("namespace", "lockstep-system\n");
  const Result<ServerAccess> access = in_cluster_access("10.96.0.1", "443", folder.path());
  ASSERT_TRUE(access.ok()) << access.error().message;
  EXPECT_EQ(access->url, "https://10.96.0.1:443");
  EXPECT_EQ(access->tls.authority.file, folder.path() + "/ca.crt");
  EXPECT_EQ(access->token_file, folder.path() + "/token");
  EXPECT_EQ(access->ns, "lockstep-system");
  EXPECT_EQ(in_cluster_access("fd00::1", "443", folder.path())->url, "https://[fd00::1]:443");
}

TEST(InCluster, what_is_missing_is_said) {
  const TemporaryFolder folder;
  EXPECT_THAT(in_cluster_access("", "443", folder.path()).error().message,
              StartsWith("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"));
  EXPECT_THAT(in_cluster_access("a", "x", folder.path()).error().message, StartsWith("KUBERNETES_SERVICE_HOST"));
  EXPECT_THAT(in_cluster_access("a", "443", folder.path()).error().message, HasSubstr("/ca.crt"));
  folder.write("ca.crt", "CA");
  const Result<ServerAccess> no_token = in_cluster_access("a", "443", folder.path());
  EXPECT_THAT(no_token.error().message, HasSubstr("/token"));
  EXPECT_THAT(no_token.error().message, HasSubstr("automountServiceAccountToken"));
}

TEST(Base64, is_decoded_as_rfc_4648_has_it) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"", ""},
                                                                  {"Zg==", "f"},
                                                                  {"Zm8=", "fo"},
                                                                  {"Zm9v", "foo"},
                                                                  {"Zm9vYg==", "foob"},
                                                                  {"Zm9vYmE=", "fooba"},
                                                                  {"Zm9vYmFy", "foobar"},
                                                                  {"/+8=", "\xff\xef"},
                                                                  {"Zm9v\nYmFy\r\n", "foobar"}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(*base64_decoded(text), bytes) << text;
  for (const char* text : {"Z", "Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zm9v=", "Zm9v====", "Z-8=", "Zm%v"}) {
    EXPECT_FALSE(base64_decoded(text).ok()) << text;
  }
}

}  // namespace
}  // namespace lockstep::kube
