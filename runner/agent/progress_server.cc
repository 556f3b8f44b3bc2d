#include "runner/agent/progress_server.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "runner/base/random_hex.h"
#include "runner/base/same_secret.h"

namespace lockstep {
namespace {

constexpr const char* kUrl = "KUBEFLOW_TRAINER_SERVER_URL";
constexpr const char* kTokenFile = "KUBEFLOW_TRAINER_SERVER_TOKEN";
constexpr const char* kPath = "/progress";
constexpr const char* kLoopback = "127.0.0.1";
constexpr size_t kTokenDigits = 32;

Status write_secret(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const std::string why = std::strerror(errno);
  if (fd >= 0) ::close(fd);
  if (!written) return Error{ErrorCode::kUnavailable, "cannot write " + path + ": " + why};
  return {};
}

HttpAnswer answer_to(const HttpRequest& request, const std::string& token,
                     const std::function<void(ProgressReport)>& on_report) {
  if (request.path != kPath) return {404, kTextType, std::string("not found; there is ") + kPath + "\n"};
  if (request.method != "POST") return {405, kTextType, "found GET, expected POST\n"};
  if (!same_secret("Bearer " + token, request.authorization)) {
    return {401, kTextType,
            std::string("Authorization must be \"Bearer \" and what the file ") + kTokenFile + " holds\n"};
  }
  Result<ProgressReport> report = parse_progress_report(request.body);
  if (!report.ok()) return {400, kTextType, report.error().message + "\n"};
  on_report(std::move(*report));
  return {200, kJsonType, "{}\n"};
}

// urllib and requests send what is for 127.0.0.1 to a proxy, too, unless they are told not to.
void go_around_the_proxy(Environment& environment) {
  constexpr std::array<std::string_view, 4> kProxies = {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"};
  const bool has_proxy = std::any_of(kProxies.begin(), kProxies.end(), [&environment](std::string_view name) {
    return !variable(environment, name).empty();
  });
  if (!has_proxy) return;
  const bool is_upper = variable(environment, "no_proxy").empty() && !variable(environment, "NO_PROXY").empty();
  std::string& direct = environment[is_upper ? "NO_PROXY" : "no_proxy"];
  if (direct == "*" || direct.find(kLoopback) != std::string::npos) return;
  direct += (direct.empty() ? "" : ",") + std::string(kLoopback);
}

}  // namespace

Result<std::unique_ptr<ProgressServer>> ProgressServer::start(const std::string& folder,
                                                              std::function<void(ProgressReport)> on_report) {
  const std::string token = random_hex(kTokenDigits);
  std::string token_file = folder + "/progress-token";
  TRY(write_secret(token_file, token));
  TRY_ASSIGN(std::unique_ptr<HttpServer> server,
             HttpServer::start({.port = 0,
                                .is_loopback = true,
                                .body_max = kProgressReportBytesMax,
                                .handler = [token, on_report = std::move(on_report)](const HttpRequest& request) {
                                  return answer_to(request, token, on_report);
                                }}));
  return std::unique_ptr<ProgressServer>(new ProgressServer(std::move(token_file), std::move(server)));
}

ProgressServer::ProgressServer(std::string token_file, std::unique_ptr<HttpServer> server)
    : token_file_(std::move(token_file)), server_(std::move(server)) {}

void ProgressServer::add_variables(Environment& environment) const {
  if (!variable(environment, kUrl).empty()) return;
  environment[kUrl] = std::string("http://") + kLoopback + ":" + std::to_string(server_->port()) + kPath;
  environment[kTokenFile] = token_file_;
  environment.erase("KUBEFLOW_TRAINER_SERVER_CA_CERT");
  go_around_the_proxy(environment);
}

}  // namespace lockstep
