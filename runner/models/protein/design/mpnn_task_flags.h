// Flags of `lockstep protein score` and `lockstep protein design`. Links no torch. Threads: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

enum class DesignFormat { kFasta, kJsonLines };

// Options of both tasks. Texts that name chains or residues are parsed for each structure (mpnn_positions.h).
struct MpnnTaskOptions {
  std::string design_chains;    // empty: all
  std::string fixed_positions;  // of those chains
  // Paths of files of the public helper scripts (mpnn_helper_files.h).
  std::string chain_id_jsonl;
  std::string fixed_positions_jsonl;
  uint64_t seed = 37;
  std::string only;               // path of a file with the names of the structures to use; empty: all
  int64_t batch_tokens = 10'000;  // residues of all sequences that are computed at once, including padding

  // score
  int64_t num_orders = 1;
  bool residues = false;
  std::string fasta;  // path of a file with sequences to score in addition to the structures' own

  // design
  std::string temperature = "0.1";  // one or more
  int64_t num_sequences = 1;
  int64_t batch = 8;
  std::string tied_positions;
  std::string omit_aa = "X";
  std::string bias;
  std::string tied_positions_jsonl;
  std::string omit_aa_jsonl;
  std::string bias_aa_jsonl;
  std::string bias_by_res_jsonl;
  DesignFormat format = DesignFormat::kFasta;
};

WorkloadTask mpnn_score_task();
WorkloadTask mpnn_design_task();

// Splits the text at each of the `separators`, and leaves out empty parts.
std::vector<std::string_view> words_of(std::string_view text, std::string_view separators);

// Parses --temperature: at least one number, each above 0. Error: kInvalid.
Result<std::vector<double>> temperatures_of(const MpnnTaskOptions& options);

// Parses --bias: letters of amino acids, and what is added to their logits. Error: kInvalid.
Result<std::vector<std::pair<char, double>>> biases_of(const MpnnTaskOptions& options);

}  // namespace lockstep
