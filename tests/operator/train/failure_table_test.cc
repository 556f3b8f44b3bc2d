// The table of docs/failure-handling.md against the code: each row says what follows an end before and after the first
// commit, and by which reasons it is seen. A row that the code does not keep fails, and so does an end without a row.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "operator/train/failure_policy.h"
#include "operator/train/object_names.h"
#include "runner/contract/exit_code.h"
#include "runner/recovery/restart_policy.h"

namespace lockstep::train {
namespace {

constexpr std::string_view kBegin = "<!-- failure table";
constexpr int kCodeMax = 255;

struct TableRow {
  std::string what;  // up to the colon
  std::string before;
  std::string after;
  std::string seen;
};

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream text(line.substr(1));
  for (std::string cell; std::getline(text, cell, '|');) cells.push_back(trimmed(cell));
  return cells;
}

std::vector<TableRow> read_table() {
  std::ifstream file(LOCKSTEP_FAILURE_TABLE);
  std::vector<TableRow> rows;
  bool is_inside = false;
  int num_header_lines = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(kBegin, 0) == 0) is_inside = true;
    if (!is_inside || line.rfind(kBegin, 0) == 0) continue;
    if (line.empty()) break;
    if (num_header_lines++ < 2) continue;
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() < 5) {
      ADD_FAILURE() << "a row needs 5 cells: " << line;
      continue;
    }
    rows.push_back({trimmed(cells[0].substr(0, cells[0].find(':'))), cells[1], cells[2], cells[4]});
  }
  return rows;
}

api::TrainJobSpec spec_of(api::Launcher launcher) {
  api::TrainJobSpec spec;
  spec.trainer.launcher = launcher;
  return spec;
}

// How the operator reads a container that has ended so.
PodEnd end_of_container(api::Launcher launcher, int code, const std::string& container_reason = "Error",
                        const std::string& message = "") {
  Observed o;
  o.job.spec = spec_of(launcher);
  PodView pod;
  pod.phase = PodPhase::kFailed;
  pod.started = true;
  pod.node = "node-b";
  pod.end = ContainerEnd{std::string(kTrainerContainer), code, container_reason, message, 1};
  return *find_end(pod, o);
}

PodEnd end_of_failed_pod(const std::string& reason, const std::string& message, const std::string& disruption = "") {
  Observed o;
  PodView pod;
  pod.phase = PodPhase::kFailed;
  pod.node = "node-b";
  pod.reason = reason;
  pod.message = message;
  pod.disruption = disruption;
  return *find_end(pod, o);
}

PodEnd end_of_kind(EndKind kind, const std::string& reason) {
  PodEnd end;
  end.kind = kind;
  end.reason = reason;
  end.node = "node-b";
  return end;
}

// The words of the table.
std::string words_of(const Verdict& verdict) {
  if (verdict.action == api::RuleAction::kFail)
    return verdict.is_fixable_by_spec_change ? "the job is suspended" : "the job fails";
  return std::string(verdict.action == api::RuleAction::kRestartGang ? "all pods replaced" : "replaced") +
         (verdict.avoids_node ? " on another node" : "") + (verdict.is_counted ? ", counted" : ", not counted");
}

std::string words_of(const EndVerdict& verdict) {
  if (verdict.consequence == Consequence::kEndJob) return "the job fails";
  if (verdict.consequence == Consequence::kSuspendJob) return "the job is suspended";
  return std::string("replaced") + (verdict.avoids_machine ? " on another node" : "") +
         (verdict.is_counted ? ", counted" : ", not counted");
}

// A cell begins with the words; what comes after a semicolon is about budgets, which other tests are about.
std::string first_words(const std::string& cell) { return trimmed(cell.substr(0, cell.find(';'))); }

std::vector<int> numbers_in(const std::string& text) {
  std::vector<int> numbers;
  for (size_t at = text.find_first_of("0123456789"); at != std::string::npos;
       at = text.find_first_of("0123456789", at)) {
    size_t length = 0;
    numbers.push_back(std::stoi(text.substr(at), &length));
    at += length;
  }
  return numbers;
}

class FailureTable : public testing::Test {
 protected:
  void expect(const TableRow& row, const PodEnd& end, const api::TrainJobSpec& spec = {}) {
    EXPECT_EQ(first_words(row.before), words_of(judge(end, spec, false)))
        << row.what << ", exit code " << end.exit_code.value_or(-1);
    EXPECT_EQ(first_words(row.after), words_of(judge(end, spec, true)))
        << row.what << ", exit code " << end.exit_code.value_or(-1);
    const bool is_any_reason = row.seen.find("…") != std::string::npos || row.seen.find('`') == std::string::npos;
    EXPECT_TRUE(is_any_reason || row.seen.find("`" + end.reason + "`") != std::string::npos)
        << row.what << " is seen as " << end.reason << ", the table says " << row.seen;
  }

  void expect_code(const TableRow& row, int code) {
    expect(row, end_of_container(api::Launcher::kLockstep, code));
    // What the agents and `lockstep run --local_nodes` follow.
    for (const bool after : {false, true}) {
      EXPECT_EQ(first_words(after ? row.after : row.before),
                words_of(judge_end({.code = code, .after_first_commit = after})))
          << row.what << ", exit code " << code;
    }
  }
};

TEST_F(FailureTable, says_of_every_exit_code_what_the_code_does) {
  std::set<int> named;
  std::optional<TableRow> other;
  for (const TableRow& row : read_table()) {
    if (row.what == "any other exit code") other = row;
    if (row.what.rfind("exit code ", 0) != 0 || row.what.find("with") != std::string::npos) continue;
    const std::vector<int> codes = numbers_in(row.what);
    ASSERT_FALSE(codes.empty()) << row.what;
    for (const int code : codes) {
      EXPECT_TRUE(named.insert(code).second) << "exit code " << code << " has two rows";
      expect_code(row, code);
    }
  }
  ASSERT_TRUE(other.has_value());
  for (int code = 1; code <= kCodeMax; ++code) {
    if (named.count(code) == 0) expect_code(*other, code);
  }
  // Codes with a meaning of their own have a row of their own.
  for (const int code : {2, 3, 4, 5, 10, 11, 12, 13, 130, 143}) EXPECT_EQ(named.count(code), 1U) << code;
}

TEST_F(FailureTable, says_of_every_other_end_what_the_code_does) {
  using api::Launcher;
  const std::string changed = R"({"exitCode":2,"reason":"ConfigurationChanged","message":"--lr is 1 and was 2"})";
  const std::string with_the_run = R"({"exitCode":12,"message":"node 1 gave up","rank":-1,"jobEnded":true})";
  PodEnd of_init_container = end_of_container(Launcher::kLockstep, 5);
  of_init_container.is_of_trainer = false;
  of_init_container.reason = "InitContainerFailed";
  struct Case {
    std::vector<PodEnd> ends;
    std::vector<Launcher> launchers = {Launcher::kLockstep};
  };
  const std::vector<Launcher> others = {Launcher::kTorchrun, Launcher::kNone};
  std::vector<PodEnd> crashes;
  for (int code = 1; code <= kCodeMax; ++code) {
    if (!is_stop(code)) crashes.push_back(end_of_container(Launcher::kTorchrun, code));
  }
  const std::map<std::string, Case> cases = {
      {"exit code 2 with ConfigurationChanged", {{end_of_container(Launcher::kLockstep, 2, "Error", changed)}}},
      {"OOMKilled", {{end_of_container(Launcher::kLockstep, 137, "OOMKilled")}}},
      {"an agent that ended with the run", {{end_of_container(Launcher::kLockstep, 12, "Error", with_the_run)}}},
      {"launcher Torchrun or None, exit code 130, 143",
       {{end_of_container(Launcher::kTorchrun, 130), end_of_container(Launcher::kTorchrun, 143)}, others}},
      {"launcher Torchrun or None, any other exit code but 0", {crashes, others}},
      {"launcher Torchrun or None, OOMKilled", {{end_of_container(Launcher::kNone, 137, "OOMKilled")}, others}},
      {"an init container, or a sidecar before the trainer began", {{of_init_container}}},
      {"evicted for its own limit",
       {{end_of_failed_pod("Evicted",
                           "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.")}}},
      {"evicted, preempted, drained",
       {{end_of_failed_pod("Evicted", "The node was low on resource: memory.", "TerminationByKubelet"),
         end_of_failed_pod("", "", "EvictionByEvictionAPI"), end_of_failed_pod("", "", "PreemptionByScheduler")}}},
      {"refused by its kubelet",
       {{end_of_failed_pod("OutOfcpu", "Node didn't have enough resource: cpu"),
         end_of_failed_pod("UnexpectedAdmissionError", "Allocate failed"),
         end_of_failed_pod("TopologyAffinityError", "Resources cannot be allocated with Topology locality"),
         end_of_failed_pod("NodeAffinity", "Predicate NodeAffinity failed"),
         end_of_failed_pod("Evicted", "Pod was rejected: The node had condition: [DiskPressure]. ")}}},
      {"deleted by somebody", {{end_of_missing_pod("sasrec-1-0", 1, 0, 1)}}},
      {"its node is lost", {{end_of_kind(EndKind::kNodeLost, "NodeLost")}}},
      {"not started, while its peers are", {{end_of_kind(EndKind::kNotStarted, "NotStarted")}}}};
  std::set<std::string> seen;
  for (const TableRow& row : read_table()) {
    const bool is_by_code = row.what == "any other exit code" ||
                            (row.what.rfind("exit code ", 0) == 0 && row.what.find("with") == std::string::npos);
    if (is_by_code) continue;
    const auto found = cases.find(row.what);
    ASSERT_NE(found, cases.end()) << "no case here for the row \"" << row.what << '"';
    seen.insert(row.what);
    for (const api::Launcher launcher : found->second.launchers) {
      for (const PodEnd& end : found->second.ends) expect(row, end, spec_of(launcher));
    }
  }
  for (const auto& [what, ends] : cases) EXPECT_EQ(seen.count(what), 1U) << "the table has no row \"" << what << '"';
  const EndVerdict suspends = judge_end({.code = 2, .is_configuration_changed = true, .after_first_commit = true});
  EXPECT_EQ(suspends.consequence, Consequence::kSuspendJob);
}

}  // namespace
}  // namespace lockstep::train
