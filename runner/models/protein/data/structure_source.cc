#include "runner/models/protein/data/structure_source.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "runner/base/plural.h"
#include "runner/base/trimmed.h"
#include "runner/data/found_files.h"
#include "runner/data/next_line.h"
#include "runner/formats/open_text.h"
#include "runner/models/protein/data/generated_structures.h"
#include "runner/models/protein/data/structure_file.h"
#include "runner/models/protein/data/structure_json.h"
#include "runner/models/protein/data/structure_tensors.h"
#include "runner/models/protein/data/training_set.h"

namespace lockstep {
namespace {

constexpr std::string_view kExpected =
    "expected .pdb, .ent, .cif or .mmcif files (each also .gz), .jsonl or .pt files, in a folder or alone, or a folder "
    "with list.csv and pdb/";
constexpr size_t kEntriesShown = 3;  // of a list, in a remark
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kPieceBytes = size_t{4} << 20;            // of a file that is searched for the ends of its lines
constexpr uint64_t kJsonLineBytesMax = uint64_t{1} << 28;  // far more than the largest entries of the PDB take

std::string ending_of(const std::string& name) {
  const std::string known = structure_ending_of(name);
  return known.empty() ? std::filesystem::path(name).extension().string() : known;
}

// "sub/1abc.cif.gz" → "1abc"
std::string stem_of(const std::string& relative) {
  const std::string name = base_name(relative);
  return name.substr(0, name.size() - ending_of(name).size());
}

template <typename Keep>
std::vector<FoundFile> only(const std::vector<FoundFile>& files, const Keep& keep) {
  std::vector<FoundFile> kept;
  std::copy_if(files.begin(), files.end(), std::back_inserter(kept), keep);
  return kept;
}

// The guide's lists of structures for training, validation and test: files of names in the folder of the structures.
struct FoundLists {
  struct Entry {
    ChainSplit split = ChainSplit::kTrain;
    std::string list;  // the list that names it
  };
  std::vector<FoundFile> files;
  bool are_used = false;
  std::map<std::string, Entry> entries = {};  // by the structures' names

  // With lists, a structure that none of them names gets kTest, so it is neither trained nor validated on.
  [[nodiscard]] ChainSplit split_of(const std::string& name) const {
    if (files.empty() || !are_used) return ChainSplit::kTrain;
    const auto found = entries.find(name);
    return found == entries.end() ? ChainSplit::kTest : found->second.split;
  }
  [[nodiscard]] std::string names() const { return joined(files, ", ", &FoundFile::relative); }
  [[nodiscard]] std::string summary() const {
    if (files.empty()) return {};
    return are_used ? ", divided by " + names() : "; without --use_predefined_split, " + names() + " are not used";
  }
  [[nodiscard]] std::string fingerprint() const { return are_used ? fingerprint_of(files) : std::string(); }

  // What does not fit together: names without a structure, and structures (their names) without a list.
  [[nodiscard]] std::vector<SkippedFile> remarks(const std::set<std::string>& structures) const {
    std::vector<SkippedFile> remarks;
    if (files.empty() || !are_used) return remarks;
    std::map<std::string, std::vector<std::string>> unknown;  // by list
    for (const auto& [name, entry] : entries) {
      if (!structures.contains(name)) unknown[entry.list].push_back(name);
    }
    for (const auto& [list, of_list] : unknown) {
      remarks.push_back({list, plural(of_list.size(), "name") + " in it " + (of_list.size() == 1 ? "fits" : "fit") +
                                   " no structure here: " + first_of(of_list, kEntriesShown)});
    }
    std::vector<std::string> unlisted;
    for (const std::string& name : structures) {
      if (!entries.contains(name)) unlisted.push_back(name);
    }
    if (!unlisted.empty()) {
      remarks.push_back({names(), plural(unlisted.size(), "structure") + " that no list names " +
                                      (unlisted.size() == 1 ? "is" : "are") +
                                      " not used: " + first_of(unlisted, kEntriesShown)});
    }
    return remarks;
  }
};

constexpr int64_t kSplitListBytesMax = int64_t{1} << 26;

Result<FoundLists> find_split_lists(FileSystem& fs, const std::vector<FoundFile>& files, SplitLists split_lists) {
  const std::map<std::string, ChainSplit> split_of_list = {
      {"train.txt", ChainSplit::kTrain}, {"val.txt", ChainSplit::kValidation}, {"test.txt", ChainSplit::kTest}};
  FoundLists lists{.files = {}, .are_used = split_lists == SplitLists::kUsed};
  for (const FoundFile& file : files) {
    const auto list = split_of_list.find(file.relative);
    if (list == split_of_list.end()) continue;
    lists.files.push_back(file);
    if (!lists.are_used) continue;
    TRY_ASSIGN(std::string bytes, read_file(fs, file.path, kSplitListBytesMax));
    TRY_ASSIGN(const OpenedText list_text, decode_text(std::move(bytes), file.relative, kSplitListBytesMax));
    for (const std::string& entry : entries_of_list(list_text.text)) {
      const std::string name = structure_name_in_list(entry);
      const auto [at, is_new] = lists.entries.emplace(name, FoundLists::Entry{list->second, file.relative});
      if (!is_new && at->second.split != list->second) {
        return Error{ErrorCode::kInvalid, file.relative + " lists " + name +
                                              ", and so does another of train.txt, "
                                              "val.txt and test.txt: keep it in one of them"};
      }
    }
  }
  return lists;
}

// What is beside the pieces of a source: ", 3 other files (.txt 3) are not read"; empty for none. The split lists are
// counted elsewhere.
std::string other_files_text(const std::vector<FoundFile>& all, const std::vector<FoundFile>& read,
                             const FoundLists& lists) {
  std::set<std::string> known;
  for (const auto* const files : {&read, &lists.files}) {
    for (const FoundFile& file : *files) known.insert(file.relative);
  }
  const std::vector<FoundFile> others = only(all, [&](const FoundFile& file) {
    return !known.contains(file.relative) && !file.relative.ends_with(".cache");  // ours
  });
  if (others.empty()) return {};
  return "; " + plural(others.size(), "other file") + " (" + counts_by_ending(others, ending_of) + ") " +
         (others.size() == 1 ? "is" : "are") + " not read";
}

// What a folder holds beside the files that are read.
struct Beside {
  std::string other_files;  // as other_files_text
  std::vector<SkippedFile> left_out;
};

// One structure per file. A structure is named by its file's stem, or by the whole path if several files have that
// stem.
class FilesSource final : public StructureSource {
 public:
  using Read = std::function<Result<Structure>(const std::string& path)>;

  struct What {
    std::string one;
    std::string many;
  };
  FilesSource(std::vector<FoundFile> files, const What& what, FoundLists lists, const Beside& beside, Read read)
      : files_(std::move(files)), what_(what), lists_(std::move(lists)), beside_(beside), read_(std::move(read)) {
    std::map<std::string, size_t> stems;
    for (const FoundFile& file : files_) ++stems[stem_of(file.relative)];
    for (const auto& [stem, count] : stems) stems_.insert(stem);
    for (const FoundFile& file : files_) {
      const std::string stem = stem_of(file.relative);
      names_.push_back(stems[stem] == 1 ? stem : file.relative);
    }
  }

  [[nodiscard]] std::string summary() const override {
    return std::to_string(files_.size()) + " " + (files_.size() == 1 ? what_.one : what_.many) + " (" +
           counts_by_ending(files_, ending_of) + ")" + lists_.summary() + beside_.other_files;
  }
  [[nodiscard]] std::vector<SkippedFile> remarks() const override {
    std::vector<SkippedFile> remarks = lists_.remarks(stems_);
    remarks.insert(remarks.end(), beside_.left_out.begin(), beside_.left_out.end());
    return remarks;
  }
  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  [[nodiscard]] std::string name(int64_t i) const override { return files_[static_cast<size_t>(i)].relative; }
  [[nodiscard]] Result<std::vector<Structure>> read(int64_t i) const override {
    TRY_ASSIGN(Structure structure, read_(files_[static_cast<size_t>(i)].path));
    const ChainSplit split = lists_.split_of(stem_of(files_[static_cast<size_t>(i)].relative));
    for (StructureChain& chain : structure.chains) chain.split = split;
    structure.name = names_[static_cast<size_t>(i)];
    std::vector<Structure> structures;
    structures.push_back(std::move(structure));
    return structures;
  }
  [[nodiscard]] std::string fingerprint() const override {
    return what_.one + "\n" + fingerprint_of(files_) + lists_.fingerprint();
  }

 private:
  std::vector<FoundFile> files_;
  What what_;
  FoundLists lists_;
  Beside beside_;
  Read read_;
  std::set<std::string> stems_;
  std::vector<std::string> names_;
};

class GeneratedSource final : public StructureSource {
 public:
  explicit GeneratedSource(const GeneratedStructuresSpec& spec) : spec_(spec) {}

  [[nodiscard]] std::string summary() const override {
    return plural(spec_.count, "generated structure") + " of about " + std::to_string(spec_.length) + " residues";
  }
  [[nodiscard]] int64_t size() const override { return spec_.count; }
  [[nodiscard]] std::string name(int64_t i) const override { return "generated-" + std::to_string(i + 1); }
  [[nodiscard]] Result<std::vector<Structure>> read(int64_t i) const override {
    return std::vector<Structure>{generated_structure(spec_, i)};
  }
  [[nodiscard]] std::string fingerprint() const override { return summary() + " " + std::to_string(spec_.seed); }

 private:
  GeneratedStructuresSpec spec_;
};

// One structure per line of the files.
class JsonLinesSource final : public StructureSource {
 public:
  // Reads the files once, to find where their lines begin.
  static Result<std::unique_ptr<StructureSource>> create(FileSystem& fs, std::vector<FoundFile> files,
                                                         const Beside& beside,
                                                         const std::function<void()>& on_progress) {
    auto source = std::make_unique<JsonLinesSource>(fs, std::move(files), beside);
    for (size_t i = 0; i < source->files_.size(); ++i) TRY(source->find_lines(i, on_progress));
    if (source->lines_.empty()) return Error{ErrorCode::kInvalid, source->summary() + ": no lines in them"};
    return std::unique_ptr<StructureSource>(std::move(source));
  }
  JsonLinesSource(FileSystem& fs, std::vector<FoundFile> files, const Beside& beside)
      : fs_(fs), files_(std::move(files)), beside_(beside) {}

  [[nodiscard]] std::string summary() const override {
    return plural(lines_.size(), "line") + " of JSON in " + plural(files_.size(), "file") + beside_.other_files;
  }
  [[nodiscard]] std::vector<SkippedFile> remarks() const override { return beside_.left_out; }
  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(lines_.size()); }
  [[nodiscard]] std::string name(int64_t i) const override {
    const Line& line = lines_[static_cast<size_t>(i)];
    return files_[line.file].relative + " line " + std::to_string(line.number);
  }
  [[nodiscard]] Result<std::vector<Structure>> read(int64_t i) const override {
    const Line& line = lines_[static_cast<size_t>(i)];
    if (line.bytes > kJsonLineBytesMax) return Error{ErrorCode::kInvalid, "has more than 256 MB"};
    TRY_ASSIGN(const std::string text, read_part(fs_, files_[line.file].path, line.begin, line.bytes));
    if (text.size() < line.bytes) return Error{ErrorCode::kUnavailable, "has become shorter while it was read"};
    if (const std::string stray = line.number == 1 ? stray_file(text) : ""; !stray.empty()) return invalid(stray);
    TRY_ASSIGN(Structure structure, parse_structure_json(text));
    if (structure.name.empty())
      structure.name = stem_of(files_[line.file].relative) + "-" + std::to_string(line.number);
    std::vector<Structure> structures;
    structures.push_back(std::move(structure));
    return structures;
  }
  [[nodiscard]] std::string fingerprint() const override { return "JSON lines\n" + fingerprint_of(files_); }

 private:
  struct Line {
    size_t file = 0;
    uint64_t begin = 0;
    uint64_t bytes = 0;
    int64_t number = 0;  // from 1
  };

  Status find_lines(size_t file, const std::function<void()>& on_progress) {
    uint64_t offset = 0;
    uint64_t begin = 0;
    int64_t number = 0;
    bool is_blank = true;
    const auto end_line = [&](uint64_t end) {
      ++number;
      if (!is_blank) lines_.push_back({file, begin, end - begin, number});
      begin = end + 1;
      is_blank = true;
    };
    uint64_t since_progress = 0;
    TRY(read_file(fs_, files_[file].path, [&](const void* data, size_t bytes) {
      const std::string_view piece(static_cast<const char*>(data), bytes);
      if (offset == 0 && piece.starts_with(kByteOrderMark)) begin = kByteOrderMark.size();
      for (size_t i = offset == 0 ? begin : 0; i < piece.size(); ++i) {
        if (piece[i] == '\n') {
          end_line(offset + i);
        } else if (piece[i] != ' ' && piece[i] != '\r' && piece[i] != '\t') {
          is_blank = false;
        }
      }
      offset += bytes;
      since_progress += bytes;
      if (since_progress >= kPieceBytes) {
        since_progress = 0;
        on_progress();
      }
      return Status();
    }));
    if (offset > begin) end_line(offset);
    return {};
  }

  FileSystem& fs_;
  std::vector<FoundFile> files_;
  Beside beside_;
  std::vector<Line> lines_;
};

bool is_structure_file(const FoundFile& file) { return structure_format_of(file.relative).has_value(); }

Error nothing_known(const std::string& path, const std::vector<FoundFile>& files,
                    const std::vector<SkippedFile>& left_out) {
  const std::string found =
      files.empty() ? "no files" : plural(files.size(), "file") + " (" + counts_by_ending(files, ending_of) + ")";
  return Error{ErrorCode::kInvalid, "no structures in " + path + ": found " + found + left_out_text(left_out) + ", " +
                                        std::string(kExpected)};
}

}  // namespace

std::string structure_name_in_list(const std::string& entry) {
  const std::string name = base_name(entry);
  std::string ending = structure_ending_of(name);
  if (ending.empty() && name.ends_with(".pt")) ending = ".pt";
  return name.substr(0, name.size() - ending.size());
}

std::vector<std::string> entries_of_list(std::string_view text) {
  std::vector<std::string> entries;
  while (!text.empty()) {
    const std::string_view entry = trimmed(next_line(text));
    if (!entry.empty()) entries.emplace_back(entry);
  }
  return entries;
}

Result<std::unique_ptr<StructureSource>> find_structures(FileSystem& fs, const std::string& path,
                                                         SplitLists split_lists,
                                                         const std::function<void()>& on_progress) {
  TRY_ASSIGN(const std::optional<GeneratedStructuresSpec> generated, parse_generated_structures(path));
  if (generated) return std::unique_ptr<StructureSource>(std::make_unique<GeneratedSource>(*generated));
  TRY_ASSIGN(const std::filesystem::file_status status, status_of(path, kExpected));
  const bool is_folder = std::filesystem::is_directory(status);
  std::error_code ignored;
  if (is_folder && std::filesystem::is_regular_file(join_path(path, "list.csv"), ignored) &&
      std::filesystem::is_directory(join_path(path, "pdb"), ignored)) {
    return open_training_set(fs, path);
  }
  std::vector<FoundFile> files;
  Beside beside;
  if (is_folder) {
    TRY_ASSIGN(files, files_below(path, on_progress, beside.left_out));
  } else {
    TRY_ASSIGN(FoundFile file, file_at(path, base_name(path)));
    files.push_back(std::move(file));
  }
  FoundLists lists;
  if (is_folder) {
    TRY_ASSIGN(lists, find_split_lists(fs, files, split_lists));
  }
  if (std::vector<FoundFile> found = only(files, is_structure_file); !found.empty()) {
    beside.other_files = other_files_text(files, found, lists);
    return std::unique_ptr<StructureSource>(std::make_unique<FilesSource>(
        std::move(found), FilesSource::What{"structure file", "structure files"}, lists, beside,
        [&fs](const std::string& file) { return read_structure_file(fs, file); }));
  }
  if (std::vector<FoundFile> found = only(files, [](const FoundFile& file) { return file.relative.ends_with(".pt"); });
      !found.empty()) {
    beside.other_files = other_files_text(files, found, lists);
    return std::unique_ptr<StructureSource>(std::make_unique<FilesSource>(
        std::move(found), FilesSource::What{"file of tensors", "files of tensors"}, lists, beside,
        [&fs](const std::string& file) { return read_structure_tensors(fs, file); }));
  }
  if (std::vector<FoundFile> found =
          only(files, [](const FoundFile& file) { return file.relative.ends_with(".jsonl"); });
      !found.empty()) {
    beside.other_files = other_files_text(files, found, {});
    return JsonLinesSource::create(fs, std::move(found), beside, on_progress);
  }
  return nothing_known(path, files, beside.left_out);
}

}  // namespace lockstep
