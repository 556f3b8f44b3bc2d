#include "runner/models/protein/data/prepare_structures.h"

#include <memory>

#include "runner/data/generated_name.h"

namespace lockstep {
Result<PreparedStructures> prepare_structures(FileSystem& fs, const std::string& path, const std::string& cache_folder,
                                              const PrepareOptions& options, SplitLists split_lists) {
  TRY_ASSIGN(const std::unique_ptr<StructureSource> source,
             find_structures(fs, path, split_lists, [&] { static_cast<void>(options.progress(0, 0)); }));
  // Generated structures need no cache file: making them again is faster than reading one.
  return prepare_structures(fs, *source, is_generated(path) ? "" : cache_folder, options);
}

Result<PreparedStructures> prepare_structures(FileSystem& fs, const StructureSource& source,
                                              const std::string& cache_folder, const PrepareOptions& options) {
  const auto read = [&source](int64_t i) -> Result<std::vector<PieceRecord>> {
    TRY_ASSIGN(const std::vector<Structure> structures, source.read(i));
    std::vector<PieceRecord> records;
    for (const Structure& structure : structures) {
      int64_t positions = 0;
      for (const StructureChain& chain : structure.chains) positions += std::ssize(chain.positions);
      records.push_back({.bytes = structure_record(structure), .tag = static_cast<uint32_t>(positions)});
      for (const std::string& remark : structure.remarks) records.back().remarks.push_back({structure.name, remark});
    }
    return records;
  };
  const RecordKind kind{.format = kStructureCache, .many = "structures", .facts = Json::object(), .read = read};
  TRY_ASSIGN(Prepared<RecordCache> prepared, prepare_cache(fs, source, kind, cache_folder, options));
  StructureCache cache(std::move(prepared.cache));
  return prepared_as(std::move(cache), std::move(prepared));
}

}  // namespace lockstep
