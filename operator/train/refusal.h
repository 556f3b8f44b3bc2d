// What the API server, or an admission in front of it, says of a pod that it refuses, with the fields of the
// TrainJob in place of the pod's. Pure.
#pragma once

#include <string>
#include <string_view>

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

// Where a path may begin in the server's words: after one of these, or with the words.
inline constexpr std::string_view kBeforePath = " \"[,(";
// The length of the path of an object at the beginning of `text`; 0: there is none. Brackets of a list's index or a
// map's key belong to it; one that the sentence opened before it does not.
size_t path_length(std::string_view text);

}  // namespace lockstep::train
