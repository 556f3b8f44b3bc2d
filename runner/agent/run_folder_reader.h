// RunFolderReader: reads what a run's folder holds for the agent's page (contract/run_folder_layout.h).
//
//   GET /history                           the run's figures, its starts and recoveries (run_history.h)
//   GET /outputs                           which pictures and texts there are, the newest first
//   GET /outputs/step-00000120/NAME        one of them
//
// Nothing but files of exactly these names is opened, and no link is followed below the run's folder.
// Threads: one, which may be held up for as long as the volume is (run_folder_view.h). Errors: as HTTP codes.
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

// At one request: a tenth of a second on a busy machine, well within kFolderPatience. A longer file takes several.
inline constexpr uint64_t kHistoryReadMax = uint64_t{1} << 20;
inline constexpr size_t kOutputsListedMax = 200;

class RunFolderReader {
 public:
  // bytes_max: of metrics.jsonl, read at one request.
  explicit RunFolderReader(std::string folder, uint64_t bytes_max = kHistoryReadMax)
      : folder_(std::move(folder)), bytes_max_(bytes_max) {}

  // `path`: of one of the requests above, as it was sent. 404 for any other.
  HttpAnswer answer(const std::string& path);
  // Appends a line (without its end) to recoveries.jsonl, by one write. kUnavailable, kNotFound.
  Status append_recovery(const std::string& line);

 private:
  HttpAnswer history();
  HttpAnswer outputs();
  HttpAnswer output(const std::string& path);
  // True: there is more to read at once.
  Result<bool> read_more();
  Status open_metrics();
  void open_recoveries();

  std::string folder_;
  uint64_t bytes_max_;
  RunHistory history_;
  std::vector<LineFile> metrics_;  // metrics.jsonl.1, …, metrics.jsonl; empty as long as there is none
  std::optional<LineFile> recoveries_;
};

}  // namespace lockstep
