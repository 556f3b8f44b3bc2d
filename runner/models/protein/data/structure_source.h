// StructureSource: the structures at a path, in pieces that can be read one at a time, by any thread.
//
// Role: find_structures recognises the kind of source by what it finds at the path:
//   files         one file or a folder (with the folders in it) of .pdb .ent .cif .mmcif, each also .gz
//   JSON lines    a .jsonl file of ProteinMPNN's helper scripts or of the CATH set (structure_json.h)
//   tensors       a folder of the guide's {pdb_id}.pt (structure_tensors.h)
//   training set  ProteinMPNN's pdb_2021aug02: a folder with list.csv and pdb/ (training_set.h)
// In a folder of files or tensors, train.txt, val.txt and test.txt (the name of a structure in each line, which may
// have spaces in it) set StructureChain::split, if the caller wants it. The path generated[:COUNT[:LENGTH]] means
// structures made in memory (generated_structures.h); "./generated" is a path. Threads: immutable once made; read()
// from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/data/prepare_cache.h"
#include "runner/models/protein/data/structure.h"

namespace lockstep {

class StructureSource : public PieceSource {
 public:
  // The structures of piece i; several if it has several assemblies. Each passes check_structure. Errors: those of the
  // readers, without the piece's name.
  [[nodiscard]] virtual Result<std::vector<Structure>> read(int64_t i) const = 0;
};

// What becomes of train.txt, val.txt and test.txt in a folder.
enum class SplitLists { kIgnored, kUsed };

// A structure's name in a list, where the folder and the ending of its file may be left out. What follows another dot
// belongs to the name: "sub/1abc.cif.gz" and "1abc" → "1abc", "1abc.A" → "1abc.A".
std::string structure_name_in_list(const std::string& entry);

// The entries of a list of names: its lines without the white space around them; empty ones are left out.
std::vector<std::string> entries_of_list(std::string_view text);

// Errors: kNotFound (no such path), kInvalid (none of these kinds: says what was found and what was expected),
// kUnavailable (cannot be read). `fs` outlives the source. on_progress is called now and then while a folder is listed.
Result<std::unique_ptr<StructureSource>> find_structures(
    FileSystem& fs, const std::string& path, SplitLists split_lists, const std::function<void()>& on_progress = [] {});

}  // namespace lockstep
