// images_tool PATH SIDE PIXELS [CACHE_FOLDER]: prepares the images at PATH at SIDE pixels, writes the pixels of all of
// them to the file PIXELS and prints one JSON line: what was found, classes, labels, skipped files, the digest.
// CACHE_FOLDER: as prepare_images. images_tool PATH SIDE: prints how long one thread took in memory.
#include <chrono>
#include <fstream>
#include <iostream>
#include <string>

#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/models/jit/data/prepare_images.h"

namespace lockstep {
namespace {

Status time_one_thread(const std::string& path, int64_t side) {
  PosixFileSystem fs;
  const auto begin = std::chrono::steady_clock::now();
  TRY_ASSIGN(const PreparedImages prepared, prepare_images(fs, path, side, "", {.threads = 1}));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::cout << dump_line(OrderedJson{{"images", prepared.cache.size()}, {"seconds", seconds.count()}}) << "\n";
  return {};
}

Status dump(const std::string& path, int64_t side, const std::string& pixels_file, const std::string& cache_folder) {
  PosixFileSystem fs;
  TRY_ASSIGN(const PreparedImages prepared, prepare_images(fs, path, side, cache_folder, {}));
  const ImageCache& cache = prepared.cache;
  OrderedJson line = {{"summary", prepared.summary},    {"was_there", prepared.was_there},
                      {"path", prepared.path},          {"images", cache.size()},
                      {"side", cache.side()},           {"classes", cache.classes()},
                      {"labels", OrderedJson::array()}, {"skipped", OrderedJson::array()},
                      {"digest", cache.digest()}};
  std::ofstream out(pixels_file, std::ios::binary);
  for (int64_t i = 0; i < cache.size(); ++i) {
    TRY_ASSIGN(const auto pixels, cache.pixels(i));
    out.write(reinterpret_cast<const char*>(pixels.data()), static_cast<std::streamsize>(pixels.size()));
    line["labels"].push_back(cache.label(i));
  }
  if (!out.flush()) return Error{ErrorCode::kUnavailable, "cannot write " + pixels_file};
  for (const SkippedFile& file : cache.skipped()) line["skipped"].push_back({file.file, file.reason});
  std::cout << dump_line(line) << "\n";
  return {};
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc < 3 || argc > 5) {
    std::cerr << "usage: images_tool PATH SIDE [PIXELS [CACHE_FOLDER]]\n";
    return 2;
  }
  const int64_t side = std::atoll(argv[2]);
  const lockstep::Status status = argc == 3 ? lockstep::time_one_thread(argv[1], side)
                                            : lockstep::dump(argv[1], side, argv[3], argc == 5 ? argv[4] : "");
  if (status.ok()) return 0;
  std::cerr << status.error().message << "\n";
  return 1;
}
