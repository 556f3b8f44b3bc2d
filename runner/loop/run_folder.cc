#include "runner/loop/run_folder.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <sstream>
#include <utility>

#include "runner/base/atomic_file.h"
#include "runner/contract/run_folder_layout.h"

namespace lockstep {
namespace {

constexpr const char* kLogFile = "log.txt";

// Keeps the lines of evaluations after at most `epochs` epochs. Such a line begins with the number of epochs; the
// header does not.
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

std::string sentence(const Status& status) { return status.ok() ? std::string() : status.error().message; }

// Of two problems only the first is reported.
std::string first_problem(const std::string& a, const std::string& b) { return a.empty() ? b : a; }

}  // namespace

Result<RunFolder> RunFolder::open(FileSystem& fs, const RunConfig& config, Workload& workload, const Options& options) {
  TRY(make_directories(fs, options.path));
  const auto temporary = [&](const char* name) { return join_path(options.path, temporary_name(options.stamp, name)); };
  TRY(write_file_atomically(fs, join_path(options.path, "args.txt"), args_txt(config), temporary("args.txt")));
  TRY_ASSIGN(MetricsLog log,
             MetricsLog::open(fs, join_path(options.path, kMetricsFile), options.resume_step, temporary(kMetricsFile)));
  RunFolder folder(options.path, std::move(log));
  folder.files_ = {"args.txt", kMetricsFile};
  if (config.training.tensorboard) {
    TRY_ASSIGN(folder.events_, EventWriter::create(fs, {.folder = options.path,
                                                        .host = options.host_name,
                                                        .pid = getpid(),
                                                        .unix_time = static_cast<double>(std::time(nullptr)),
                                                        .resume_step = options.resume_step}));
    folder.files_.push_back(base_name(folder.events_->path()));
  }
  if (config.training.wandb.is_used) {
    TRY_ASSIGN(folder.wandb_, WandbLog::open(fs, config,
                                             {.run_folder = options.path,
                                              .stamp = options.stamp,
                                              .resume_step = options.resume_step,
                                              .resume_epochs = options.resume_epochs,
                                              .time = static_cast<double>(std::time(nullptr))}));
    folder.files_.push_back(kWandbFolder);
  }
  const std::string header = workload.log_header();
  if (!header.empty()) {
    const std::string log_path = join_path(options.path, kLogFile);
    TRY_ASSIGN(folder.log_txt_moved_to_, move_too_large(fs, log_path, kLineFileBytesMax));
    const Result<std::string> before = read_file(fs, log_path, kLineFileBytesMax);
    // A log that exists but cannot be read is not replaced.
    if (!before.ok() && before.error().code != ErrorCode::kNotFound) return before.error();
    const std::string kept = options.resume_step > 0 && before.ok() ? lines_until(*before, options.resume_epochs) : "";
    TRY_ASSIGN(folder.log_txt_, AppendFile::replace(fs, log_path, header + "\n" + kept, temporary(kLogFile)));
  }
  return folder;
}

std::string RunFolder::remark() const {
  std::string text;
  for (const auto& [name, moved_to] :
       {std::pair(kMetricsFile, log_.moved_to()), std::pair(kLogFile, log_txt_moved_to_)}) {
    if (moved_to.empty()) continue;
    text += (text.empty() ? "" : "; ") + std::string(name) + " had more than " +
            std::to_string(kLineFileBytesMax >> 20) + " MiB: it is " + moved_to + " now, and a new one is begun";
  }
  return text;
}

std::string RunFolder::record(const StepReport& r) {
  if (log_.has_step(r.steps_done())) return {};
  std::string problem = sentence(log_.append(r));
  if (wandb_) problem = first_problem(problem, sentence(wandb_->append(r)));
  if (!events_) return problem;
  std::vector<std::pair<std::string, double>> scalars = {{"train/loss", r.loss}};
  for (const auto& [name, value] : r.terms) scalars.emplace_back("train/loss_" + name, value);
  scalars.insert(
      scalars.end(),
      {{"train/lr", r.lr}, {"train/grad_norm", r.grad_norm}, {"speed/samples_per_second", r.samples_per_second}});
  return first_problem(problem, sentence(events_->add_scalars(r.steps_done(), r.time, scalars)));
}

std::vector<std::string> RunFolder::record(const EvaluationRecord& r, const std::string& log_line) {
  if (log_.has_evaluation(r.step)) return {};
  std::vector<std::string> problems = {sentence(log_.append(r)), append_log_line(log_line)};
  if (wandb_) problems.push_back(sentence(wandb_->append(r)));
  if (events_) {
    std::vector<std::pair<std::string, double>> scalars;
    for (const auto& [name, value] : r.metrics) scalars.emplace_back("eval/" + name, value);
    problems.push_back(sentence(events_->add_scalars(r.step, r.time, scalars)));
  }
  std::erase(problems, "");
  return problems;
}

std::string RunFolder::append_log_line(const std::string& line) {
  if (line.empty() || !log_txt_) return {};
  add_file(kLogFile);
  return sentence(log_txt_->append(line + "\n"));
}

void RunFolder::add_file(const std::string& name) {
  if (std::find(files_.begin(), files_.end(), name) == files_.end()) files_.push_back(name);
}

}  // namespace lockstep
