// RunFolderReader: reads files of a run's folder for the agent's web page (contract/run_folder_layout.h).
//
//   GET /history                           the run's figures, its starts and recoveries (run_history.h)
//   GET /outputs                           list of pictures and texts, the newest first
//   GET /outputs/step-00000120/NAME        one of them
//
// Opens only files of these names, and follows no link below the run's folder. A program of the user's has no such
// folder: what is added here is then kept in memory, in the same bounds.
// Threads: one; its calls block as long as the volume does (run_folder_view.h). Errors: as HTTP codes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/agent/line_file.h"
#include "runner/agent/run_history.h"
#include "runner/base/http_server.h"
#include "runner/base/result.h"

namespace lockstep {

// Bytes of metrics.jsonl that one request reads: a tenth of a second on a busy machine, well within kFolderPatience. A
// longer file takes several requests.
inline constexpr uint64_t kHistoryReadMax = uint64_t{1} << 20;
inline constexpr size_t kOutputsListedMax = 200;

class RunFolderReader {
 public:
  // `fs`: one that reads through no links; outlives the reader. `folder`: empty where there is none. bytes_max: most
  // bytes of metrics.jsonl that one request reads.
  RunFolderReader(FileSystem& fs, std::string folder, uint64_t bytes_max = kHistoryReadMax)
      : fs_(&fs), folder_(std::move(folder)), bytes_max_(bytes_max) {}

  // `path`: as in the requests above, not decoded. 404 for any other path.
  HttpAnswer answer(const std::string& path);
  // Appends a line (given without '\n') to recoveries.jsonl with one write. Errors: kUnavailable, kNotFound.
  Status append_recovery(const std::string& line);
  // Only where there is no folder.
  void add_figures(const StepFigures& figures) { history_.add_figures(figures); }

 private:
  HttpAnswer history();
  HttpAnswer outputs();
  HttpAnswer output(const std::string& path);
  // True: there is more to read.
  Result<bool> read_more();
  Status open_metrics();
  void open_recoveries();

  FileSystem* fs_;
  std::string folder_;
  uint64_t bytes_max_;
  RunHistory history_;
  std::vector<LineFile> metrics_;  // metrics.jsonl.1, …, metrics.jsonl; empty until the file exists
  std::optional<LineFile> recoveries_;
};

}  // namespace lockstep
