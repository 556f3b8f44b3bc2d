// RunFolderView: serves files of the run's folder for node 0's status server, and writes the agent's lines into it. For
// a program of the user's, which has no such folder, it keeps in memory what is to be shown.
//
// A failing volume may take seconds to respond, or never respond. Neither the agent's loop, which sends heartbeats, nor
// the status server's thread, which answers /healthz, may wait for it. So the folder is read and written on a thread of
// its own, and callers wait for at most kFolderPatience. Threads: answer() from one thread, the status server's; the
// other functions from any. Ownership: the thread is detached and owns what it needs; it ends after its present call.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runner/agent/run_history.h"
#include "runner/base/http_server.h"
#include "runner/base/result.h"

namespace lockstep {

inline constexpr std::chrono::milliseconds kFolderPatience{500};
// Most bytes of answers within kHttpRequestTime. A client that does not read can keep an answer in memory for that
// long.
inline constexpr size_t kFolderAnswersMax = size_t{64} << 20;
inline constexpr size_t kUnwrittenMax = 100;  // lines, and figures of a step; the oldest are dropped

class RunFolderView {
 public:
  // The functions that the thread calls (those of RunFolderReader). They may take any time.
  struct Calls {
    std::function<HttpAnswer(const std::string& path)> answer;
    std::function<Status(const std::string& line)> append_recovery;
    std::function<void(const StepFigures&)> add_figures;
  };
  explicit RunFolderView(Calls calls, std::chrono::milliseconds patience = kFolderPatience);
  // Uses a RunFolderReader of that folder; empty: there is none.
  explicit RunFolderView(const std::string& folder);
  ~RunFolderView();  // does not wait for a call that is under way
  RunFolderView(const RunFolderView&) = delete;
  RunFolderView& operator=(const RunFolderView&) = delete;

  // 503 when the folder does not respond in time, or the limit kFolderAnswersMax is reached.
  HttpAnswer answer(const std::string& path, std::chrono::steady_clock::time_point now);
  // Queues the line for recoveries.jsonl.
  void append_recovery(std::string line);
  // Only where there is no folder. Queues the figures for the curves.
  void add_figures(StepFigures figures);
  // Why a line could not be written. Reported once, and again only after a write has succeeded. Empty: nothing new.
  std::string new_problem();

 private:
  struct Shared;
  void queue(std::function<Status()> write);

  std::shared_ptr<Shared> shared_;
  std::chrono::milliseconds patience_;
  // When the present window of kHttpRequestTime began, and the bytes that were answered in it.
  std::chrono::steady_clock::time_point window_began_{};
  size_t window_bytes_ = 0;
};

}  // namespace lockstep
