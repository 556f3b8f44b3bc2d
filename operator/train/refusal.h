// What the API server, or an admission in front of it, says of a pod that it refuses, told in the fields of the
// TrainJob that the pod was made of. Pure.
#pragma once

#include <string>

#include "operator/api/trainjob.h"
#include "runner/base/json.h"

namespace lockstep::train {

// `words` with the pod's paths replaced by those of the TrainJob. `pod`: the one that was sent, whose lists also have
// the operator's own entries.
//   spec.containers[1].image                  spec.trainer.podTemplate.spec.containers[1].image
//   of the trainer: .resources                spec.trainer.resourcesPerNode, or the template's
//                   .env[14]                  spec.trainer.env[0], or the template's
//                   .image, .command, .args   spec.trainer.image, …
//   volume lockstep-checkpoint                spec.checkpoint.volume
// What is in none of the fields, because the operator or an admission has added it, is called the pod's. A sentence at
// the end says where it comes from, if that can be known: a value that was not sent is a LimitRange's or a webhook's.
std::string in_words_of_the_spec(const std::string& words, const api::TrainJobSpec& spec, const Json& pod);

}  // namespace lockstep::train
