// spec.trainer.podTemplate: what it may say, and where it stands in the pod that is made of it. Pure.
//
// The template preserves unknown fields, so nothing is known of its types until it has been read here. Errors
// (kInvalid) name the field by its path from `spec`, what was found, and what to do.
#pragma once

#include <string>

#include "operator/api/trainjob.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::train {

inline constexpr std::string_view kTemplatePath = "spec.trainer.podTemplate";

// `parent[name]`: made when it is missing or null; kInvalid when it is something else. `path` is that of the member.
Result<Json*> object_member(Json& parent, const std::string& name, const std::string& path);
Result<Json*> list_member(Json& parent, const std::string& name, const std::string& path);
// The same for reading. An empty one when it is missing.
Result<Json> object_of(const Json& parent, const std::string& name, const std::string& path);

// Refuses what would break the contract: a hostname of its own, a restart policy, reserved variables, labels, volumes,
// …
Status check_pod_template(const api::TrainJobSpec& spec);

// Where a runtime mounts a mountPath, without slashes twice or at the end: "/dev//shm/" → "/dev/shm". The API server
// compares the texts as they are; of two mounts at one place the second hides the first.
std::string mount_point(const std::string& mount_path);

// The container named `trainer`; -1 when the template has none. Only after check_pod_template.
int trainer_index(const Json& pod_template);
// The trainer that the template has; an empty object: it has none.
const Json& template_trainer(const api::TrainJobSpec& spec);

// The smallest terminationGracePeriodSeconds of a pod: the time for the last checkpoint, and a margin; 0: no minimum. A
// smaller value in the template is raised to this and not refused, because onSuspendTimeoutSeconds may be raised at any
// time, but the template may not be changed then.
int64_t grace_period_needed(const api::TrainJobSpec& spec);
// The pods' terminationGracePeriodSeconds.
int64_t grace_period(const api::TrainJobSpec& spec);

}  // namespace lockstep::train
