// Facts: all that `kubectl lockstep why` knows of one TrainJob, as the API server answered it. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "operator/api/object_meta.h"
#include "runner/base/json.h"

namespace lockstep::diagnose {

struct Facts {
  std::string ns;
  std::string name;
  api::UnixSeconds now = 0;
  std::optional<Json> job;                        // nothing: there is none of this name
  std::vector<std::string> jobs_there;            // names of the namespace's TrainJobs, when there is none of this name
  std::vector<Json> pods;                         // that have the job's label
  std::vector<Json> events;                       // core/v1, of the job and of its pods
  std::map<std::string, std::string> logs;        // pod → newest lines of its trainer
  std::optional<api::UnixSeconds> operator_seen;  // the Lease's last renewal; nothing: not known
  std::vector<std::string> unread;                // what could not be asked, and why: one sentence each
};

// The pod whose log says most: the one with the newest bad end, else one that runs and is not ready; "": there is none.
std::string pod_to_read(const Facts& facts);

}  // namespace lockstep::diagnose
