// ProgramCommand: the user's program that each rank runs, and what is derived from it. Pure, but for find_program.
// Threads: any.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/agent/rank_output.h"
#include "runner/base/environment.h"
#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/contract/messages.h"

namespace lockstep {

inline constexpr const char* kDefaultRole = "default";
inline constexpr const char* kDefaultSignalNames = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
std::vector<int> default_stop_signals();

struct ProgramCommand {
  std::vector<std::string> words;   // the program's path and its arguments
  Environment environment;          // of every rank
  std::string run_id = "none";      // TORCHELASTIC_RUN_ID
  std::string role = kDefaultRole;  // ROLE_NAME
  std::string local_address;        // MASTER_ADDR where rank 0 runs here; empty: as the coordinator sees this node
  bool virtual_local_rank = false;  // LOCAL_RANK is 0, and CUDA_VISIBLE_DEVICES has the rank's GPU alone
  std::vector<int> signals = default_stop_signals();  // to the agent: they ask for an end, and are passed on
  std::string signal_names = kDefaultSignalNames;     // TORCHELASTIC_SIGNALS_TO_HANDLE
  OutputOptions output;
  std::string log_folder;            // the folder of RankFiles; empty: no files are written
  int max_restarts = 0;              // TORCHELASTIC_MAX_RESTARTS
  std::optional<int> master_port;    // --master_port: rank 0's store listens there; unset: any free port
  std::string checkpoint_folder;     // LOCKSTEP_CHECKPOINT_DIR: a new file there is progress; empty: not known
  std::optional<int> terminal_rank;  // the local rank that has the terminal, for a debugger; it is never forked
  bool recovers = false;             // --recover: LOCKSTEP_RECOVER of the ranks
  bool uses_zygote = true;
  int spares = 0;               // processes that the zygote forks ahead
  std::string remember_folder;  // what programs import is kept there; empty: it is not kept
};

// Whom this process runs as.
struct Account {
  uint64_t id = 0;
  bool has_name = true;  // false: a number that no user of the image has
};
// The environment of the program: the agent's, with what was kept from the agent's own loader (env::kKeptPrefix). A
// user without a name gets USER, without which PyTorch's compiler and getpass fail, and, where HOME is / or nothing,
// `temporary` as HOME.
Environment program_environment(const Environment& of_agent, const Account& account, const std::string& temporary);

// A command that a zygote can run: Python, and a script or a module.
struct PythonCommand {
  std::string python;
  std::vector<std::string> options;  // "-u", "-X", "dev"
  std::vector<std::string> program;  // a script and its arguments, or "-m", a module and its arguments
};
// nullopt for every other program, and for `-c`, `-`, `-i` and a folder or a zip file as the script.
std::optional<PythonCommand> python_command(const std::vector<std::string>& words);

// A name for what is known of this interpreter's program; the same for the same script or module.
std::string program_key(const PythonCommand& command);

// The path of a program that is named without one, as a shell finds it. kNotFound names PATH; a folder and a file that
// cannot be executed are kInvalid.
Result<std::string> find_program(const std::string& name, const Environment& environment);

// Where rank 0 of a group serves torch's store.
struct MasterAddress {
  std::string host;
  int port = 0;
};
// How many placements were before this one: TORCHELASTIC_RESTART_COUNT, and the number of attempt_N among log files.
int restart_count(const Assignment& assignment);

// What torchrun gives a rank, variable by variable. TORCHELASTIC_USE_AGENT_STORE is False, because rank 0 serves the
// store itself. OMP_NUM_THREADS is 1 for several ranks unless it is set, as torchrun has it.
Environment rank_environment(const ProgramCommand& command, const Assignment& assignment, const MasterAddress& master);

// What torch's @record, or rank_start.py, has written to TORCHELASTIC_ERROR_FILE, in the words of LastLines::reason();
// empty where there is no such file, or it says nothing.
std::string reason_of_error_file(FileSystem& fs, const std::string& path);

// The last lines of a rank's output to stderr, for the reason of its end.
class LastLines {
 public:
  void add(const std::string& line);
  // Python's traceback as one line, "ValueError: x (train.py:12, in main)"; without one the last line that says
  // something; empty without any.
  [[nodiscard]] std::string reason() const;
  // The newest `count` lines, in their order.
  [[nodiscard]] std::vector<std::string> newest(size_t count) const;

 private:
  std::deque<std::string> lines_;
};

}  // namespace lockstep
