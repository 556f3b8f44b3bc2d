// `generated`: images that are made in memory, with something to learn, free to ship.
//
// Role: what the demo, tests, benchmarks and a container without data train on.
// How they are made: one shape of one colour on a background that goes from one colour to another. The class is the
// shape (circle, square, triangle, …); with more classes than shapes, the shape and its colour ("red circle"). Place,
// size, turn, background and, where the class does not say it, colour are drawn. Edges are smooth. Threads: pure; the
// same images for the same spec and side everywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/images/image_source.h"

namespace lockstep {

struct GeneratedImagesSpec {
  int64_t count = 1000;
  int64_t classes = 8;  // image i is of class i % classes
  uint64_t seed = 42;
};

// `generated`, `generated:COUNT`, `generated:COUNT:CLASSES`; nothing for other words, which are paths. kInvalid for
// numbers that cannot be (COUNT in [1, 1,000,000], CLASSES in [1, 64]).
Result<std::optional<GeneratedImagesSpec>> parse_generated_images(std::string_view text);

std::vector<std::string> generated_classes(const GeneratedImagesSpec& spec);

LabelledImage generated_image(const GeneratedImagesSpec& spec, int64_t index, int64_t side);

}  // namespace lockstep
