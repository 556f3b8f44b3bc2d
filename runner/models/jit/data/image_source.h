// ImageSource: the images of a folder, in pieces that can be read one at a time, by any thread.
//
// Role: lists the files and determines the class of each. It depends on the folder's content:
//   class folders   PATH/CLASS/… or PATH/train/CLASS/…; classes are numbered in the order of their names. PATH/train is
//                   used when the only folders beside it are val, valid, validation and test; else `train` is a class.
//   flat            only files: no classes, all labels are 0
// The path generated[:COUNT[:CLASSES]] means images made in memory (generated_images.h); "./generated" is a path.
// Hidden files are ignored, and so are caches of images beside the classes; folders inside a class folder belong to the
// class. The format of a file is recognised by its bytes, not its name; files that are not images, or are beside class
// folders, are refused when they are read.
// Threads: immutable once made; read() from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/data/prepare_cache.h"

namespace lockstep {

struct LabelledImage {
  std::vector<uint8_t> rgb;  // [side, side, 3]
  int64_t label = 0;
};

class ImageSource : public PieceSource {
 public:
  // The images of piece i: one for an image file, one per text for a piece of texts. Errors: those of decode_image and
  // of the disk, without the piece's name.
  [[nodiscard]] virtual Result<std::vector<LabelledImage>> read(int64_t i) const = 0;
  // In pixels, of all images.
  [[nodiscard]] virtual int64_t image_side() const = 0;
  // By label; empty: flat.
  [[nodiscard]] virtual const std::vector<std::string>& classes() const = 0;
};

// Errors: kNotFound (no such path), kInvalid (not a folder, no files, a side outside of [1, kImageSideMax]: says what
// was found and what was expected), kUnavailable (cannot be read). `fs` outlives the source. on_progress is called now
// and then while a folder is listed.
Result<std::unique_ptr<ImageSource>> find_images(
    FileSystem& fs, const std::string& path, int64_t side, const std::function<void()>& on_progress = [] {});

}  // namespace lockstep
