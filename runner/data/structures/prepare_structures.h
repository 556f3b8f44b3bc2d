// prepare_structures: reads a source once, on all cores, into one StructureCache.
//
// Role: makes `<cache_folder>/structures-<fingerprint>.cache`, or opens the one that is there: its name follows from
// the source's files (paths, sizes, times) and the cache's version, so a source that has not changed is opened at once.
// On the way it keeps parts of a few pieces each in `….parts/`: a preparation that was killed goes on where it was.
// Files appear under their names only whole (written aside, fsynced, renamed), so nothing half-written is ever taken
// for whole. Several processes, on nodes that share a volume, may prepare the same source at the same time: they start
// at different parts and take what the others have finished. Nobody waits for anybody, and all end with the same bytes.
// Threads: starts options.threads and joins them; everything else, progress too, happens on the calling thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/data/structures/structure_cache.h"
#include "runner/data/structures/structure_source.h"

namespace lockstep {

struct PrepareOptions {
  int threads = 0;  // 0: as many as usable_cores()
  // Pieces done and in all; at least ten times a second. False ends the preparation (kCancelled) after the pieces that
  // are being read.
  std::function<bool(int64_t done, int64_t total)> progress = [](int64_t, int64_t) { return true; };
};

struct PreparedStructures {
  StructureCache cache;
  std::string path;        // of its file; empty when it is in memory
  std::string summary;     // what was found, for a person
  bool was_there = false;  // opened as it was: nothing had to be read
};

// cache_folder is made where it is missing; empty: the cache stays in memory, as that of
// generated structures always does. Files that cannot be read are in
// cache.skipped(). Errors: those of find_structures; kInvalid when nothing at all could be read (the first reasons are
// named); kUnavailable when the folder cannot be written (says so and what to do); kCancelled.
Result<PreparedStructures> prepare_structures(FileSystem& fs, const std::string& path, const std::string& cache_folder,
                                              const PrepareOptions& options);
// The same of a source that is found already.
Result<PreparedStructures> prepare_structures(FileSystem& fs, const StructureSource& source,
                                              const std::string& cache_folder, const PrepareOptions& options);

}  // namespace lockstep
