// prepare_images: reads a folder of images once, on all cores, into one ImageCache.
//
// Role: makes `<cache_folder>/images-<fingerprint>.cache`, or opens the one that is there; prepare_cache.h says how.
// The fingerprint follows from the files (paths, sizes, times), the side and the cache's version.
// Threads: as prepare_cache.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/data/prepare_cache.h"
#include "runner/models/jit/data/image_cache.h"
#include "runner/models/jit/data/image_source.h"

namespace lockstep {

using PreparedImages = Prepared<ImageCache>;

// cache_folder is made if it does not exist; empty: the cache stays in memory. A cache of generated images always stays
// in memory. Files that cannot be read are in cache.skipped(). Errors: those of find_images and prepare_cache; kInvalid
// when a class has no image that could be read.
Result<PreparedImages> prepare_images(FileSystem& fs, const std::string& path, int64_t side,
                                      const std::string& cache_folder, const PrepareOptions& options);

// The same for a given source, without the check that each class has images.
Result<PreparedImages> prepare_images(FileSystem& fs, const ImageSource& source, const std::string& cache_folder,
                                      const PrepareOptions& options);

// Rows of the start table for what is not among the images: the number of files that cannot be read and the first of
// them, and links that lead nowhere. With show_all a row for each.
std::vector<std::pair<std::string, std::string>> rows_of_left_out(const PreparedImages& prepared, bool show_all);

}  // namespace lockstep
