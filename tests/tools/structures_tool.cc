// structures_tool PATH [CACHE_FOLDER]: prepares the structures at PATH and prints what is in the cache, one JSON line
// for each structure, then one for each file that was skipped. CACHE_FOLDER: as prepare_structures; `time` instead
// prints how long one thread took, without the structures.
#include <chrono>
#include <cmath>
#include <iostream>
#include <string>

#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/models/protein/data/prepare_structures.h"

namespace lockstep {
namespace {

Json atom_json(const Atom& atom) { return is_missing(atom) ? Json() : Json{atom[0], atom[1], atom[2]}; }

OrderedJson chain_json(const StructureView& structure, const ChainView& chain) {
  OrderedJson out;
  out["id"] = chain.id;
  out["is_protein"] = chain.is_protein;
  out["group"] = chain.group;
  out["cluster"] = chain.cluster;
  out["split"] = static_cast<int>(chain.split);
  std::string sequence;
  Json backbone = Json::array();
  Json numbers = Json::array();
  Json chi1 = Json::array();
  Json flags = Json::array();
  for (uint32_t i = chain.begin; i < chain.end; ++i) {
    sequence += kResidueAlphabet[structure.types[i]];
    Json atoms = Json::array();
    for (const Atom& atom : structure.backbone[i]) atoms.push_back(atom_json(atom));
    backbone.push_back(std::move(atoms));
    std::string number = std::to_string(structure.numbers[i]);
    if (structure.insertion_codes[i] != ' ') number += structure.insertion_codes[i];
    numbers.push_back(number);
    chi1.push_back(std::isnan(structure.chi1[i]) ? Json() : Json(structure.chi1[i]));
    flags.push_back(structure.flags[i]);
  }
  out["sequence"] = sequence;
  out["backbone"] = backbone;
  out["numbers"] = numbers;
  out["chi1"] = chi1;
  out["flags"] = flags;
  return out;
}

Status print(const StructureCache& cache) {
  for (int64_t i = 0; i < cache.size(); ++i) {
    TRY_ASSIGN(const StructureView structure, cache.structure(i));
    OrderedJson line;
    line["name"] = structure.name;
    line["chains"] = OrderedJson::array();
    for (const ChainView& chain : structure.chains) line["chains"].push_back(chain_json(structure, chain));
    std::cout << dump_line(line) << "\n";
  }
  for (const SkippedFile& file : cache.skipped()) {
    std::cout << dump_line(OrderedJson{{"skipped", file.file}, {"reason", file.reason}}) << "\n";
  }
  return {};
}

Status run(const std::string& path, const std::string& cache_folder) {
  PosixFileSystem fs;
  if (cache_folder == "time") {
    const auto begin = std::chrono::steady_clock::now();
    TRY_ASSIGN(const PreparedStructures prepared, prepare_structures(fs, path, "", {.threads = 1}));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::cout << dump_line(OrderedJson{{"structures", prepared.cache.size()}, {"seconds", seconds.count()}}) << "\n";
    return {};
  }
  TRY_ASSIGN(const PreparedStructures prepared, prepare_structures(fs, path, cache_folder, {}));
  std::cerr << prepared.summary << "\n";
  return print(prepared.cache);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::cerr << "usage: structures_tool PATH [CACHE_FOLDER|time]\n";
    return 2;
  }
  const lockstep::Status status = lockstep::run(argv[1], argc == 3 ? argv[2] : "");
  if (status.ok()) return 0;
  std::cerr << status.error().message << "\n";
  return 1;
}
