// A PNG file → the same file with its pixels inflated, which takes libdeflate a third of zlib's time.
//
// libpng can only call zlib. Therefore the pixels are put into "stored" blocks, which zlib merely copies, and libpng
// still does everything else.
// Threads: a pure function. Memory: the file's size and twice that of its inflated pixels, which are at most 64 MiB.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// All checksums of the file were compared. Those of the new pixels are zero: whoever reads them must ignore checksums.
// Empty: the file is left to libpng and zlib, because it is damaged (they say how), interlaced or very large.
std::optional<std::string> inflated_png(std::string_view bytes);

}  // namespace lockstep
