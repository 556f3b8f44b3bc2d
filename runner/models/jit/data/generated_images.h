// `generated`: images made in memory, with something to learn, free of copyright.
//
// Role: training data for the demo, tests, benchmarks and a container without data.
// How they are made: one shape of one colour on a background with a colour gradient. The class is the shape (circle,
// square, triangle, …) or, with more classes than shapes, the shape and its colour ("red circle"). Position, size,
// rotation, background and, unless the class determines it, the colour are random. Edges are antialiased. Threads:
// pure; the same images for the same spec and side on all machines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"
#include "runner/models/jit/data/image_source.h"

namespace lockstep {

struct GeneratedImagesSpec {
  int64_t count = 1000;
  int64_t classes = 8;  // image i is of class i % classes
  uint64_t seed = 42;
};

// Parses `generated`, `generated:COUNT`, `generated:COUNT:CLASSES`; nullopt for other texts, which are paths. kInvalid
// unless COUNT is in [1, 1,000,000] and CLASSES in [1, 64].
Result<std::optional<GeneratedImagesSpec>> parse_generated_images(std::string_view text);

std::vector<std::string> generated_classes(const GeneratedImagesSpec& spec);

LabelledImage generated_image(const GeneratedImagesSpec& spec, int64_t index, int64_t side);

}  // namespace lockstep
