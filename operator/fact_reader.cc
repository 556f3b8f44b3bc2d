#include "operator/fact_reader.h"

#include <set>
#include <utility>

#include "operator/api/trainjob.h"
#include "operator/train/object_names.h"
#include "runner/base/json.h"

namespace lockstep {
namespace {

constexpr const char* kLease = "lockstep-operator";
constexpr int kLogLines = 20;

std::string where(const std::string& ns) { return ns.empty() ? "in all namespaces" : "in namespace " + ns; }

// Names the missing right, so that the user knows which role to ask for.
Error explained(const Error& error, const std::string& verb, const std::string& resource, const std::string& ns) {
  if (error.code != ErrorCode::kForbidden) return error;
  return Error{error.code,
               "no right to " + verb + " " + resource + " " + where(ns) + ": ask for a role with the verb " + verb +
                   " on " + resource + " (" + error.message + ")",
               error.reason};
}

class FactReader {
 public:
  FactReader(kube::Client& client, const FactsQuery& query) : client_(client), query_(query) {
    facts_.ns = query.job.ns;
    facts_.name = query.job.name;
    facts_.now = query.now;
  }

  Result<diagnose::Facts> run() {
    Result<Json> job = client_.get(kube::train_jobs(), query_.job);
    if (job.ok()) {
      facts_.job = *std::move(job);
      read_pods();
      read_events();
      read_lease();
      read_log();
      return std::move(facts_);
    }
    if (job.error().code != ErrorCode::kNotFound) {
      return explained(job.error(), "get", "trainjobs.lockstep.dev", query_.job.ns);
    }
    Result<std::vector<Json>> jobs = read_jobs(client_, query_.job.ns);
    if (!jobs.ok() && jobs.error().code == ErrorCode::kNotFound) return jobs.error();
    if (!jobs.ok()) facts_.unread.push_back(jobs.error().message);
    if (jobs.ok()) {
      for (const Json& one : *jobs) facts_.jobs_there.push_back(api::key_of(one).name);
    }
    return std::move(facts_);
  }

 private:
  void not_read(const Error& error, const std::string& verb, const std::string& resource) {
    facts_.unread.push_back(explained(error, verb, resource, query_.job.ns).message);
  }

  void read_pods() {
    Result<kube::ObjectList> pods = client_.list(
        kube::pods(), {.ns = query_.job.ns, .label_selector = std::string(train::kJobLabel) + "=" + query_.job.name});
    if (!pods.ok()) return not_read(pods.error(), "list", "pods");
    facts_.pods = std::move(pods->items);
  }

  void read_events() {
    const std::string of_the_job =
        "involvedObject.kind=" + std::string(api::kKind) + ",involvedObject.name=" + query_.job.name;
    Result<kube::ObjectList> events = client_.list(kube::events(), {.ns = query_.job.ns, .field_selector = of_the_job});
    if (!events.ok()) return not_read(events.error(), "list", "events");
    const std::string uid = api::meta_of(*facts_.job).uid;
    for (Json& event : events->items) {
      // Events of an earlier job of this name are left out.
      const std::string about = text_field(event, {"involvedObject", "uid"});
      if (about.empty() || about == uid) facts_.events.push_back(std::move(event));
    }
    Result<kube::ObjectList> warnings =
        client_.list(kube::events(), {.ns = query_.job.ns, .field_selector = "involvedObject.kind=Pod,type=Warning"});
    if (!warnings.ok()) return not_read(warnings.error(), "list", "events");
    std::set<std::string> uids;
    for (const Json& pod : facts_.pods) uids.insert(api::meta_of(pod).uid);
    for (Json& event : warnings->items) {
      if (uids.count(text_field(event, {"involvedObject", "uid"})) > 0) facts_.events.push_back(std::move(event));
    }
  }

  // Optional, so errors are ignored: the Lease only shows whether the operator is gone or just slow.
  void read_lease() {
    const Result<Json> lease = client_.get(kube::leases(), {query_.operator_namespace, kLease});
    if (!lease.ok()) return;
    facts_.operator_seen = api::parse_time(text_field(*lease, {"spec", "renewTime"}));
  }

  // Only a missing right is reported: a log may be gone with its node or its pod.
  void read_log() {
    const std::string pod = diagnose::pod_to_read(facts_);
    if (pod.empty()) return;
    Result<std::string> log = client_.pod_log({query_.job.ns, pod}, std::string(train::kTrainerContainer), kLogLines);
    if (log.ok()) {
      facts_.logs[pod] = *std::move(log);
    } else if (log.error().code == ErrorCode::kForbidden) {
      not_read(log.error(), "get", "pods/log");
    }
  }

  kube::Client& client_;
  const FactsQuery& query_;
  diagnose::Facts facts_;
};

}  // namespace

Result<diagnose::Facts> read_facts(kube::Client& client, const FactsQuery& query) {
  return FactReader(client, query).run();
}

Result<std::vector<Json>> read_jobs(kube::Client& client, const std::string& ns) {
  Result<kube::ObjectList> jobs = client.list(kube::train_jobs(), {.ns = ns});
  if (jobs.ok()) return std::move(jobs->items);
  if (jobs.error().code == ErrorCode::kNotFound) {
    return Error{ErrorCode::kNotFound,
                 "this server knows no TrainJobs: install the operator and its CRD (kubectl apply --server-side -k "
                 "manifests/base), or choose another --context"};
  }
  return explained(jobs.error(), "list", "trainjobs.lockstep.dev", ns);
}

}  // namespace lockstep
