// How a pod or a whole job ended, in words, and what to do about it. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operator/api/trainjob.h"
#include "operator/train/status.h"

namespace lockstep::diagnose {

// Something to do; `command`, when there is one, is for a shell.
struct Advice {
  std::string text;
  std::string command;
  bool operator==(const Advice&) const = default;
};

// "kubectl logs -n team-a sasrec-1-0": `words` with the namespace behind the verb.
std::string kubectl(const std::string& verb, const api::ObjectKey& job, const std::string& words);

// "was killed by the kernel (out of memory)", "was evicted from its node", …
std::string ending_words(const std::string& reason, std::optional<int> exit_code);
// "3: data missing or unreadable"; for signals their names. `reason` tells whose code it is: that of another program,
// or of an init container, is only "3: a crash".
std::string exit_code_words(const std::string& reason, int code);
// What to do about it.
std::vector<Advice> advice_for_ending(const std::string& reason, const api::TrainJob& job);
// The same for what keeps pods from running: reason and message of the condition PodsReady.
std::vector<Advice> advice_for_wait(const train::Obstacle& wait, const api::TrainJob& job, const std::string& pod);
// "cannot be scheduled", for such a reason.
std::string wait_words(const train::Obstacle& wait);

}  // namespace lockstep::diagnose
