// centre_crop: an image of any size → the square in its middle, side × side.
//
// Role: ADM's way, which the published image models train on: halved by BOX while the shorter side is at least twice
// `side`, then resized by BICUBIC until it is `side` (up, too), then cut. Both filters are Pillow's, to the bit:
// weights are those of the filter stretched over the pixels it replaces (antialiased; a = -0.5), in fixed point;
// columns first, rounded to 8 bits between (Pillow takes rows first where an image is more than twice as high as wide).
// Only what the cut leaves is computed: an image of 100,000 × 1 takes no more than another. Threads: pure.
#pragma once

#include <cstdint>

#include "runner/data/images/image_file.h"

namespace lockstep {

// side >= 1; the image has at least one pixel.
Image centre_crop(Image image, int64_t side);

}  // namespace lockstep
