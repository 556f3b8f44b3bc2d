// Reads the facts about a TrainJob (diagnose/facts.h) through kubectl, which knows how its user reaches and enters a
// cluster.
#pragma once

#include <string>

#include "operator/diagnose/facts.h"
#include "operator/manifest/kubectl.h"

namespace lockstep {

// Runs kubectl with these arguments, and with the options that its user has given.
using AskKubectl = std::function<Result<manifest::ProgramEnd>(const std::vector<std::string>& arguments)>;

struct FactsQuery {
  api::ObjectKey job;
  std::string operator_namespace;
  api::UnixSeconds now = 0;
};

// Objects that may not be read become a note in the facts; only for the TrainJob itself this is an error. Errors:
// kForbidden names the verb and the resource; kNotFound: a server without the CRD; kUnavailable has kubectl's words.
Result<diagnose::Facts> read_facts(const AskKubectl& kubectl, const FactsQuery& query);

// The TrainJobs of a namespace; of all when it is empty.
Result<std::vector<Json>> read_jobs(const AskKubectl& kubectl, const std::string& ns);

// The namespace of the context that kubectl uses, in a pod that of the pod; "default" where neither says one.
Result<std::string> current_namespace(const AskKubectl& kubectl);

}  // namespace lockstep
