// prepare_images: reads a folder of images once, on all cores, into one ImageCache.
//
// Role: makes `<cache_folder>/images-<fingerprint>.cache`, or opens the one that is there; prepare_cache.h says how.
// The fingerprint follows from the files (paths, sizes, times), the side and the cache's version.
// Threads: as prepare_cache.
#pragma once

#include <cstdint>
#include <string>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/data/images/image_cache.h"
#include "runner/data/prepare_cache.h"

namespace lockstep {

using PreparedImages = Prepared<ImageCache>;

// cache_folder is made where it is missing; empty: the cache stays in memory, as that of generated images always does.
// Files that cannot be read are in cache.skipped(). Errors: those of find_images and prepare_cache; kInvalid when a
// class has no image that could be read.
Result<PreparedImages> prepare_images(FileSystem& fs, const std::string& path, int64_t side,
                                      const std::string& cache_folder, const PrepareOptions& options);

// The same of a source that somebody else made; what there is to say of classes is not looked at.
Result<PreparedImages> prepare_images(FileSystem& fs, const ImageSource& source, const std::string& cache_folder,
                                      const PrepareOptions& options);

}  // namespace lockstep
