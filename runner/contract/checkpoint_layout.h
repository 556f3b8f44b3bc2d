// Names and schema of a checkpoint folder, as writer, reader, `lockstep ckpt` and people use them. Pure.
//
//   <folder>/step-00001200/{model,optimizer,ema}.safetensors, state.json    complete once renamed, if all sums match
//   <folder>/latest                                                         the name of the newest, for users
//   <folder>/.tmp-r<run>-g<generation>-…                                    being written, or left by a dead writer
//   <folder>/.stale-step-00001200-r<run>-g<generation>[-n]                  moved aside by the writer in the name
//
// Which of two checkpoints is newer: CheckpointStamp, then the step.
//
// state.json carries the sum and size of every other file and, in `checksum`, that of its own content.
// Threads: pure.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "runner/base/environment.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep {

// A larger state.json is not read, so it is not written either.
inline constexpr uint64_t kCheckpointStateBytesMax = uint64_t{16} << 20;

// Raised when an older reader would misread a checkpoint. Readers refuse what is newer than this.
inline constexpr int kCheckpointFormatVersion = 1;

// CheckpointState::workload of a program that uses the Python package.
inline constexpr std::string_view kPythonWorkload = "python";

inline constexpr std::string_view kModelFile = "model.safetensors";
inline constexpr std::string_view kOptimizerFile = "optimizer.safetensors";
inline constexpr std::string_view kStateFile = "state.json";
inline constexpr std::string_view kLatestFile = "latest";

// "step-00001200"; more digits when the step needs them.
std::string step_folder_name(int64_t step);
// The step in a name that step_folder_name makes; nullopt for any other name.
std::optional<int64_t> parse_step_folder_name(std::string_view name);

// "ema.safetensors" for an empty name, else "ema-NAME.safetensors".
std::string ema_file_name(std::string_view name);
// The NAME of such a file; nullopt for any other file.
std::optional<std::string> parse_ema_file_name(std::string_view file);

// Which group wrote a checkpoint; later writers compare greater. Generations of a TrainJob begin low (their upper half
// is the attempt of node 0's pod), so when a TrainJob was deleted and made again, its generations cannot be compared
// with those of the one before. Therefore the run's number is compared first.
struct CheckpointStamp {
  uint64_t run = 0;                                          // as JobIdentity's
  uint64_t generation = 0;                                   // of the group
  auto operator<=>(const CheckpointStamp&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy's own 0
};

// ".tmp-r0-g17-" + what.
std::string temporary_name(const CheckpointStamp& stamp, std::string_view what);
// The writer in such a name; nullopt for any other name.
std::optional<CheckpointStamp> parse_temporary_stamp(std::string_view name);

// ".stale-step-00001200-r0-g17"; attempt > 0 appends "-<attempt>", for a name that is taken.
std::string stale_folder_name(int64_t step, const CheckpointStamp& stamp, int attempt);
bool is_stale_folder_name(std::string_view name);

struct CheckpointFile {
  std::string sha256;  // hex
  uint64_t bytes = 0;
  bool operator==(const CheckpointFile&) const = default;
};

// What state.json says.
struct CheckpointState {
  int format_version = kCheckpointFormatVersion;
  std::string job;  // JobIdentity of the writer: name, uid, run
  std::string job_uid;
  uint64_t run = 0;
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
  Json progress = Json::object();  // epoch, best metric, plateau, counters, loss scale of the training loop
  std::map<std::string, CheckpointFile> files;  // by name, without state.json; filled by the writer

  [[nodiscard]] CheckpointStamp stamp() const { return {run, generation}; }
};

// The text of state.json, with its checksum.
std::string dump_checkpoint_state(const CheckpointState& state);

// Errors: kCorrupt (no JSON, checksum wrong, a field missing or of a wrong type, a file name that leaves the folder);
// kInvalid for a newer format_version, saying which is read.
Result<CheckpointState> parse_checkpoint_state(std::string_view text);

// spec.checkpoint.resume of a TrainJob: whose checkpoints in its folder it goes on from without --resume.
enum class ResumePolicy {
  kSameConfig,  // its own, and those of earlier TrainJobs of its name
  kSameJob,     // its own; a folder that has only those of earlier ones is refused
  kNever,       // its own; those of earlier ones are moved aside
};

// The TrainJob whose pods train. Outside a cluster all of it is empty.
struct JobIdentity {
  std::string name;  // with its namespace: "team-a/sasrec"
  std::string uid;
  uint64_t run = 0;  // each new TrainJob has a higher one
  ResumePolicy resume = ResumePolicy::kSameConfig;
};
// From LOCKSTEP_NAMESPACE, _JOB, _JOB_UID, _RUN and _RESUME; without a UID there is no TrainJob. kInvalid names the
// variable.
Result<JobIdentity> job_identity(const Environment& environment);

// Decides which checkpoints a run resumes from without --resume. Outside a cluster: those of the same workload, in the
// same version, and config in the same folder, whoever wrote them.
struct RunIdentity {
  JobIdentity job;
  std::string config_hash;
  std::string workload;
  int workload_version = 0;
};
bool is_same_run(const CheckpointState& state, const RunIdentity& identity);
// True when this TrainJob, or an earlier one of its name, wrote the checkpoint, whatever its flags were. Outside a
// cluster: is_same_run.
bool is_same_job(const CheckpointState& state, const RunIdentity& identity);

}  // namespace lockstep
