#include "runner/contract/checkpoint_layout.h"

#include <algorithm>
#include <cstdio>

#include "runner/base/parse_number.h"
#include "runner/base/sha256.h"
#include "runner/contract/env_names.h"

namespace lockstep {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kStalePrefix = ".stale-step-";
constexpr std::string_view kTemporaryRunPrefix = ".tmp-r";
constexpr std::string_view kGenerationMark = "-g";
constexpr std::string_view kEmaPrefix = "ema-";
constexpr std::string_view kEmaFile = "ema.safetensors";
constexpr std::string_view kSafetensorsSuffix = ".safetensors";
constexpr size_t kStepDigits = 8;

std::string padded_step(int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < kStepDigits) digits.insert(0, kStepDigits - digits.size(), '0');
  return digits;
}

// "r0-g17": what stands after ".tmp-" in the temporary names of that writer.
std::string temporary_tag(const CheckpointStamp& stamp) {
  return "r" + std::to_string(stamp.run) + "-g" + std::to_string(stamp.generation);
}

// A name in `files` is joined to a path: it must stay inside its folder.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

// Reads fields of state.json; the first failure stays.
class FieldReader {
 public:
  explicit FieldReader(const Json& json) : json_(json) {}

  template <typename T>
  void read(const char* name, T& into, bool (Json::*is_type)() const noexcept, const char* type) {
    if (error_) return;
    const auto found = json_.find(name);
    if (found == json_.end()) {
      error_ = Error{ErrorCode::kCorrupt, std::string("state.json has no field \"") + name + "\""};
    } else if (!((*found).*is_type)()) {
      error_ = Error{ErrorCode::kCorrupt, std::string("state.json: \"") + name + "\" is " + dump_line(*found) + "; " +
                                              type + " was expected"};
    } else {
      into = found->get<T>();
    }
  }
  void text(const char* name, std::string& into) { read(name, into, &Json::is_string, "text"); }
  void count(const char* name, uint64_t& into) { read(name, into, &Json::is_number_unsigned, "a count"); }
  void flag(const char* name, bool& into) { read(name, into, &Json::is_boolean, "true or false"); }
  void object(const char* name, Json& into) { read(name, into, &Json::is_object, "an object"); }
  void integer(const char* name, int64_t& into) { read(name, into, &Json::is_number_integer, "an integer"); }
  void integer(const char* name, int& into) {
    int64_t wide = 0;
    integer(name, wide);
    into = static_cast<int>(wide);
  }

  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  const Json& json_;
  std::optional<Error> error_;
};

Result<std::map<std::string, CheckpointFile>> parse_files(const Json& json) {
  std::map<std::string, CheckpointFile> files;
  for (const auto& [name, value] : json.items()) {
    CheckpointFile file;
    if (!is_plain_file_name(name) || name == kStateFile) {
      return Error{ErrorCode::kCorrupt, "state.json: \"" + name + "\" is no file name of a checkpoint"};
    }
    if (!value.is_object()) return Error{ErrorCode::kCorrupt, "state.json: files." + name + " is no object"};
    FieldReader reader(value);
    reader.text("sha256", file.sha256);
    reader.count("bytes", file.bytes);
    if (reader.error()) return reader.error()->with_context("files." + name);
    files.emplace(name, file);
  }
  return files;
}

Status check_version_and_sum(Json& json) {
  if (!json.is_object()) return Error{ErrorCode::kCorrupt, "state.json holds no object"};
  const auto version = json.find("format_version");
  if (version == json.end() || !version->is_number_integer()) {
    return Error{ErrorCode::kCorrupt, "state.json has no format_version"};
  }
  const auto checksum = json.find("checksum");
  if (checksum == json.end() || !checksum->is_string()) {
    return Error{ErrorCode::kCorrupt, "state.json has no checksum"};
  }
  const std::string expected = checksum->get<std::string>();
  json.erase(checksum);
  const std::string found = sha256_hex(dump_line(json));
  if (found != expected) {
    return Error{ErrorCode::kCorrupt,
                 "state.json was changed or damaged: its content sums to " + found + ", not to " + expected};
  }
  // After the sum, so that a flipped bit is not taken for a newer version.
  const int64_t number = json["format_version"].get<int64_t>();
  if (number > kCheckpointFormatVersion) {
    return Error{ErrorCode::kInvalid, "written by a newer version of Lockstep: checkpoint format " +
                                          std::to_string(number) + ", this one reads up to " +
                                          std::to_string(kCheckpointFormatVersion) + "; use the newer version"};
  }
  return {};
}

}  // namespace

std::string step_folder_name(int64_t step) { return std::string(kStepPrefix) + padded_step(step); }

std::optional<int64_t> parse_step_folder_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::optional<int64_t> step = parse_number<int64_t>(name.substr(kStepPrefix.size()));
  if (!step || *step < 0 || step_folder_name(*step) != name) return std::nullopt;
  return step;
}

std::string ema_file_name(std::string_view name) {
  if (name.empty()) return std::string(kEmaFile);
  return std::string(kEmaPrefix).append(name).append(kSafetensorsSuffix);
}

std::optional<std::string> parse_ema_file_name(std::string_view file) {
  if (file == kEmaFile) return std::string();
  if (!file.starts_with(kEmaPrefix) || !file.ends_with(kSafetensorsSuffix)) return std::nullopt;
  file.remove_prefix(kEmaPrefix.size());
  file.remove_suffix(std::min(file.size(), kSafetensorsSuffix.size()));
  return file.empty() ? std::nullopt : std::optional(std::string(file));
}

std::string temporary_name(const CheckpointStamp& stamp, std::string_view what) {
  return ".tmp-" + temporary_tag(stamp) + "-" + std::string(what);
}

std::optional<CheckpointStamp> parse_temporary_stamp(std::string_view name) {
  if (!name.starts_with(kTemporaryRunPrefix)) return std::nullopt;
  name.remove_prefix(kTemporaryRunPrefix.size());
  const size_t middle = name.find(kGenerationMark);
  if (middle == std::string_view::npos) return std::nullopt;
  const std::string_view rest = name.substr(middle + kGenerationMark.size());
  const std::optional<uint64_t> run = parse_number<uint64_t>(name.substr(0, middle));
  const std::optional<uint64_t> generation = parse_number<uint64_t>(rest.substr(0, rest.find('-')));
  if (!run || !generation) return std::nullopt;
  return CheckpointStamp{*run, *generation};
}

std::string stale_folder_name(int64_t step, const CheckpointStamp& stamp, int attempt) {
  std::string name = std::string(kStalePrefix) + padded_step(step) + "-" + temporary_tag(stamp);
  return attempt > 0 ? name + "-" + std::to_string(attempt) : name;
}

bool is_stale_folder_name(std::string_view name) { return name.starts_with(kStalePrefix); }

std::string dump_checkpoint_state(const CheckpointState& state) {
  OrderedJson json;
  json["format_version"] = state.format_version;
  json["workload"] = state.workload;
  json["workload_version"] = state.workload_version;
  json["step"] = state.step;
  json["job"] = state.job;
  json["job_uid"] = state.job_uid;
  json["run"] = state.run;
  json["lineage"] = state.lineage;
  json["generation"] = state.generation;
  json["global_batch"] = state.global_batch;
  json["seed"] = state.seed;
  json["config_hash"] = state.config_hash;
  json["config"] = state.config;
  json["world_size"] = state.world_size;
  json["threads"] = state.threads;
  json["deterministic"] = state.deterministic;
  json["is_best"] = state.is_best;
  json["progress"] = state.progress;
  json["unix_time"] = state.unix_time;
  json["build"] = state.build;
  json["files"] = OrderedJson::object();
  for (const auto& [name, file] : state.files) {
    json["files"][name] = {{"sha256", file.sha256}, {"bytes", file.bytes}};
  }
  // The sum is over the content with sorted keys, parsed back from the text, so that a reader can repeat it.
  const Json canonical = Json::parse(dump_line(json));
  json["checksum"] = sha256_hex(dump_line(canonical));
  return dump_pretty(json);
}

Result<CheckpointState> parse_checkpoint_state(std::string_view text) {
  TRY_ASSIGN(Json json, parse_json(text, kStateFile));
  TRY(check_version_and_sum(json));
  CheckpointState state;
  Json files;
  FieldReader reader(json);
  reader.integer("format_version", state.format_version);
  reader.text("workload", state.workload);
  reader.integer("workload_version", state.workload_version);
  reader.integer("step", state.step);
  reader.text("job", state.job);
  reader.text("job_uid", state.job_uid);
  reader.count("run", state.run);
  reader.count("lineage", state.lineage);
  reader.count("generation", state.generation);
  reader.integer("global_batch", state.global_batch);
  reader.count("seed", state.seed);
  reader.text("config_hash", state.config_hash);
  reader.object("config", state.config);
  reader.integer("world_size", state.world_size);
  reader.integer("threads", state.threads);
  reader.flag("deterministic", state.deterministic);
  reader.flag("is_best", state.is_best);
  reader.object("progress", state.progress);
  reader.integer("unix_time", state.unix_time);
  reader.text("build", state.build);
  reader.object("files", files);
  if (reader.error()) return *reader.error();
  TRY_ASSIGN(state.files, parse_files(files));
  return state;
}

Result<JobIdentity> job_identity(const Environment& environment) {
  const auto wrong = [](std::string_view name, const std::string& value, const char* expected) {
    return Error{ErrorCode::kInvalid, std::string(name) + " is \"" + value + "\", expected " + expected +
                                          ": the operator writes it; do not set it by hand"};
  };
  JobIdentity job;
  job.uid = variable(environment, env::kJobUid);
  if (job.uid.empty()) return job;
  job.name = variable(environment, env::kNamespace) + "/" + variable(environment, env::kJob);
  if (const std::string run = variable(environment, env::kRun); !run.empty()) {
    const std::optional<uint64_t> number = parse_number<uint64_t>(run);
    if (!number) return wrong(env::kRun, run, "a whole number of at least 0");
    job.run = *number;
  }
  const std::string resume = variable(environment, env::kResume);
  if (resume == "SameJob") {
    job.resume = ResumePolicy::kSameJob;
  } else if (resume == "Never") {
    job.resume = ResumePolicy::kNever;
  } else if (!resume.empty() && resume != "SameConfig") {
    return wrong(env::kResume, resume, "SameJob, SameConfig or Never");
  }
  return job;
}

bool is_same_run(const CheckpointState& state, const RunIdentity& identity) {
  const JobIdentity& job = identity.job;
  if (state.workload != identity.workload || state.workload_version != identity.workload_version ||
      state.config_hash != identity.config_hash) {
    return false;
  }
  if (job.name.empty()) return true;
  if (state.job != job.name) return false;
  return job.resume == ResumePolicy::kSameConfig || state.job_uid == job.uid;
}

bool is_same_job(const CheckpointState& state, const RunIdentity& identity) {
  return identity.job.name.empty() ? is_same_run(state, identity) : state.job == identity.job.name;
}

}  // namespace lockstep
