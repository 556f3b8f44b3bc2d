#include "operator/fact_reader.h"

#include <fstream>
#include <set>
#include <utility>

#include "operator/api/trainjob.h"
#include "operator/manifest/rendered_objects.h"
#include "operator/train/object_names.h"
#include "runner/base/json.h"

namespace lockstep {
namespace {

constexpr const char* kLease = "lockstep-operator";
constexpr const char* kNamespaceOfPod = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

// The path of a namespace's objects of one kind; of all namespaces when it is empty.
std::string path_of(const std::string& group, const std::string& ns, const std::string& plural) {
  return group + (ns.empty() ? "" : "/namespaces/" + ns) + "/" + plural;
}
std::string path_of_jobs(const std::string& ns) {
  return path_of("/apis/" + std::string(api::kApiVersion), ns, "trainjobs");
}

// What kubectl printed. Errors: in its words, with the code of the API server's reason.
Result<std::string> output_of(Result<manifest::ProgramEnd> end) {
  if (!end.ok()) return end.error();
  if (end->code == 0) return std::move(end->out);
  const auto says = [&](const char* reason) {
    return end->err.find(std::string("Error from server (") + reason + ")") != std::string::npos;
  };
  std::string words = end->err;
  while (!words.empty() && words.back() == '\n') words.pop_back();
  if (words.empty()) words = "kubectl ended with " + std::to_string(end->code) + " and said nothing";
  return Error{says("NotFound")    ? ErrorCode::kNotFound
               : says("Forbidden") ? ErrorCode::kForbidden
                                   : ErrorCode::kUnavailable,
               words};
}

Result<Json> get(const AskKubectl& kubectl, const std::string& path) {
  TRY_ASSIGN(const std::string text, output_of(kubectl({"get", "--raw", path})));
  return parse_json(text, path);
}

Result<std::vector<Json>> list(const AskKubectl& kubectl, const std::string& path) {
  TRY_ASSIGN(const Json list, get(kubectl, path));
  const Json& items = list_field(list, {"items"});
  return std::vector<Json>(items.begin(), items.end());
}

// Names the missing right, so that the user knows which role to ask for.
Error explained(const Error& error, const std::string& verb, const std::string& resource, const std::string& ns) {
  const std::string where = ns.empty() ? "in all namespaces" : "in namespace " + ns;
  if (error.code != ErrorCode::kForbidden) return error.with_context(verb + " " + resource + " " + where);
  return Error{error.code, "no right to " + verb + " " + resource + " " + where + ": ask for a role with the verb " +
                               verb + " on " + resource + " (" + error.message + ")"};
}

class FactReader {
 public:
  FactReader(const AskKubectl& kubectl, const FactsQuery& query) : kubectl_(kubectl), query_(query) {
    facts_.ns = query.job.ns;
    facts_.name = query.job.name;
    facts_.now = query.now;
  }

  Result<diagnose::Facts> run() {
    Result<Json> job = get(kubectl_, path_of_jobs(query_.job.ns) + "/" + query_.job.name);
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
    Result<std::vector<Json>> jobs = read_jobs(kubectl_, query_.job.ns);
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
    Result<std::vector<Json>> pods =
        list(kubectl_, path_of("/api/v1", query_.job.ns, "pods") + "?labelSelector=" + std::string(train::kJobLabel) +
                           "=" + query_.job.name);
    if (!pods.ok()) return not_read(pods.error(), "list", "pods");
    facts_.pods = *std::move(pods);
  }

  // Those of earlier objects of the same names are left out.
  void read_events() {
    std::set<std::string> uids = {"", api::meta_of(*facts_.job).uid};
    if (!add_events("involvedObject.kind=" + std::string(api::kKind) + ",involvedObject.name=" + query_.job.name, uids))
      return;
    uids.clear();
    for (const Json& pod : facts_.pods) uids.insert(api::meta_of(pod).uid);
    add_events("involvedObject.kind=Pod,type=Warning", uids);
  }

  // Those about objects with one of these UIDs.
  bool add_events(const std::string& field_selector, const std::set<std::string>& uids) {
    Result<std::vector<Json>> events =
        list(kubectl_, path_of("/api/v1", query_.job.ns, "events") + "?fieldSelector=" + field_selector);
    if (!events.ok()) {
      not_read(events.error(), "list", "events");
      return false;
    }
    for (Json& event : *events) {
      if (uids.count(text_field(event, {"involvedObject", "uid"})) > 0) facts_.events.push_back(std::move(event));
    }
    return true;
  }

  // Optional, so errors are ignored: the Lease only shows whether the operator is gone or just slow.
  void read_lease() {
    const Result<Json> lease =
        get(kubectl_, path_of("/apis/coordination.k8s.io/v1", query_.operator_namespace, "leases") + "/" + kLease);
    if (!lease.ok()) return;
    facts_.operator_seen = api::parse_time(text_field(*lease, {"spec", "renewTime"}));
  }

  // Only a missing right is reported: a log may be gone with its node or its pod.
  void read_log() {
    const std::string pod = diagnose::pod_to_read(facts_);
    if (pod.empty()) return;
    Result<std::string> log =
        output_of(kubectl_({"logs", "--namespace=" + query_.job.ns, pod, "--tail=20", "--limit-bytes=65536",
                            "--container=" + std::string(train::kTrainerContainer)}));
    if (log.ok()) {
      facts_.logs[pod] = *std::move(log);
    } else if (log.error().code == ErrorCode::kForbidden) {
      not_read(log.error(), "get", "pods/log");
    }
  }

  const AskKubectl& kubectl_;
  const FactsQuery& query_;
  diagnose::Facts facts_;
};

}  // namespace

Result<diagnose::Facts> read_facts(const AskKubectl& kubectl, const FactsQuery& query) {
  return FactReader(kubectl, query).run();
}

Result<std::vector<Json>> read_jobs(const AskKubectl& kubectl, const std::string& ns) {
  Result<std::vector<Json>> jobs = list(kubectl, path_of_jobs(ns));
  if (jobs.ok()) return jobs;
  if (jobs.error().code == ErrorCode::kNotFound) {
    return Error{ErrorCode::kNotFound,
                 "this server knows no TrainJobs: install the operator and its CRD (kubectl apply --server-side -k "
                 "manifests/base), or choose another --context"};
  }
  return explained(jobs.error(), "list", "trainjobs.lockstep.dev", ns);
}

Result<std::string> current_namespace(const AskKubectl& kubectl) {
  TRY_ASSIGN(const manifest::ProgramEnd end,
             kubectl({"config", "view", "--minify", "--output=jsonpath={.contexts[0].context.namespace}"}));
  std::string ns = end.code == 0 ? end.out : "";
  // Without a kubeconfig there is no context to show, and kubectl uses the service account of its pod.
  if (end.code != 0) std::getline(std::ifstream(kNamespaceOfPod), ns);
  return ns.empty() ? std::string(manifest::kDefaultNamespace) : ns;
}

}  // namespace lockstep
