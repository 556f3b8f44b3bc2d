// RunHistory: the figures of a whole run by step, and its starts and recoveries, in bounded memory. Pure.
//
// Its input is the lines of metrics.jsonl and recoveries.jsonl (contract/run_folder_layout.h), in order, or, for a
// program of the user's, the figures that it says. When a step is lower than the one before it, steps were redone: the
// points after it are dropped, and its own are replaced.
// Threads: none.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/json.h"
#include "runner/contract/messages.h"
#include "runner/contract/run_status.h"

namespace lockstep {

inline constexpr size_t kSeriesPointsMax = 2000;
inline constexpr size_t kNewestPointsKept = 500;  // the newest points of a series are never thinned
inline constexpr size_t kThinningBuckets = 500;   // ranges of steps of the older points; two points of each are kept
inline constexpr size_t kSeriesMax = 100;         // further figures are ignored
inline constexpr size_t kHistoryMarksMax = 200;   // starts and recoveries; the oldest are dropped

struct HistoryPoint {
  int64_t step = 0;
  double value = 0.0;
  bool operator==(const HistoryPoint&) const = default;
};

// The same curve with at most kSeriesPointsMax points. The first point and the newest kNewestPointsKept are kept. The
// steps between are divided into kThinningBuckets ranges of equal length, and of each the points with the lowest and
// the highest value are kept, so that neither the shape of the curve nor a spike is lost. `points`: sorted by step.
std::vector<HistoryPoint> thinned(std::vector<HistoryPoint> points);

struct HistorySeries {
  std::string name;  // the field in metrics.jsonl: "loss", "valid_ndcg@10"
  bool is_evaluation = false;
  std::vector<HistoryPoint> points;  // sorted by step
};

// What a program of the user's has said of a step, in the order in which the curves are to be shown. Values that are
// not finite are left out.
struct StepFigures {
  int64_t step = 0;
  std::vector<std::pair<std::string, double>> values;
};

// A start of the run, or a recovery.
struct HistoryMark {
  int64_t step = 0;                     // the first step that was committed after it
  std::string cause;                    // cause of a recovery, CamelCase; empty: a start from a checkpoint
  std::optional<double> total_seconds;  // duration of a recovery: from the last sign of life to the first commit
  std::string origin;                   // where the state came from, for messages
  std::optional<int64_t> unix_seconds;
};

class RunHistory {
 public:
  void add_metrics_line(std::string_view text);
  void add_figures(const StepFigures& figures);
  // A start from step 0 begins a new run: it drops all earlier marks and adds none.
  void add_recovery_line(std::string_view text);
  // For a line that was too long to be read.
  void count_bad_line() { ++bad_lines_; }
  // To be called before a file is read again from its beginning.
  void drop_series() {
    series_.clear();
    bad_lines_ = 0;
  }
  void drop_marks() { marks_.clear(); }

  [[nodiscard]] const std::vector<HistorySeries>& series() const { return series_; }
  [[nodiscard]] const std::deque<HistoryMark>& marks() const { return marks_; }
  [[nodiscard]] int64_t bad_lines() const { return bad_lines_; }

 private:
  void drop_redone(int64_t step);
  void add_point(const std::string& name, bool is_evaluation, HistoryPoint point);

  std::vector<HistorySeries> series_;  // in the order in which they appeared
  std::deque<HistoryMark> marks_;
  int64_t bad_lines_ = 0;
};

// {"series": [{"name", "evaluation", "points": [[step, value], …]}], "marks": [{"step", "cause", …}], "badLines"}
OrderedJson to_json(const RunHistory& history);

// The lines of recoveries.jsonl, without '\n'.
std::string recovery_line(const Recovery& recovery);
std::string start_line(const Resumed& resumed, int world_size, int64_t unix_seconds);

}  // namespace lockstep
