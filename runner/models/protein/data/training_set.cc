#include "runner/models/protein/data/training_set.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "runner/base/parse_number.h"
#include "runner/base/sha256.h"
#include "runner/data/next_line.h"
#include "runner/formats/open_text.h"
#include "runner/models/protein/data/structure_tensors.h"
#include "runner/models/protein/data/torch_values.h"

namespace lockstep {
namespace {

constexpr uint64_t kListBytesMax = uint64_t{1} << 30;  // the whole list has 200 MB
constexpr int64_t kAtomsOfResidue = 14;                // N, CA, C, O, CB, then the side chain outwards

struct ListedChain {
  int64_t cluster = -1;
  ChainSplit split = ChainSplit::kTrain;
};

struct Entry {
  std::string id;                             // "1abc"
  std::map<std::string, ListedChain> chains;  // by the chain's id
};

template <typename Each>
void for_each_line(std::string_view text, const Each& each) {
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    if (!line.empty()) each(line);
  }
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Empty when there is no such file.
Result<std::string> read_list(FileSystem& fs, const std::string& path) {
  Result<std::string> bytes = read_file(fs, path, kListBytesMax);
  if (!bytes.ok() && bytes.error().code == ErrorCode::kNotFound) return std::string();
  if (!bytes.ok()) return bytes;
  TRY_ASSIGN(OpenedText opened, decode_text(std::move(*bytes), path, kListBytesMax));
  return std::move(opened.text);
}

std::set<int64_t> clusters_in(std::string_view text) {
  std::set<int64_t> clusters;
  for_each_line(text, [&](std::string_view line) {
    if (const std::optional<int64_t> cluster = parse_number<int64_t>(line)) clusters.insert(*cluster);
  });
  return clusters;
}

// The entries of list.csv, sorted by id; chains with a resolution above kTrainingResolutionMax are left out.
std::vector<Entry> entries_in(std::string_view list, const std::set<int64_t>& valid, const std::set<int64_t>& test) {
  std::map<std::string, Entry> entries;
  for_each_line(list, [&](std::string_view line) {
    const std::vector<std::string> fields = split(line, ',');
    if (fields.size() < 5) return;
    const size_t underscore = fields[0].find('_');
    const std::optional<double> resolution = parse_number<double>(fields[2]);
    const std::optional<int64_t> cluster = parse_number<int64_t>(fields[4]);
    if (underscore == std::string::npos || underscore < 3 || !resolution || *resolution > kTrainingResolutionMax ||
        !cluster || fields[0].find('/') != std::string::npos) {
      return;
    }
    const ChainSplit split_of = valid.contains(*cluster)  ? ChainSplit::kValidation
                                : test.contains(*cluster) ? ChainSplit::kTest
                                                          : ChainSplit::kTrain;
    Entry& entry = entries[fields[0].substr(0, underscore)];
    entry.chains[fields[0].substr(underscore + 1)] = {*cluster, split_of};
  });
  std::vector<Entry> sorted;
  for (auto& [id, entry] : entries) {
    entry.id = id;
    sorted.push_back(std::move(entry));
  }
  return sorted;
}

// The range of a chain's residues without tags for purification, as the public script cuts them: six histidines, at
// most four residues from an end, and what is beyond them. A chain of nothing else stays as it is.
std::pair<size_t, size_t> without_tags(std::string_view sequence) {
  constexpr std::string_view kTag = "HHHHHH";
  constexpr size_t kBeyondMax = 4;
  size_t begin = 0;
  size_t end = sequence.size();
  for (size_t beyond = 0; beyond <= kBeyondMax && beyond + kTag.size() <= sequence.size(); ++beyond) {
    if (sequence.substr(beyond, kTag.size()) == kTag) begin = beyond + kTag.size();
    const size_t last = sequence.size() - kTag.size() - beyond;
    if (sequence.substr(last, kTag.size()) == kTag) end = last;
  }
  return begin < end ? std::pair(begin, end) : std::pair(size_t{0}, sequence.size());
}

float chi1_at(const float* xyz) {
  std::array<Atom, 4> atoms = {};
  constexpr std::array<size_t, 4> kPlaces = {0, 1, 4, 5};  // N, CA, CB, the first gamma atom
  for (size_t i = 0; i < atoms.size(); ++i) {
    const float* at = xyz + 3 * kPlaces[i];
    atoms[i] = {at[0], at[1], at[2]};
  }
  return dihedral(atoms[0], atoms[1], atoms[2], atoms[3]);
}

// A rotation and a translation as a [4, 4] matrix, row by row.
using Transform = std::array<float, 16>;

void move(const Transform& transform, Backbone& backbone) {
  for (Atom& atom : backbone) {
    const Atom from = atom;
    for (size_t i = 0; i < 3; ++i) {
      atom[i] = transform[4 * i] * from[0] + transform[4 * i + 1] * from[1] + transform[4 * i + 2] * from[2] +
                transform[4 * i + 3];
    }
  }
}

// One entry being read.
class EntryReader {
 public:
  EntryReader(FileSystem& fs, const std::string& folder, const Entry& entry)
      : fs_(fs), prefix_(folder + "/pdb/" + entry.id.substr(1, 2) + "/" + entry.id), entry_(entry) {}

  Result<std::vector<Structure>> read() {
    TRY_ASSIGN(const TorchFile file, read_torch_dict(fs_, prefix_ + ".pt"));
    const PickleDict& dict = dict_of(file);
    TRY_ASSIGN(chain_ids_, texts_at(dict, "chains"));
    TRY(set_groups(dict));
    TRY_ASSIGN(const std::vector<std::string> ids, texts_at(dict, "asmb_ids"));
    TRY_ASSIGN(const std::vector<std::string> members, texts_at(dict, "asmb_chains"));
    if (ids.size() != members.size()) return invalid("asmb_ids and asmb_chains differ in length");
    std::set<std::string> placed;
    std::set<std::string> done;
    for (const std::string& id : ids) {
      if (!done.insert(id).second) continue;
      Structure assembly;
      assembly.name = entry_.id + "-" + id;
      std::map<std::string, int> copies;
      for (size_t k = 0; k < ids.size(); ++k) {
        if (ids[k] == id) TRY(add_members(dict, k, split(members[k], ','), assembly, copies));
      }
      keep(std::move(assembly), placed);
    }
    for (const auto& [id, listed] : entry_.chains) {
      if (placed.contains(id)) continue;
      Structure alone;
      alone.name = entry_.id + "_" + id;
      TRY_ASSIGN(StructureChain chain, chain_of(id));
      alone.chains.push_back(std::move(chain));
      keep(std::move(alone), placed);
    }
    if (structures_.empty()) return invalid(reason_.empty() ? "has no chain of list.csv" : reason_);
    return std::move(structures_);
  }

 private:
  // Groups chains with more than 70 % equal residues, by the entry's similarity matrix "tm".
  Status set_groups(const PickleDict& dict) {
    const auto count = static_cast<int64_t>(chain_ids_.size());
    for (size_t i = 0; i < chain_ids_.size(); ++i) groups_.push_back(i);
    if (find_value(dict, "tm") == nullptr) return {};
    TRY_ASSIGN(const TensorView tensor, tensor_at(dict, "tm"));
    if (tensor.shape.size() != 3 || tensor.shape[0] != count || tensor.shape[1] != count || tensor.shape[2] < 2) {
      return invalid("\"tm\" has shape " + shape_text(tensor.shape) + "; expected [chains, chains, 3]");
    }
    TRY_ASSIGN(const std::vector<float> similarity, floats_of(tensor));
    const auto depth = static_cast<size_t>(tensor.shape[2]);
    for (size_t i = 0; i < groups_.size(); ++i) {
      for (size_t j = 0; j < groups_.size(); ++j) {
        const bool is_same =
            similarity[(i * groups_.size() + j) * depth + 1] > static_cast<float>(kSameSequence);  // NaN is not
        if (!is_same || groups_[i] == groups_[j]) continue;
        const size_t replaced = std::max(groups_[i], groups_[j]);
        const size_t joined = std::min(groups_[i], groups_[j]);
        std::replace(groups_.begin(), groups_.end(), replaced, joined);
      }
    }
    return {};
  }

  Result<std::vector<Transform>> transforms(const PickleDict& dict, size_t k) {
    const std::string name = "asmb_xform" + std::to_string(k);
    TRY_ASSIGN(const TensorView tensor, tensor_at(dict, name));
    if (tensor.shape.size() != 3 || tensor.shape[1] != 4 || tensor.shape[2] != 4) {
      return invalid("\"" + name + "\" has shape " + shape_text(tensor.shape) + "; expected [copies, 4, 4]");
    }
    TRY_ASSIGN(const std::vector<float> values, floats_of(tensor));
    std::vector<Transform> all(static_cast<size_t>(tensor.shape[0]));
    for (size_t i = 0; i < all.size(); ++i)
      std::copy_n(values.begin() + static_cast<int64_t>(16 * i), 16, all[i].begin());
    return all;
  }

  Status add_members(const PickleDict& dict, size_t k, const std::vector<std::string>& members, Structure& assembly,
                     std::map<std::string, int>& copies) {
    TRY_ASSIGN(const std::vector<Transform> moves, transforms(dict, k));
    for (const std::string& id : chain_ids_) {
      if (std::find(members.begin(), members.end(), id) == members.end()) continue;
      TRY_ASSIGN(const StructureChain chain, chain_of(id));
      for (const Transform& transform : moves) {
        positions_ += static_cast<int64_t>(chain.positions.size());
        if (positions_ > kPositionsMax || assembly.chains.size() == kChainsMax) {
          return invalid("its assemblies have more than " + std::to_string(kPositionsMax) + " positions");
        }
        assembly.chains.push_back(chain);
        StructureChain& copy = assembly.chains.back();
        if (const int number = ++copies[id]; number > 1) copy.id += "-" + std::to_string(number);
        for (Position& position : copy.positions) move(transform, position.backbone);
      }
    }
    return {};
  }

  // Reads a chain's file. The chain's group is the group's number within the entry.
  Result<StructureChain> chain_of(const std::string& id) {
    const auto known = chains_.find(id);
    if (known != chains_.end()) return known->second;
    const std::string path = prefix_ + "_" + id + ".pt";
    const auto in_file = [&](const Error& error) { return error.with_context(base_name(path)); };
    if (id.find('/') != std::string::npos) return invalid("a chain is named \"" + id + "\"");
    const Result<TorchFile> file = read_torch_dict(fs_, path);
    if (!file.ok()) return in_file(file.error());
    const Result<std::string> sequence = text_at(dict_of(*file), "seq");
    if (!sequence.ok()) return in_file(sequence.error());
    const Result<TensorView> tensor = tensor_at(dict_of(*file), "xyz");
    if (!tensor.ok()) return in_file(tensor.error());
    const std::vector<int64_t> expected = {static_cast<int64_t>(sequence->size()), kAtomsOfResidue, 3};
    if (sequence->empty() || tensor->shape != expected) {
      return in_file(invalid("\"xyz\" has shape " + shape_text(tensor->shape) + "; expected " + shape_text(expected) +
                             ", with a row for each letter of \"seq\", which must have at least one"));
    }
    const Result<std::vector<float>> xyz = floats_of(*tensor);
    if (!xyz.ok()) return in_file(xyz.error());
    StructureChain chain = made_of(id, *sequence, *xyz);
    return chains_.emplace(id, std::move(chain)).first->second;
  }

  StructureChain made_of(const std::string& id, const std::string& sequence, const std::vector<float>& xyz) const {
    StructureChain chain;
    chain.id = id;
    chain.is_protein = false;
    const auto [begin, end] = without_tags(sequence);
    for (size_t i = begin; i < end; ++i) {
      const float* atoms = xyz.data() + i * static_cast<size_t>(kAtomsOfResidue) * 3;
      Position position;
      position.backbone = backbone_of(atoms);
      position.number = static_cast<int32_t>(i) + 1;
      position.type = residue_type_of(sequence[i]);
      position.chi1 = chi1_at(atoms);
      position.flags = kInFile;
      if (position.type != kUnknownResidue) position.flags |= kStandardResidue;
      chain.is_protein = chain.is_protein || is_amino_acid(position.backbone);
      chain.positions.push_back(position);
    }
    const auto at = std::find(chain_ids_.begin(), chain_ids_.end(), id) - chain_ids_.begin();
    chain.group =
        static_cast<uint32_t>(static_cast<size_t>(at) < groups_.size() ? groups_[static_cast<size_t>(at)] : 0);
    if (const auto listed = entry_.chains.find(id); listed != entry_.chains.end()) {
      chain.cluster = listed->second.cluster;
      chain.split = listed->second.split;
    }
    return chain;
  }

  // Adds the structure, unless nothing can be learnt from it (no chain of list.csv, or check_structure refuses it).
  void keep(Structure structure, std::set<std::string>& placed) {
    if (std::none_of(structure.chains.begin(), structure.chains.end(),
                     [](const StructureChain& chain) { return chain.cluster >= 0; })) {
      return;
    }
    if (const Status status = check_structure(structure); !status.ok()) {
      reason_ = structure.name + " " + status.error().message;
      return;
    }
    // Renumbers the groups within the structure: a group's number is the index of its first chain.
    std::map<uint32_t, uint32_t> first;
    for (size_t i = 0; i < structure.chains.size(); ++i) {
      StructureChain& chain = structure.chains[i];
      chain.group = first.emplace(chain.group, static_cast<uint32_t>(i)).first->second;
      placed.insert(chain.id);
    }
    structures_.push_back(std::move(structure));
  }

  FileSystem& fs_;
  std::string prefix_;
  const Entry& entry_;
  std::vector<std::string> chain_ids_;
  std::vector<size_t> groups_;  // parallel to chain_ids_
  std::map<std::string, StructureChain> chains_;
  std::vector<Structure> structures_;
  std::string reason_;
  int64_t positions_ = 0;
};

class TrainingSet final : public StructureSource {
 public:
  TrainingSet(FileSystem& fs, std::string folder, std::vector<Entry> entries, std::string fingerprint)
      : fs_(fs), folder_(std::move(folder)), entries_(std::move(entries)), fingerprint_(std::move(fingerprint)) {}

  [[nodiscard]] std::string summary() const override {
    std::array<size_t, 3> chains = {};
    for (const Entry& entry : entries_) {
      for (const auto& [id, chain] : entry.chains) ++chains[static_cast<size_t>(chain.split)];
    }
    return "ProteinMPNN's training set: " + std::to_string(entries_.size()) + " entries with chains to 3.5 Å (" +
           std::to_string(chains[0]) + " to train on, " + std::to_string(chains[1]) + " to validate on, " +
           std::to_string(chains[2]) + " to test on)";
  }
  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(entries_.size()); }
  [[nodiscard]] std::string name(int64_t i) const override { return entries_[static_cast<size_t>(i)].id; }
  [[nodiscard]] Result<std::vector<Structure>> read(int64_t i) const override {
    Result<std::vector<Structure>> read = EntryReader(fs_, folder_, entries_[static_cast<size_t>(i)]).read();
    // The lists may name more than was unpacked: the entry is skipped, as docs/workloads/protein.md says.
    if (!read.ok() && read.error().code == ErrorCode::kNotFound) return invalid(read.error().message);
    return read;
  }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }

 private:
  FileSystem& fs_;
  std::string folder_;
  std::vector<Entry> entries_;
  std::string fingerprint_;
};

}  // namespace

Result<std::unique_ptr<StructureSource>> open_training_set(FileSystem& fs, const std::string& folder) {
  const std::string path = join_path(folder, "list.csv");
  TRY_ASSIGN(const std::string list, read_list(fs, path));
  TRY_ASSIGN(const std::string valid, read_list(fs, join_path(folder, "valid_clusters.txt")));
  TRY_ASSIGN(const std::string test, read_list(fs, join_path(folder, "test_clusters.txt")));
  std::vector<Entry> entries = entries_in(list, clusters_in(valid), clusters_in(test));
  if (entries.empty()) {
    return invalid(path +
                   ": no line CHAINID,DEPOSITION,RESOLUTION,HASH,CLUSTER,SEQUENCE with a chain such as 1abc_A, a "
                   "resolution of at most 3.5 and a cluster");
  }
  // Whoever reads the same files differently changes the first line: then caches of earlier versions are made again.
  return std::unique_ptr<StructureSource>(std::make_unique<TrainingSet>(
      fs, folder, std::move(entries),
      "training set without tags\n" + sha256_hex(list) + sha256_hex(valid) + sha256_hex(test)));
}

}  // namespace lockstep
