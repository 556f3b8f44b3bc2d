// UserProgram: a trainer of launcher Lockstep whose command is the user's own program, in an image that holds nothing
// of ours. Pure.
//
// Our agent starts the command as the ranks (`lockstep launch`). An init container copies it from the operator's image
// (Settings::agent_image) into a volume, which the trainer mounts read-only; so the image needs no shell, no C library
// of a certain kind, and no writable root.
#pragma once

#include <string>
#include <vector>

#include "operator/api/trainjob.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::train {

inline constexpr std::string_view kAgentContainer = "lockstep-agent";  // the init container
inline constexpr std::string_view kAgentVolume = "lockstep-agent";
inline constexpr std::string_view kAgentPath = "/opt/lockstep-agent";  // where the trainer mounts it
inline constexpr std::string_view kTemporaryVolume = "lockstep-tmp";
inline constexpr std::string_view kTemporaryPath = "/tmp";

// Does the agent of such a pod start a program that knows nothing of Lockstep? False where the command, or without one
// the image's entrypoint, is our agent itself (lockstep run …), and for other launchers.
bool runs_user_program(const api::TrainJobSpec& spec);

// kInvalid, with the field and what to do: a command that starts ranks itself; no command, and nothing that says that
// the image's entrypoint is our agent.
Status check_program(const api::TrainJobSpec& spec);

// Does the pod of this node rank mount spec.checkpoint.volume? By spec.checkpoint.mountOn, which by default is AllNodes
// for a user's program and Node0 for all others.
bool mounts_checkpoint(const api::TrainJobSpec& spec, int node_rank);

// May any pod write checkpoints, and not pod 0 alone?
bool any_pod_may_save(const api::TrainJobSpec& spec);

// Puts the agent before the command, and what brings it there into the pod. After everything else of the pod is there.
void add_agent(const std::string& agent_image, Json& pod_spec, Json& trainer);

}  // namespace lockstep::train
