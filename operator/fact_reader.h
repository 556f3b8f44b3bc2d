// Reads the facts about a TrainJob (diagnose/facts.h) from an API server.
#pragma once

#include <string>

#include "operator/diagnose/facts.h"
#include "operator/kube/client.h"

namespace lockstep {

struct FactsQuery {
  api::ObjectKey job;
  std::string operator_namespace;
  api::UnixSeconds now = 0;
};

// Objects that may not be read become a note in the facts; only for the TrainJob itself this is an error. Errors: those
// of the client; kForbidden names the verb and the resource, kNotFound a server without the CRD.
Result<diagnose::Facts> read_facts(kube::Client& client, const FactsQuery& query);

// The TrainJobs of a namespace; of all when it is empty.
Result<std::vector<Json>> read_jobs(kube::Client& client, const std::string& ns);

}  // namespace lockstep
