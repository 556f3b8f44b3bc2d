// ImageSource: what images there are in a folder, in pieces that can be read one at a time, by any thread.
//
// Role: lists files and says of which class each is. By what the folder holds:
//   class folders   PATH/CLASS/… or PATH/train/CLASS/…; classes are numbered by name. PATH/train is meant when the only
//                   folders beside it are val, valid, validation and test; else `train` is a class as any other.
//   flat            files alone: no classes, all have label 0
// and by its name: generated[:COUNT[:CLASSES]] is made in memory (generated_images.h); "./generated" is a path.
// Hidden files are left alone, folders in class folders belong to the class. What a file is, its bytes say, not its
// name; files that are no image, or lie beside class folders, are refused when they are read.
// Threads: constant once made; read() from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

struct LabelledImage {
  std::vector<uint8_t> rgb;  // [side, side, 3]
  int64_t label = 0;
};

class ImageSource {
 public:
  virtual ~ImageSource() = default;

  // For a person: "3786 files in 10 classes (.png 3786)".
  [[nodiscard]] virtual std::string summary() const = 0;
  // Pieces to read, at least 1; sorted, the same on every machine that sees the same files.
  [[nodiscard]] virtual int64_t size() const = 0;
  // What piece i is called in messages: a path relative to the source.
  [[nodiscard]] virtual std::string name(int64_t i) const = 0;
  // The images of piece i: the one of an image file, or one for each text of a piece of texts. Errors: those of
  // decode_image and of the disk; without the piece's name.
  [[nodiscard]] virtual Result<std::vector<LabelledImage>> read(int64_t i) const = 0;
  // Changes when the files or the side do: relative paths, sizes and times of change.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  // In pixels, of all images.
  [[nodiscard]] virtual int64_t side() const = 0;
  // By label; empty: flat.
  [[nodiscard]] virtual const std::vector<std::string>& classes() const = 0;
};

// Errors: kNotFound (no such path), kInvalid (a file, no files, a side outside of [1, kImageSideMax]: says what is
// there and what was expected), kUnavailable (cannot be read). `fs` outlives the source. on_progress: now and then
// while a large folder is listed.
Result<std::unique_ptr<ImageSource>> find_images(
    FileSystem& fs, const std::string& path, int64_t side, const std::function<void()>& on_progress = [] {});

}  // namespace lockstep
