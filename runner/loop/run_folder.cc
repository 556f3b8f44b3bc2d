#include "runner/loop/run_folder.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <memory>
#include <sstream>
#include <utility>

#include "runner/base/atomic_file.h"
#include "runner/checkpoint/weights.h"
#include "runner/contract/run_folder_layout.h"
#include "runner/formats/checkpoint_dir.h"

namespace lockstep {
namespace {

constexpr const char* kLogFile = "log.txt";

// The lines of evaluations of at most `epochs` completed epochs: they begin with that number. The header does not.
std::string lines_until(const std::string& log, int64_t epochs) {
  std::string kept;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    int64_t epoch = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), epoch);
    if (error == std::errc() && epoch <= epochs) kept += line + "\n";
  }
  return kept;
}

Status append_text(const std::string& path, const std::string& text) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "ae"), &std::fclose);
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0) {
    return error_of_errno(errno, "append to", path);
  }
  return {};
}

std::string sentence(const Status& status) { return status.ok() ? std::string() : status.error().message; }

// All figures of one event; a first error is enough.
std::string join(const std::string& first, const std::string& second) { return first.empty() ? second : first; }

}  // namespace

Result<RunFolder> RunFolder::open(FileSystem& fs, const RunConfig& config, Workload& workload, const Options& options) {
  TRY(make_directories(fs, options.path));
  TRY(write_file_atomically(fs, join_path(options.path, "args.txt"), args_txt(config)));
  TRY_ASSIGN(MetricsLog log, MetricsLog::open(join_path(options.path, kMetricsFile), options.resume_step));
  RunFolder folder(fs, options.path, std::move(log));
  folder.files_ = {"args.txt", kMetricsFile};
  if (config.training.tensorboard) {
    TRY_ASSIGN(folder.events_, EventWriter::create({.folder = options.path,
                                                    .host = options.host_name,
                                                    .pid = getpid(),
                                                    .unix_time = static_cast<double>(std::time(nullptr)),
                                                    .resume_step = options.resume_step}));
    folder.files_.push_back(base_name(folder.events_->path()));
  }
  if (config.training.wandb.is_used) {
    TRY_ASSIGN(folder.wandb_, WandbLog::open(fs, config,
                                             {.run_folder = options.path,
                                              .resume_step = options.resume_step,
                                              .resume_epochs = options.resume_epochs,
                                              .time = static_cast<double>(std::time(nullptr))}));
    folder.files_.push_back(kWandbFolder);
  }
  const std::string header = workload.log_header();
  if (!header.empty()) {
    const std::string log_path = join_path(options.path, kLogFile);
    TRY_ASSIGN(folder.log_moved_to_, move_too_large(fs, log_path, kLineFileBytesMax));
    const Result<std::string> before = read_file(fs, log_path, kLineFileBytesMax);
    // What cannot be read now is not replaced.
    if (!before.ok() && before.error().code != ErrorCode::kNotFound) return before.error();
    const std::string kept = options.resume_step > 0 && before.ok() ? lines_until(*before, options.resume_epochs) : "";
    TRY(write_file_atomically(fs, log_path, header + "\n" + kept));
  }
  return folder;
}

std::string RunFolder::remark() const {
  std::string text;
  for (const auto& [name, moved_to] : {std::pair(kMetricsFile, log_.moved_to()), std::pair(kLogFile, log_moved_to_)}) {
    if (moved_to.empty()) continue;
    text += (text.empty() ? "" : "; ") + std::string(name) + " had more than " +
            std::to_string(kLineFileBytesMax >> 20) + " MiB: it is " + moved_to + " now, and a new one is begun";
  }
  return text;
}

std::string RunFolder::record(const StepRecord& r) {
  if (log_.has_step(r.step)) return {};
  std::string problem = sentence(log_.append(r));
  if (wandb_) problem = join(problem, sentence(wandb_->append(r)));
  if (!events_) return problem;
  std::vector<std::pair<std::string, double>> scalars = {{"train/loss", r.loss}};
  for (const auto& [name, value] : r.terms) scalars.emplace_back("train/loss_" + name, value);
  scalars.insert(
      scalars.end(),
      {{"train/lr", r.lr}, {"train/grad_norm", r.grad_norm}, {"speed/samples_per_second", r.samples_per_second}});
  return join(problem, sentence(events_->add_scalars(r.step, r.time, scalars)));
}

std::vector<std::string> RunFolder::record(const Evaluation& evaluation) {
  const Status ours = owner_ ? check_none_is_newer(*fs_, path_, owner_->run, owner_->stamp) : Status();
  if (!ours.ok()) {
    if (std::exchange(said_, ours.error().code) == ours.error().code) return {};
    return {ours.error().message + "; the evaluation of step " + std::to_string(evaluation.record.step) +
            " and those after it leave no lines and no weights in " + path_ +
            " while that is so: end the one of the two that is not wanted, or mend the volume"};
  }
  said_.reset();
  std::vector<std::string> problems = {record(evaluation.record), append_log_line(evaluation.log_line)};
  for (const std::string& name : evaluation.outputs) problems.push_back(save(name, evaluation.content_of(name)));
  std::erase(problems, "");
  return problems;
}

std::string RunFolder::record(const EvaluationRecord& r) {
  std::string problem = sentence(log_.append(r));
  if (wandb_) problem = join(problem, sentence(wandb_->append(r)));
  if (!events_) return problem;
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [name, value] : r.metrics) scalars.emplace_back("eval/" + name, value);
  return join(problem, sentence(events_->add_scalars(r.step, r.time, scalars)));
}

std::string RunFolder::append_log_line(const std::string& line) {
  if (line.empty()) return {};
  remember(kLogFile);
  return sentence(append_text(join_path(path_, kLogFile), line + "\n"));
}

std::string RunFolder::save(const std::string& name, const OutputContent& content) {
  const std::string path = join_path(path_, name);
  const Status folder = make_directories(*fs_, parent_path(path));
  if (!folder.ok()) return sentence(folder);
  const auto* const tree = std::get_if<TorchTree>(&content);
  const Status saved = tree != nullptr ? save_torch_tree(*fs_, path, *tree)
                                       : write_file_atomically(*fs_, path, std::get<std::string>(content));
  if (saved.ok()) remember(name);
  return sentence(saved);
}

void RunFolder::remember(const std::string& file) {
  if (std::find(files_.begin(), files_.end(), file) == files_.end()) files_.push_back(file);
}

}  // namespace lockstep
