// Reads the files of the public ProteinMPNN's helper scripts for `lockstep protein design` and `score`: which chains
// are designed, which positions are fixed or tied, and which amino acids are omitted or preferred.
//
// Role: lines of JSON → choices for one structure. The lines of a file form one object whose keys are the structures'
// names (for --bias_AA_jsonl: amino acids). A position counts from 1 in its chain, gaps included; it is not the
// residue's number in the structure's file. What the files say of a chain that is no protein is left out.
// Threads: reads files; otherwise pure.
// Errors (kInvalid): the message names the file and what is missing or wrong in it.
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
#include "runner/models/protein/data/structure_cache.h"
#include "runner/models/protein/design/mpnn_task_flags.h"

namespace lockstep {

using AminoAcidValues = std::array<double, kResidueAlphabet.size()>;

// The choices for one structure. Positions are indices in the StructureView.
struct HelperChoices {
  std::optional<std::vector<size_t>> designed_chains;  // unset: no --chain_id_jsonl; the flags choose them
  std::vector<int64_t> fixed;
  std::vector<std::vector<int64_t>> tied;
  std::vector<std::pair<int64_t, double>> tied_weights;  // position, weight; positions without an entry have 1
  std::vector<std::pair<int64_t, std::string>> omitted;  // position, letters that may not be drawn there
  std::vector<std::pair<int64_t, AminoAcidValues>> bias;
};

class HelperFiles {
 public:
  // Reads the files whose paths are given.
  static Result<HelperFiles> read(FileSystem& fs, const MpnnTaskOptions& options);

  [[nodiscard]] Result<HelperChoices> choices(const StructureView& view) const;
  [[nodiscard]] const AminoAcidValues& bias() const { return bias_; }  // for every position, from --bias_AA_jsonl

 private:
  struct File {
    std::string flag;  // for messages, for example "--fixed_positions_jsonl fixed.jsonl"; empty: not given
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
  std::string sequence;  // its lines joined, without spaces
};
Result<std::vector<FastaRecord>> parse_fasta(const std::string& text, const std::string& what);

}  // namespace lockstep
