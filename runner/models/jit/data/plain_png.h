// A plain PNG file, as most are (8 bits a channel, not interlaced) → its samples, in a third of the time that zlib and
// libpng take: Intel's ISA-L inflates it, and vector instructions undo the filters of its rows.
//
// Threads: a pure function. Memory: the file's size, its inflated pixels, which are at most 64 MiB, and 4 more bytes a
// pixel where the file is grey or has a palette.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep {

struct PngSamples {
  int64_t width = 0;
  int64_t height = 0;
  int64_t channels = 0;         // 3: RGB; 4: RGBA
  std::vector<uint8_t> values;  // [height, width, channels]
};

// All checksums were compared. Empty: the file is left to libpng, because it is of another kind, very large, or damaged
// (libpng says how).
std::optional<PngSamples> plain_png_samples(std::string_view file);

}  // namespace lockstep
