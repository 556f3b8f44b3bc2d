#include "runner/agent/run_folder_reader.h"

#include <algorithm>
#include <utility>

#include "runner/base/append_file.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/contract/run_folder_layout.h"

namespace lockstep {
namespace {

HttpAnswer refusal(int code, const std::string& sentence) { return {code, kTextType, sentence + "\n"}; }

int http_code(ErrorCode code) { return code == ErrorCode::kNotFound ? 404 : 503; }

bool is_folder(FileSystem& fs, const std::string& path) {
  const Result<FileInfo> info = fs.stat(path);
  return info.ok() && info->kind == FileKind::kDirectory;
}

// The newest steps' first, by name within a step; at most kOutputsListedMax.
std::vector<OutputFile> list_outputs(FileSystem& fs, const std::string& run_folder) {
  std::vector<OutputFile> found;
  const std::string folder = join_path(run_folder, kOutputsFolder);
  if (!is_folder(fs, folder)) return found;
  const Result<std::vector<DirectoryEntry>> steps = fs.list(folder);
  if (!steps.ok()) return found;
  std::vector<std::pair<int64_t, std::string>> folders;
  for (const DirectoryEntry& entry : *steps) {
    const std::optional<int64_t> step = parse_step_folder_name(entry.name);
    if (step && entry.kind == FileKind::kDirectory) folders.emplace_back(*step, join_path(folder, entry.name));
  }
  std::sort(folders.rbegin(), folders.rend());
  for (const auto& [step, path] : folders) {
    const Result<std::vector<DirectoryEntry>> files = fs.list(path);
    if (!files.ok()) continue;
    for (const DirectoryEntry& file : *files) {
      if (found.size() == kOutputsListedMax) return found;
      if (file.kind == FileKind::kFile && is_output_name(file.name)) found.push_back({.step = step, .name = file.name});
    }
  }
  return found;
}

}  // namespace

HttpAnswer RunFolderReader::answer(const std::string& path) {
  if (path == "/history") return history();
  if (path == "/outputs") return outputs();
  return output(path);
}

HttpAnswer RunFolderReader::history() {
  const Result<bool> is_behind = read_more();
  if (!is_behind.ok()) return refusal(503, is_behind.error().message);
  OrderedJson json = to_json(history_);
  json["complete"] = !*is_behind;
  return {200, kJsonType, dump_line(json) + "\n"};
}

Result<bool> RunFolderReader::read_more() {
  if (folder_.empty()) return false;
  TRY(open_metrics());
  open_recoveries();
  LineFile::LineConsumer consumer{.line = [this](std::string_view line) { history_.add_metrics_line(line); },
                                  .too_long = [this] { history_.count_bad_line(); }};
  bool is_behind = false;
  for (LineFile& file : metrics_) {
    TRY(file.read(bytes_max_, consumer));
    is_behind = file.is_behind();
    if (is_behind) break;  // files are read in order, because lines of a later one may redo steps of an earlier one
  }
  consumer.line = [this](std::string_view line) { history_.add_recovery_line(line); };
  if (!recoveries_) return is_behind;
  TRY(recoveries_->read(bytes_max_, consumer));
  return is_behind || recoveries_->is_behind();
}

// Opens the files anew and reads them from the beginning if one was truncated or replaced, that is, when another run or
// a resumed one has begun.
Status RunFolderReader::open_metrics() {
  const bool is_stale =
      std::any_of(metrics_.begin(), metrics_.end(), [](const LineFile& f) { return f.is_replaced(); });
  if (!metrics_.empty() && !is_stale) return {};
  const std::string path = join_path(folder_, kMetricsFile);
  Result<LineFile> current = LineFile::open(*fs_, path);
  // The file does not exist yet, or is being replaced at this moment: keep what was read.
  if (!current.ok() && current.error().code == ErrorCode::kNotFound) return {};
  TRY(current);
  history_.drop_series();
  metrics_.clear();
  for (int number = 1;; ++number) {
    Result<LineFile> moved_aside = LineFile::open(*fs_, path + "." + std::to_string(number));
    if (!moved_aside.ok()) break;
    metrics_.push_back(std::move(*moved_aside));
  }
  metrics_.push_back(std::move(*current));
  return {};
}

void RunFolderReader::open_recoveries() {
  if (recoveries_ && !recoveries_->is_replaced()) return;
  Result<LineFile> opened = LineFile::open(*fs_, join_path(folder_, kRecoveriesFile));
  if (!opened.ok()) return;  // it does not exist until the first step is committed
  history_.drop_marks();
  recoveries_ = std::move(*opened);
}

HttpAnswer RunFolderReader::outputs() {
  OrderedJson list = OrderedJson::array();
  const std::vector<OutputFile> found = folder_.empty() ? std::vector<OutputFile>() : list_outputs(*fs_, folder_);
  for (const OutputFile& output : found) {
    list.push_back({{"name", output.name}, {"step", output.step}, {"path", output_path(output)}});
  }
  return {200, kJsonType, dump_line(OrderedJson{{"outputs", std::move(list)}}) + "\n"};
}

HttpAnswer RunFolderReader::output(const std::string& path) {
  const std::optional<OutputFile> asked = parse_output_path(path.starts_with('/') ? path.substr(1) : "");
  if (!asked) {
    return refusal(404,
                   "no output has such an address; expected /outputs/step-00000120/NAME with a NAME of letters, "
                   "digits, '.', '_' and '-' that ends in .png, .svg, .txt or .md");
  }
  if (folder_.empty()) return refusal(404, "a program has no outputs on this page");
  const std::string file = join_path(folder_, output_path(*asked));
  const Result<FileInfo> info = fs_->stat(file);
  const bool is_there = is_folder(*fs_, join_path(folder_, kOutputsFolder)) && is_folder(*fs_, parent_path(file)) &&
                        info.ok() && info->kind == FileKind::kFile;
  if (!is_there) return refusal(404, output_path(*asked) + " does not exist; GET /outputs lists the files");
  const Result<std::string> bytes = read_file(*fs_, file, kOutputBytesMax);
  if (!bytes.ok() && bytes.error().code == ErrorCode::kInvalid) {
    return refusal(403, output_path(*asked) + " has " + std::to_string(info->bytes) + " bytes, and at most " +
                            std::to_string(kOutputBytesMax) + " are served: open it in the run's folder");
  }
  if (!bytes.ok()) return refusal(http_code(bytes.error().code), bytes.error().message);
  return {.code = 200, .type = output_content_type(asked->name), .body = *bytes, .runs_no_scripts = true};
}

Status RunFolderReader::append_recovery(const std::string& line) {
  if (folder_.empty()) {
    history_.add_recovery_line(line);
    return {};
  }
  const std::string path = join_path(folder_, kRecoveriesFile);
  TRY_ASSIGN(AppendFile file, AppendFile::open(*fs_, path, FileSystem::Append::kToEither));
  return file.append(line + "\n");
}

}  // namespace lockstep
