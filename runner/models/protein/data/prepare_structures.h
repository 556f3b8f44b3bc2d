// prepare_structures: reads a source once, on all cores, into one StructureCache.
//
// Role: makes `<cache_folder>/structures-<fingerprint>.cache`, or opens the one that is there; prepare_cache.h says
// how. Threads: as prepare_cache.
#pragma once

#include <string>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/data/prepare_cache.h"
#include "runner/models/protein/data/structure_cache.h"
#include "runner/models/protein/data/structure_source.h"

namespace lockstep {

using PreparedStructures = Prepared<StructureCache>;

// cache_folder is made if it does not exist; empty: the cache stays in memory. A cache of generated structures always
// stays in memory. Files that cannot be read are in cache.skipped(). Errors: those of find_structures and
// prepare_cache.
Result<PreparedStructures> prepare_structures(FileSystem& fs, const std::string& path, const std::string& cache_folder,
                                              const PrepareOptions& options,
                                              SplitLists split_lists = SplitLists::kIgnored);
// The same of a source that is found already.
Result<PreparedStructures> prepare_structures(FileSystem& fs, const StructureSource& source,
                                              const std::string& cache_folder, const PrepareOptions& options);

}  // namespace lockstep
