// RunFolderView: what node 0's status server shows of the run's folder, and the agent's own lines in it.
//
// A volume in trouble may take seconds to answer, or never does. An agent that waited for it would be taken for lost,
// and probes of /healthz are answered by the thread that asks here: so the folder is read and written on a thread of
// its own, and nobody waits for it longer than kFolderPatience. Threads: answer() from one thread, the status server's;
// the others from any. Ownership: the thread lives as long as the call that it is in, and keeps what it needs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runner/base/http_server.h"
#include "runner/base/result.h"

namespace lockstep {

inline constexpr std::chrono::milliseconds kFolderPatience{500};
// Bytes of answers within kHttpRequestTime, for so long may a peer that does not read keep them in memory.
inline constexpr size_t kFolderAnswersMax = size_t{64} << 20;
inline constexpr size_t kUnwrittenLinesMax = 100;

class RunFolderView {
 public:
  // What the thread calls: RunFolderReader's. They may take any time.
  struct Calls {
    std::function<HttpAnswer(const std::string& path)> answer;
    std::function<Status(const std::string& line)> append_recovery;
  };
  explicit RunFolderView(Calls calls, std::chrono::milliseconds patience = kFolderPatience);
  // Of the folder itself.
  explicit RunFolderView(const std::string& folder);
  ~RunFolderView();  // does not wait for a call that is under way
  RunFolderView(const RunFolderView&) = delete;
  RunFolderView& operator=(const RunFolderView&) = delete;

  // 503 when the folder does not answer in time, or more was asked for than may lie in memory.
  HttpAnswer answer(const std::string& path, std::chrono::steady_clock::time_point now);
  // Into recoveries.jsonl, soon.
  void append_recovery(std::string line);
  // Why a line could not be written; the first time, and again after one could be. Empty: nothing new.
  std::string take_problem();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::chrono::milliseconds patience_;
  // Of the answers that may still lie in memory.
  std::chrono::steady_clock::time_point window_began_{};
  size_t window_bytes_ = 0;
};

}  // namespace lockstep
