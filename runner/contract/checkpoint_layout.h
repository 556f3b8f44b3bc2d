// Names and schema of a checkpoint folder: what writer, reader, `lockstep ckpt` and people agree on. Pure.
//
//   <folder>/step-00001200/{model,optimizer,ema}.safetensors, state.json    complete once renamed and every sum right
//   <folder>/latest                                                         the name of the newest, for people
//   <folder>/.tmp-g<generation>-…                                           being written, or left behind by a death
//   <folder>/.stale-step-00001200-g<generation>[-n]                         moved aside when its step was redone
//
// state.json carries the sum and size of every other file and, in `checksum`, that of its own content.
// Threads: pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep {

// Raised when an older reader would misread a checkpoint. Readers refuse what is newer than this.
inline constexpr int kCheckpointFormatVersion = 1;

inline constexpr std::string_view kModelFile = "model.safetensors";
inline constexpr std::string_view kOptimizerFile = "optimizer.safetensors";
inline constexpr std::string_view kStateFile = "state.json";
inline constexpr std::string_view kLatestFile = "latest";

// "step-00001200"; more digits when the step needs them.
std::string step_folder_name(int64_t step);
// Exactly what step_folder_name makes, else nothing.
std::optional<int64_t> parse_step_folder_name(std::string_view name);

// "ema.safetensors" for an empty name, else "ema-NAME.safetensors".
std::string ema_file_name(std::string_view name);
// The NAME of such a file, else nothing.
std::optional<std::string> parse_ema_file_name(std::string_view file);

// "g17": what stands after ".tmp-" in temporary names of that generation.
std::string temporary_tag(uint64_t generation);
// ".tmp-g17-" + what.
std::string temporary_name(uint64_t generation, std::string_view what);
// The generation in such a name, else nothing.
std::optional<uint64_t> parse_temporary_generation(std::string_view name);

// ".stale-step-00001200-g17"; attempt > 0 appends "-<attempt>", for a name that is taken.
std::string stale_folder_name(int64_t step, uint64_t generation, int attempt);
bool is_stale_folder_name(std::string_view name);

struct CheckpointFile {
  std::string sha256;  // hex
  uint64_t bytes = 0;
  bool operator==(const CheckpointFile&) const = default;
};

// What state.json says.
struct CheckpointState {
  int format_version = kCheckpointFormatVersion;
  std::string job_uid;       // empty outside a cluster
  uint64_t lineage = 0;      // generation in which the state was last restored or initialised
  uint64_t generation = 0;   // of the group that wrote it
  int64_t step = 0;          // committed optimizer steps
  int64_t global_batch = 0;  // samples
  uint64_t seed = 0;
  Json config = Json::object();  // the flags that change the maths
  std::string config_hash;
  int world_size = 1;
  int threads = 1;  // per rank
  bool deterministic = false;
  std::string workload;
  int workload_version = 0;
  std::string build;               // version of the program
  int64_t unix_time = 0;           // seconds
  bool is_best = false;            // the deciding figure was the best so far when this was written
  Json progress = Json::object();  // epoch, best metric, plateau, early-stop and skip counters, loss scale: the loop's
  std::map<std::string, CheckpointFile> files;  // by name, without state.json; filled by the writer
};

// The text of state.json, with its checksum.
std::string dump_checkpoint_state(const CheckpointState& state);

// Errors: kCorrupt (no JSON, checksum wrong, a field missing or of a wrong type, a file name that leaves the folder);
// kInvalid for a newer format_version, saying which is read.
Result<CheckpointState> parse_checkpoint_state(std::string_view text);

// Whose checkpoint may be resumed without being asked: that of the same job UID, or, without one, that of the same
// workload and config in the same folder.
struct RunIdentity {
  std::string job_uid;
  std::string config_hash;
  std::string workload;
};
bool is_same_run(const CheckpointState& state, const RunIdentity& identity);

}  // namespace lockstep
