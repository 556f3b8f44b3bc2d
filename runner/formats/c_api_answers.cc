#include "runner/formats/c_api_answers.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "runner/base/build_info.h"
#include "runner/base/json.h"
#include "runner/base/sha256.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/formats/checkpoint_dir.h"
#include "runner/formats/checkpoint_write.h"

namespace lockstep {
namespace {

constexpr int kWorkloadVersion = 1;  // raised when the package would misread an older state
constexpr const char* kPythonField = "python";

struct Request {
  Json json;
  std::string folder;
  RunIdentity identity;
  CheckpointStamp stamp;
};

Result<Request> parse_request(const char* text) {
  TRY_ASSIGN(Json json, parse_json(text, "request"));
  Request request{.json = std::move(json), .folder = "", .identity = {}, .stamp = {}};
  request.folder = request.json.at("folder").get<std::string>();
  TRY_ASSIGN(request.identity.job, job_identity(request.json.at("environment").get<Environment>()));
  request.identity.config_hash = sha256_hex(dump_line(request.json.at("config")));
  request.identity.workload = kPythonWorkload;
  request.identity.workload_version = kWorkloadVersion;
  request.stamp = {request.identity.job.run, request.json.at("generation").get<uint64_t>()};
  return request;
}

Result<Json> find_newest(FileSystem& fs, const Request& request) {
  if (request.identity.job.resume == ResumePolicy::kNever) {
    TRY(move_others_aside(fs, request.folder, request.identity, request.stamp));
  }
  TRY_ASSIGN(const NewestComplete newest, newest_complete(fs, request.folder, request.identity));
  Json answer{{"path", ""}, {"passed_over", Json::array()}};
  for (const PassedOver& one : newest.passed_over) {
    answer["passed_over"].push_back({{"path", one.path}, {"reason", one.reason}});
  }
  if (!newest.entry) return answer;
  answer["path"] = newest.entry->path;
  answer["state"] = Json::parse(dump_checkpoint_state(*newest.entry->state));
  return answer;
}

Result<Json> prepare(FileSystem& fs, const Request& request) {
  TRY(prepare_checkpoint_folder(fs, request.folder, request.stamp));
  return Json::object();
}

Result<TensorView> tensor_of(const Json& json) {
  const auto name = json.at("dtype").get<std::string>();
  const std::optional<DType> dtype = dtype_of_safetensors_name(name);
  if (!dtype) return Error{ErrorCode::kInvalid, "safetensors has no dtype " + name};
  return TensorView{.name = json.at("name").get<std::string>(),
                    .dtype = *dtype,
                    .shape = json.at("shape").get<std::vector<int64_t>>(),
                    .data = reinterpret_cast<const void*>(json.at("address").get<uintptr_t>()),  // NOLINT: as it comes
                    .bytes = json.at("bytes").get<uint64_t>()};
}

Result<Json> write(FileSystem& fs, const Request& request) {
  const Json& json = request.json;
  CheckpointWrite write;
  write.folder = request.folder;
  write.retention = {.keep_last = json.at("keep").get<int64_t>()};
  write.resume = request.identity.job.resume;
  CheckpointState& state = write.state;
  state.job = request.identity.job.name;
  state.job_uid = request.identity.job.uid;
  state.run = request.stamp.run;
  state.generation = request.stamp.generation;
  state.lineage = json.at("lineage").get<uint64_t>();
  state.step = json.at("step").get<int64_t>();
  state.config = json.at("config");
  state.config_hash = request.identity.config_hash;
  state.world_size = json.at("world_size").get<int>();
  state.workload = kPythonWorkload;
  state.workload_version = kWorkloadVersion;
  state.build = build_version();
  state.unix_time =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  state.progress = Json{{kPythonField, json.at(kPythonField)}};
  // The format has a file of the model, whether there is one or not.
  std::map<std::string, std::vector<TensorView>> files{{std::string(kModelFile), {}}};
  for (const Json& tensor : json.at("tensors")) {
    TRY_ASSIGN(TensorView view, tensor_of(tensor));
    files[tensor.at("file").get<std::string>()].push_back(std::move(view));
  }
  for (auto& [file, tensors] : files) write.tensors.push_back({file, std::move(tensors)});
  TRY_ASSIGN(const WrittenCheckpoint written, write_checkpoint(fs, write));
  return Json{{"path", written.path}, {"warning", written.housekeeping_error}};
}

Result<Json> do_call(CheckpointCall call, FileSystem& fs, const Request& request) {
  switch (call) {
    case CheckpointCall::kFind:
      return find_newest(fs, request);
    case CheckpointCall::kPrepare:
      return prepare(fs, request);
    case CheckpointCall::kWrite:
      return write(fs, request);
  }
  return Json::object();
}

}  // namespace

// nlohmann throws for a field of another type; no exception may reach the caller, which is C.
std::string answer_of(CheckpointCall call, FileSystem& fs, const char* request) {
  std::string error;
  try {
    const Result<Request> parsed = parse_request(request);
    const Result<Json> done = parsed.ok() ? do_call(call, fs, *parsed) : parsed.error();
    if (done.ok()) return dump_line(*done);
    error = done.error().message;
  } catch (const std::exception& e) {
    error = e.what();
  }
  return dump_line(Json{{"error", error}});
}

}  // namespace lockstep
