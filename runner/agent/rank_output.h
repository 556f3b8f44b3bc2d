// What is done with the output of the ranks of `lockstep launch`: torchrun's --redirects, --tee, --local_ranks_filter,
// --log-line-prefix-template and --duplicate-*-filters. Pure. Threads: plain values.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

// Which of its two streams, for each local rank.
struct StreamChoice {
  struct Streams {
    bool out = false;
    bool err = false;
  };
  Streams others;                   // of ranks that are not named
  std::map<int, Streams> of_ranks;  // by local rank
  [[nodiscard]] bool has(int local_rank, bool to_stderr) const;
  [[nodiscard]] bool is_none() const;
};
// torchrun's form: "0" to "3" for all ranks (1: stdout, 2: stderr, 3: both), or "0:3,1:1" by local rank. kInvalid says
// what is expected.
Result<StreamChoice> parse_streams(std::string_view text);

struct OutputOptions {
  StreamChoice redirects;  // go to a file and not to the console
  StreamChoice tee;        // go to a file and to the console
  std::string log_dir;     // --log_dir; empty: not given
  std::vector<int> shown;  // local ranks whose output is shown on the console; empty: all
  std::string prefix;      // of each line on the console, a template; empty: "[rank N] " for all ranks but 0
  std::vector<std::string> duplicate_out;  // lines of tee'd streams that have one of these go to one more file
  std::vector<std::string> duplicate_err;

  [[nodiscard]] bool writes_files() const { return !redirects.is_none() || !tee.is_none() || !log_dir.empty(); }
  [[nodiscard]] bool is_shown(int local_rank, bool to_stderr) const;
  [[nodiscard]] bool goes_to_file(int local_rank, bool to_stderr) const;
  // Whether the line also goes to the file of filtered lines.
  [[nodiscard]] bool is_duplicated(int local_rank, bool to_stderr, std::string_view line) const;
};

// The template with ${role_name}, ${rank} and ${local_rank} replaced, as Python's string.Template.safe_substitute.
std::string line_prefix(const std::string& prefix_template, const std::string& role, int rank, int local_rank);

}  // namespace lockstep
