#include "runner/models/protein/data/prepare_structures.h"

#include <memory>

#include "runner/data/generated_name.h"

namespace lockstep {
namespace {

// The Kind of prepare_cache.
struct StructureKind {
  using Cache = StructureCache;
  using Piece = Structure;
  static constexpr uint32_t kVersion = kStructureCacheVersion;
  static constexpr const char* kMany = "structures";
  const StructureSource& source;

  struct Writer {
    std::vector<Structure> structures;
    void add(Structure structure) { structures.push_back(std::move(structure)); }
    [[nodiscard]] std::string finish(const std::vector<SkippedFile>& skipped) && {
      return structure_cache_bytes(structures, skipped);
    }
  };
  [[nodiscard]] static Writer writer(int64_t /*num_structures*/) { return {}; }
  static Status write_cache(const std::vector<const StructureCache*>& parts, const ByteSink& sink) {
    return write_structure_cache(parts, sink);
  }
};

}  // namespace

Result<PreparedStructures> prepare_structures(FileSystem& fs, const std::string& path, const std::string& cache_folder,
                                              const PrepareOptions& options, SplitLists split_lists) {
  TRY_ASSIGN(const std::unique_ptr<StructureSource> source,
             find_structures(fs, path, split_lists, [&] { static_cast<void>(options.progress(0, 0)); }));
  // Generated structures need no cache file: making them again is faster than reading one.
  return prepare_structures(fs, *source, is_generated(path) ? "" : cache_folder, options);
}

Result<PreparedStructures> prepare_structures(FileSystem& fs, const StructureSource& source,
                                              const std::string& cache_folder, const PrepareOptions& options) {
  return prepare_cache(fs, StructureKind{source}, cache_folder, options);
}

}  // namespace lockstep
