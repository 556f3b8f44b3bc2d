// centre_crop: an image of any size → the square in its middle, side × side.
//
// Role: the method of ADM, with which the published image models were trained: halve with the BOX filter while the
// shorter side is at least twice `side`, then resize with BICUBIC so that the shorter side is `side` (also upwards),
// then crop. Both filters give the same bits as Pillow's: the filter is stretched over the pixels that it combines
// (antialiased; a = -0.5), with fixed-point weights; columns are resized first and rounded to 8 bits before the rows.
// (Pillow resizes rows first when an image is more than twice as high as wide.) Only the cropped part is computed, so
// an image of 100,000 × 1 takes no longer than others. Threads: pure.
#pragma once

#include <cstdint>

#include "runner/models/jit/data/image_file.h"

namespace lockstep {

// side >= 1; the image has at least one pixel.
Image centre_crop(Image image, int64_t side);

}  // namespace lockstep
