#include "runner/cli/ckpt_command.h"

#include <CLI/CLI.hpp>

#include <ctime>
#include <iomanip>
#include <limits>
#include <map>
#include <memory>
#include <sstream>

#include "runner/base/atomic_file.h"
#include "runner/base/file_system.h"
#include "runner/cli/parse_command.h"
#include "runner/contract/exit_code.h"
#include "runner/formats/checkpoint_dir.h"
#include "runner/formats/pickle_zip.h"
#include "runner/formats/safetensors.h"

namespace lockstep {
namespace {

struct CkptOptions {
  std::string folder;
  std::string format;
  std::string output;
  std::string ema;  // empty: the model's own weights; "true": the only EMA; else its name
  Retention retention;
};

std::string human_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < std::size(kUnits)) {
    value /= 1024.0;
    ++unit;
  }
  std::ostringstream text;
  text << std::fixed << std::setprecision(unit == 0 ? 0 : 1) << value << " " << kUnits[unit];
  return text.str();
}

std::string time_text(int64_t unix_time) {
  const std::time_t time = static_cast<std::time_t>(unix_time);
  std::tm parts = {};
  if (unix_time == 0 || gmtime_r(&time, &parts) == nullptr) return "-";
  std::ostringstream text;
  text << std::put_time(&parts, "%Y-%m-%d %H:%M:%S UTC");
  return text.str();
}

// Prints the rows with columns as wide as their widest cell; the last column is not padded.
void print_table(const std::vector<std::vector<std::string>>& rows, std::ostream& out) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) out << row[i] << std::string(widths[i] - row[i].size() + 2, ' ');
    out << row.back() << "\n";
  }
}

// The entries of a step folder, or of all step folders in `folder`.
Result<std::vector<CheckpointEntry>> entries_of(FileSystem& fs, const std::string& folder) {
  TRY_ASSIGN(const FileInfo info, fs.stat(folder));
  if (info.kind != FileKind::kDirectory) return Error{ErrorCode::kInvalid, folder + " is no folder"};
  if (parse_step_folder_name(base_name(folder))) {
    return std::vector<CheckpointEntry>{inspect_checkpoint(fs, folder)};
  }
  TRY_ASSIGN(std::vector<CheckpointEntry> entries, list_checkpoints(fs, folder));
  if (entries.empty()) return Error{ErrorCode::kNotFound, folder + " holds no checkpoint (step-00001200)"};
  return entries;
}

Status list_command(FileSystem& fs, const CkptOptions& options, std::ostream& out) {
  TRY_ASSIGN(const std::vector<CheckpointEntry> entries, entries_of(fs, options.folder));
  std::vector<std::vector<std::string>> rows = {
      {"CHECKPOINT", "STEP", "WORKLOAD", "GENERATION", "RANKS", "SIZE", "BEST", "TIME", "STATE"}};
  // Entries come newest first, and the newest that was the best when it was written is the best of the run.
  bool best_seen = false;
  for (const CheckpointEntry& entry : entries) {
    if (entry.error) {
      rows.push_back(
          {base_name(entry.path), std::to_string(entry.step), "-", "-", "-", "-", "-", "-", entry.error->message});
      continue;
    }
    const bool is_best = entry.state->is_best && !best_seen;
    best_seen = best_seen || is_best;
    uint64_t bytes = 0;
    for (const auto& [name, file] : entry.state->files) bytes += file.bytes;
    rows.push_back({base_name(entry.path), std::to_string(entry.step), entry.state->workload,
                    std::to_string(entry.state->generation), std::to_string(entry.state->world_size),
                    human_bytes(bytes), is_best ? "yes" : "no", time_text(entry.state->unix_time),
                    "complete, checksums not verified"});
  }
  print_table(rows, out);
  return {};
}

bool is_gone(FileSystem& fs, const std::string& path) {
  const Result<FileInfo> info = fs.stat(path);
  return !info.ok() && info.error().code == ErrorCode::kNotFound;
}

Status verify_command(FileSystem& fs, const CkptOptions& options, std::ostream& out) {
  TRY_ASSIGN(const std::vector<CheckpointEntry> entries, entries_of(fs, options.folder));
  std::optional<Error> first;
  std::vector<std::vector<std::string>> rows;
  for (const CheckpointEntry& entry : entries) {
    const Status verified = verify_checkpoint(fs, entry.path);
    if (!verified.ok() && is_gone(fs, entry.path)) {
      rows.push_back({base_name(entry.path), "removed meanwhile, by the run that writes here"});
      continue;
    }
    rows.push_back({base_name(entry.path), verified.ok() ? "complete, all checksums match" : verified.error().message});
    if (!verified.ok() && !first) first = verified.error();
  }
  print_table(rows, out);
  if (first) return *first;
  return {};
}

// The file of the checkpoint that --ema selects.
Result<std::string> file_to_export(const CheckpointEntry& entry, const std::string& ema) {
  if (ema.empty()) return std::string(kModelFile);
  std::vector<std::string> names;
  for (const auto& [name, file] : entry.state->files) {
    const std::optional<std::string> found = parse_ema_file_name(name);
    if (!found) continue;
    if (ema == *found) return name;
    names.push_back(*found);
  }
  if (ema == "true" && names.size() == 1) return ema_file_name(names.front());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + (name.empty() ? "(unnamed)" : name);
  return Error{ErrorCode::kNotFound,
               entry.path + (names.empty() ? " holds no EMA weights; train with --ema_decay"
                                           : " holds these EMA weights: " + text + "; choose one with --ema=NAME")};
}

Result<CheckpointEntry> choose_checkpoint(FileSystem& fs, const std::string& folder, std::ostream& err) {
  TRY_ASSIGN(const std::vector<CheckpointEntry> entries, entries_of(fs, folder));
  for (const CheckpointEntry& entry : entries) {
    const Status verified = verify_checkpoint(fs, entry.path);
    if (verified.ok()) return entry;
    if (!may_be_passed_over(verified.error()) || entries.size() == 1) return verified.error();
    err << "passed over " << entry.path << ": " << verified.error().message << "\n";
  }
  return Error{ErrorCode::kCorrupt, "every checkpoint in " + folder + " is damaged"};
}

Status export_command(FileSystem& fs, const CkptOptions& options, std::ostream& out, std::ostream& err) {
  TRY_ASSIGN(const CheckpointEntry entry, choose_checkpoint(fs, options.folder, err));
  TRY_ASSIGN(const std::string name, file_to_export(entry, options.ema));
  TRY_ASSIGN(std::string bytes, read_checkpoint_file(fs, entry, name));
  TRY_ASSIGN(const TensorFile file,
             read_safetensors(std::make_shared<const std::string>(std::move(bytes)), join_path(entry.path, name)));
  const bool is_pickle = options.format == "pt";
  const Status wrote = write_file_atomically(fs, options.output, [&](const ByteSink& sink) -> Status {
    if (!is_pickle) return write_safetensors(file.tensors, file.metadata, sink);
    PickleDict root;
    for (const TensorView& tensor : file.tensors) root.emplace_back(tensor.name, PickleValue{tensor});
    return write_torch_zip(root, sink);
  });
  if (!wrote.ok()) return Error{ErrorCode::kUnavailable, wrote.error().message};
  out << options.output << ": " << file.tensors.size() << " tensors of " << join_path(entry.path, name) << "\n"
      << "in Python: "
      << (is_pickle ? "torch.load(\"" + options.output + "\", weights_only=True)"
                    : "safetensors.torch.load_file(\"" + options.output + "\")")
      << "\n";
  return {};
}

Status prune_command(FileSystem& fs, const CkptOptions& options, std::ostream& out) {
  TRY_ASSIGN(const std::vector<CheckpointEntry> entries, list_checkpoints(fs, options.folder));
  if (entries.empty()) return Error{ErrorCode::kNotFound, options.folder + " holds no checkpoint (step-00001200)"};
  CheckpointStamp newest;
  for (const CheckpointEntry& entry : entries) {
    if (entry.state) newest = std::max(newest, entry.state->stamp());
  }
  TRY_ASSIGN(const std::vector<std::string> removed,
             prune_checkpoints(fs, options.folder, options.retention, newest, std::nullopt));
  for (const std::string& path : removed) out << "removed " << path << "\n";
  TRY_ASSIGN(const std::vector<DirectoryEntry> names, fs.list(options.folder));
  for (const DirectoryEntry& name : names) {
    if (!is_stale_folder_name(name.name)) continue;
    TRY(remove_tree(fs, join_path(options.folder, name.name)));
    out << "removed " << join_path(options.folder, name.name) << "\n";
  }
  TRY_ASSIGN(const std::vector<CheckpointEntry> kept, list_checkpoints(fs, options.folder));
  out << kept.size() << " kept\n";
  return {};
}

struct Subcommand {
  const char* name;
  const char* usage;  // what follows the name
};
constexpr Subcommand kSubcommands[] = {{"ls", "DIR"},
                                       {"verify", "DIR"},
                                       {"export", "DIR --format safetensors|pt --output FILE [--ema[=NAME]]"},
                                       {"prune", "DIR [--keep_last N] [--keep_every N]"}};

std::vector<std::string> subcommand_names() {
  std::vector<std::string> names;
  for (const Subcommand& command : kSubcommands) names.emplace_back(command.name);
  return names;
}

std::string usage_of(const std::string& subcommand) {
  for (const Subcommand& command : kSubcommands) {
    if (subcommand == command.name) return "lockstep ckpt " + subcommand + " " + command.usage;
  }
  return "lockstep ckpt COMMAND DIR";
}

CLI::App* add_subcommand(CLI::App& app, CkptOptions& options, const char* name, const char* help) {
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("DIR", options.folder, "a step folder, or the folder that holds them")->required();
  return command;
}

void declare(CLI::App& app, CkptOptions& options) {
  app.require_subcommand(1);
  add_subcommand(app, options, "ls", "list checkpoints, newest first");
  add_subcommand(app, options, "verify", "verify all checksums");
  CLI::App* convert = add_subcommand(app, options, "export", "write the weights as one file that Python opens");
  convert->add_option("--format", options.format, "safetensors or pt")
      ->required()
      ->check(CLI::IsMember({"safetensors", "pt"}));
  convert->add_option("--output", options.output, "the file to write")->required()->type_name("FILE");
  convert->add_flag("--ema{true}", options.ema, "the averaged weights instead; --ema=NAME when there are several");
  CLI::App* prune = add_subcommand(app, options, "prune", "remove old checkpoints and those moved aside");
  prune->add_option("--keep_last,--keep-last", options.retention.keep_last, "newest n that stay")
      ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  prune->add_option("--keep_every,--keep-every", options.retention.keep_every, "steps divisible by this stay; 0 = none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

}  // namespace

CommandShape ckpt_shape() {
  CkptOptions options;
  CLI::App app;
  declare(app, options);
  return shape_of(app);
}

int ckpt_command(FileSystem& fs, const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const std::string word = args.empty() ? "" : args.front();
  const std::string problem = word.starts_with("-") ? "" : subcommand_problem(word, subcommand_names());
  if (!problem.empty()) {
    err << "lockstep ckpt: " << problem << "; see lockstep ckpt --help\n";
    return code_of(ExitCode::kUsage);
  }
  CkptOptions options;
  CLI::App app("look at, check, convert and remove old checkpoints", "lockstep ckpt");
  declare(app, options);
  if (const std::optional<int> code = parse_command(app, args, "expected " + usage_of(word), out, err)) return *code;
  const auto run = [&]() -> Status {
    const std::string name = app.get_subcommands().front()->get_name();
    if (name == "ls") return list_command(fs, options, out);
    if (name == "verify") return verify_command(fs, options, out);
    if (name == "export") return export_command(fs, options, out, err);
    return prune_command(fs, options, out);
  };
  const Status status = run();
  if (status.ok()) return 0;
  err << "lockstep ckpt: " << status.error().message << "\n";
  return code_of(exit_code_of_file_error(status.error()));
}

}  // namespace lockstep
