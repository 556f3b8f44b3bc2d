// The files that the helper scripts of the public ProteinMPNN write, for `lockstep protein design` and `score`: which
// chains are designed, which positions are fixed or tied, what is omitted and what is preferred.
//
// Role: lines of JSON → choices for one structure. A file is one object by the structures' names (--bias_AA_jsonl: by
// amino acids). A position is counted from 1 in its chain, gaps included, and is not the residue's number in the file.
// Threads: reads files; otherwise pure. Errors (kInvalid): the file and what is missing or wrong in it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/data/structures/structure_cache.h"
#include "runner/models/protein/mpnn_task_flags.h"

namespace lockstep {

using AminoAcidValues = std::array<double, kResidueAlphabet.size()>;

// Positions are places in the StructureView.
struct HelperChoices {
  std::optional<std::vector<size_t>> designed_chains;  // without a file that says: those of the flags
  std::vector<int64_t> fixed;
  std::vector<std::vector<int64_t>> tied;
  std::vector<std::pair<int64_t, double>> tied_weights;  // those that are not 1
  std::vector<std::pair<int64_t, std::string>> omitted;  // letters that may not be drawn there
  std::vector<std::pair<int64_t, AminoAcidValues>> bias;
};

class HelperFiles {
 public:
  // Those whose path is given.
  static Result<HelperFiles> read(FileSystem& fs, const MpnnTaskOptions& options);

  [[nodiscard]] Result<HelperChoices> choices(const StructureView& view) const;
  [[nodiscard]] const AminoAcidValues& bias() const { return bias_; }  // of every position

 private:
  struct File {
    std::string flag;  // "--fixed_positions_jsonl fixed.jsonl", for messages; empty: not given
    Json content;
  };

  File chains_;
  File fixed_;
  File tied_;
  File omitted_;
  File bias_by_residue_;
  AminoAcidValues bias_{};
};

// One record of a FASTA file.
struct FastaRecord {
  std::string header;    // without the >
  std::string sequence;  // of one or more lines, without spaces
};
Result<std::vector<FastaRecord>> parse_fasta(const std::string& text, const std::string& what);

}  // namespace lockstep
