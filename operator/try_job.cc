#include "operator/try_job.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <stop_token>
#include <utility>

#include "operator/access.h"
#include "operator/api/trainjob.h"
#include "operator/api/yaml.h"
#include "operator/kube/client.h"
#include "operator/kube/cpprest_transport.h"
#include "operator/kube/small_file.h"
#include "operator/options.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr seconds kWatchAtMost{290};  // as an informer's
constexpr double kRequestsPerSecond = 5.0;
constexpr int kBurst = 10;
constexpr const char* kDefaultNamespace = "default";

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string name_of(const api::ObjectKey& key) { return "TrainJob " + key.ns + "/" + key.name; }

// Speaks with one API server about one TrainJob.
class Trial {
 public:
  Trial(const TryOptions& options, Json job, api::ObjectKey key, kube::ServerAccess access)
      : options_(options), job_(std::move(job)), key_(std::move(key)), access_(std::move(access)) {}

  Status connect() {
    TRY_ASSIGN(transport_, kube::make_cpprest_transport({.url = access_.url, .tls = access_.tls}));
    kube::ClientOptions client = client_options(access_, "lockstep-operator-try");
    client.requests_per_second = kRequestsPerSecond;
    client.burst = kBurst;
    client_ = std::make_unique<kube::Client>(transport_, std::move(client));
    return {};
  }

  Status run() {
    TRY_ASSIGN(const Json made, create());
    say(name_of(key_) + " is made; waiting at most " + std::to_string(options_.timeout.count()) + " s for its end");
    const Clock::time_point begin = Clock::now();
    std::string line;
    std::optional<bool> has_succeeded;
    bool is_gone = false;
    TRY_ASSIGN(const bool in_time, follow(begin + options_.timeout, [&](const Json* job) {
                 is_gone = job == nullptr;
                 if (is_gone) return true;
                 const TryProgress progress = try_progress(*job);
                 if (!progress.line.empty() && progress.line != line) say("  " + progress.line);
                 line = progress.line;
                 has_succeeded = progress.has_succeeded;
                 return has_succeeded.has_value();
               }));
    if (in_time && has_succeeded == true) return finish(made, begin);
    if (is_gone) return Error{ErrorCode::kCancelled, name_of(key_) + " was deleted by somebody else"};
    return in_time ? failed(line) : late(line);
  }

 private:
  Result<Json> create() {
    const kube::CreateOptions strict{.strict_fields = true};
    Result<Json> made = client_->create(kube::kTrainJobs, job_, strict);
    if (!made.ok() && made.error().code == ErrorCode::kExists) {
      if (!options_.replace) {
        return Error{ErrorCode::kExists, name_of(key_) + " exists already: delete it, or give --replace"};
      }
      TRY(remove_old());
      made = client_->create(kube::kTrainJobs, job_, strict);
    }
    if (!made.ok() && made.error().code == ErrorCode::kNotFound) {
      return Error{
          ErrorCode::kNotFound,
          made.error().message + ": check that the CRD trainjobs.lockstep.dev and the namespace " + key_.ns + " exist"};
    }
    return made;
  }

  Status remove_old() {
    say(name_of(key_) + ", left by an earlier test, is being deleted");
    const Status removed = client_->remove(kube::kTrainJobs, key_);
    if (!removed.ok() && removed.error().code != ErrorCode::kNotFound) return removed;
    TRY_ASSIGN(const bool gone,
               follow(Clock::now() + options_.timeout, [](const Json* job) { return job == nullptr; }));
    if (gone) return {};
    return Error{ErrorCode::kCancelled, name_of(key_) + ", left by an earlier test, was not deleted in time"};
  }

  // Shows the job as it is now and at each change (nullptr: it is gone) until `is_over` says true. False: too late.
  Result<bool> follow(Clock::time_point deadline, const std::function<bool(const Json*)>& is_over) {
    while (Clock::now() < deadline) {
      const Result<Json> job = client_->get(kube::kTrainJobs, key_);
      if (!job.ok() && job.error().code == ErrorCode::kNotFound) return is_over(nullptr);
      if (!job.ok() && job.error().code == ErrorCode::kRetry) continue;
      if (!job.ok()) return job.error();
      if (is_over(&*job)) return true;
      TRY_ASSIGN(const bool done, watch(api::meta_of(*job).resource_version, deadline, is_over));
      if (done) return true;
    }
    return false;
  }

  // One watch. False: it ended before `is_over` said true.
  Result<bool> watch(const std::string& version, Clock::time_point deadline,
                     const std::function<bool(const Json*)>& is_over) {
    const auto left = std::chrono::ceil<seconds>(deadline - Clock::now());
    bool done = false;
    std::stop_source stop;
    const Status ended = client_->watch(
        kube::kTrainJobs,
        {.ns = key_.ns,
         .label_selector = "",
         .field_selector = "metadata.name=" + key_.name,
         .resource_version = version,
         .server_timeout = std::clamp(left, seconds{1}, kWatchAtMost)},
        [&](const kube::WatchEvent& event) {
          if (done || event.type == kube::WatchEvent::Type::kBookmark) return;
          const bool is_gone = event.type == kube::WatchEvent::Type::kDeleted;
          done = is_over(is_gone ? nullptr : &event.object);
          if (done) stop.request_stop();
        },
        stop.get_token());
    const bool may_go_on = ended.ok() || ended.error().code == ErrorCode::kRetry ||
                           ended.error().code == ErrorCode::kGone || ended.error().code == ErrorCode::kCorrupt;
    if (done || may_go_on) return done;
    return ended.error();
  }

  Status finish(const Json& made, Clock::time_point begin) {
    const auto took = std::chrono::round<seconds>(Clock::now() - begin);
    const Status removed = client_->remove(kube::kTrainJobs, key_, {.uid = api::meta_of(made).uid});
    if (!removed.ok() && removed.error().code != ErrorCode::kNotFound) return removed;
    say(name_of(key_) + " was complete after " + std::to_string(took.count()) + " s, and is deleted");
    return {};
  }

  std::string what_to_look_at() const {
    const std::string where = " -n " + key_.ns + " ";
    return "; it stays: kubectl describe tj" + where + key_.name + "; kubectl logs" + where + key_.name +
           "-0-0; kubectl delete tj" + where + key_.name;
  }

  Error failed(const std::string& line) const {
    return {ErrorCode::kCancelled, name_of(key_) + " has failed: " + line + what_to_look_at()};
  }

  Error late(const std::string& line) const {
    std::string text = name_of(key_) + " has not ended within " + std::to_string(options_.timeout.count()) + " s: ";
    if (line.empty()) {
      text.append("no operator has looked at it. Does one run, and look after the namespace ").append(key_.ns);
      text.append("? kubectl get deployments -A -l app.kubernetes.io/name=lockstep");
    } else {
      text.append(line);
    }
    return {ErrorCode::kCancelled, text + what_to_look_at()};
  }

  const TryOptions& options_;  // the caller's, who waits for run()
  const Json job_;
  const api::ObjectKey key_;
  const kube::ServerAccess access_;
  std::shared_ptr<kube::HttpTransport> transport_;
  std::unique_ptr<kube::Client> client_;
};

Result<Json> read_job(const std::string& path) {
  TRY_ASSIGN(const std::string text, kube::read_small_file(path));
  TRY_ASSIGN(const OrderedJson document, api::parse_yaml(text, path));
  Json job = document;
  const auto word = [&job](const char* name) { return text_field(job, {name}); };
  if (word("apiVersion") != api::kApiVersion || word("kind") != api::kKind) {
    return invalid(path, "is apiVersion \"" + word("apiVersion") + "\", kind \"" + word("kind") + "\", expected " +
                             std::string(api::kApiVersion) + ", " + std::string(api::kKind));
  }
  if (api::key_of(job).name.empty()) return invalid(path, "metadata.name is missing");
  return job;
}

}  // namespace

Result<std::optional<TryOptions>> parse_try_options(const std::vector<std::string>& arguments) {
  TryOptions options;
  int64_t timeout = options.timeout.count();
  CLI::App app("Creates the TrainJob of a file, reports what happens to it until it ends, and deletes it.",
               "lockstep-operator try");
  app.add_option("file", options.file, "YAML or JSON of one TrainJob")->required();
  app.add_option("--kubeconfig", options.kubeconfig,
                 "kubeconfig file; without it KUBECONFIG, else the pod's service account, else ~/.kube/config");
  app.add_option("--context", options.context, "context of the kubeconfig; its current one by default");
  app.add_option("--namespace", options.ns, "where; the file's by default, else the kubeconfig's or the pod's");
  app.add_option("--timeout_seconds", timeout, "how long it may take")
      ->capture_default_str()
      ->check(CLI::Range(1, 86'400));
  app.add_flag("--replace", options.replace, "delete a TrainJob of that name first");
  TRY_ASSIGN(const bool goes_on, parse_arguments(app, arguments));
  options.timeout = seconds{timeout};
  return goes_on ? std::optional<TryOptions>(std::move(options)) : std::nullopt;
}

TryProgress try_progress(const Json& job) {
  const Result<api::TrainJob> read = api::trainjob_from_json(job);
  if (!read.ok()) return {.line = "its status cannot be read: " + read.error().message, .has_succeeded = std::nullopt};
  const api::TrainJobStatus& status = read->status;
  TryProgress progress;
  if (status.phase) {
    progress.line.append(api::to_string(*status.phase)).append(": ").append(status.message);
    if (status.progress && status.progress->total_steps > 0) {
      progress.line.append("; step ").append(std::to_string(status.progress->step));
      progress.line.append(" of ").append(std::to_string(status.progress->total_steps));
    }
  }
  if (status.conditions.is_true(api::condition::kComplete)) progress.has_succeeded = true;
  if (status.conditions.is_true(api::condition::kFailed)) progress.has_succeeded = false;
  return progress;
}

Status try_job(const TryOptions& options, const Environment& environment) {
  TRY_ASSIGN(Json job, read_job(options.file));
  TRY_ASSIGN(kube::ServerAccess access, find_access(options.kubeconfig, options.context, environment));
  api::ObjectKey key = api::key_of(job);
  if (!options.ns.empty()) key.ns = options.ns;
  if (key.ns.empty()) key.ns = access.ns.empty() ? kDefaultNamespace : access.ns;
  job["metadata"]["namespace"] = key.ns;
  Trial trial(options, std::move(job), std::move(key), std::move(access));
  TRY(trial.connect());
  return trial.run();
}

}  // namespace lockstep
