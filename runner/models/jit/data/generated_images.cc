#include "runner/models/jit/data/generated_images.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "runner/base/philox.h"
#include "runner/data/generated_name.h"

namespace lockstep {
namespace {

constexpr int kSamples = 4;  // samples per pixel in each direction, for antialiasing

using Colour = std::array<double, 3>;  // red, green, blue in [0, 255]

struct NamedColour {
  const char* name;
  Colour colour;
};
constexpr std::array<NamedColour, 8> kColours = {{{"red", {214, 40, 40}},
                                                  {"green", {42, 157, 70}},
                                                  {"blue", {38, 84, 201}},
                                                  {"yellow", {250, 204, 21}},
                                                  {"purple", {126, 58, 190}},
                                                  {"orange", {245, 124, 0}},
                                                  {"cyan", {20, 190, 208}},
                                                  {"pink", {240, 98, 170}}}};

// A shape of about radius 1 around the origin. has(x, y): is the point inside it? y points down.
struct Shape {
  const char* name;
  bool (*has)(double x, double y);
};

// Is the point in a star with `points` points at radius 1 and dents at radius `inner`?
bool in_star(double x, double y, int points, double inner) {
  const double turn = std::atan2(x, -y) / (2 * std::numbers::pi) * points;
  const double between = 2 * std::abs(turn - std::round(turn));  // 0 at a point of the star, 1 at a dent
  const double angle = std::numbers::pi / points;
  // The edge is the straight line from the star's point at (1, 0) to the dent at `angle`.
  const double dent_x = inner * std::cos(angle);
  const double dent_y = inner * std::sin(angle);
  const double along = between * angle;
  const double edge = dent_y / (dent_y * std::cos(along) + (1 - dent_x) * std::sin(along));
  return std::hypot(x, y) <= edge;
}

constexpr std::array<Shape, 8> kShapes = {
    {{"circle", [](double x, double y) { return std::hypot(x, y) <= 1; }},
     {"square", [](double x, double y) { return std::max(std::abs(x), std::abs(y)) <= 0.8; }},
     {"triangle", [](double x, double y) { return in_star(x, y, 3, 0.5); }},
     {"cross",
      [](double x, double y) {
        return std::max(std::abs(x), std::abs(y)) <= 1 && std::min(std::abs(x), std::abs(y)) <= 0.3;
      }},
     {"ring", [](double x, double y) { return std::hypot(x, y) <= 1 && std::hypot(x, y) >= 0.55; }},
     {"star", [](double x, double y) { return in_star(x, y, 5, 0.45); }},
     {"bar", [](double x, double y) { return std::abs(x) <= 1 && std::abs(y) <= 0.35; }},
     {"moon", [](double x, double y) { return std::hypot(x, y) <= 1 && std::hypot(x - 0.5, y) >= 0.8; }}}};

// The random draws of one image, in order.
class ImageDraws {
 public:
  ImageDraws(uint64_t seed, int64_t index)
      : stream_{seed, static_cast<uint32_t>(RandomPurpose::kSynthetic), 2, static_cast<uint32_t>(index)} {}
  double uniform(double from, double to) {
    return from + (to - from) * static_cast<double>(stream_.word(next_++)) * 0x1p-32;
  }

 private:
  PhiloxStream stream_;
  uint64_t next_ = 0;
};

// A pale colour, which differs from the colours of shapes.
Colour pale(ImageDraws& draws) { return {draws.uniform(190, 255), draws.uniform(190, 255), draws.uniform(190, 255)}; }

}  // namespace

Result<std::optional<GeneratedImagesSpec>> parse_generated_images(std::string_view text) {
  GeneratedImagesSpec spec;
  constexpr int64_t kClassesMax = kShapes.size() * kColours.size();
  TRY_ASSIGN(const auto values, parse_generated(text, {{{"COUNT", 1, kGeneratedMax, spec.count, 1000},
                                                        {"CLASSES", 1, kClassesMax, spec.classes, 8}}}));
  if (!values) return std::optional<GeneratedImagesSpec>();
  spec.count = (*values)[0];
  spec.classes = (*values)[1];
  if (spec.classes > spec.count) {
    return Error{ErrorCode::kInvalid, "\"" + std::string(text) + "\": " + std::to_string(spec.count) +
                                          " images cannot be of " + std::to_string(spec.classes) +
                                          " classes; name as many classes at most, as generated:COUNT:CLASSES"};
  }
  return std::optional(spec);
}

std::vector<std::string> generated_classes(const GeneratedImagesSpec& spec) {
  std::vector<std::string> names;
  const bool has_colours = spec.classes > static_cast<int64_t>(kShapes.size());
  for (size_t i = 0; i < static_cast<size_t>(spec.classes); ++i) {
    const std::string shape = kShapes[i % kShapes.size()].name;
    names.push_back(has_colours ? kColours[i / kShapes.size()].name + (" " + shape) : shape);
  }
  return names;
}

LabelledImage generated_image(const GeneratedImagesSpec& spec, int64_t index, int64_t side) {
  LabelledImage image;
  image.label = index % spec.classes;
  const auto label = static_cast<size_t>(image.label);
  const Shape& shape = kShapes[label % kShapes.size()];
  ImageDraws draws(spec.seed, index);
  const Colour from = pale(draws);
  const Colour to = pale(draws);
  const double slope = draws.uniform(0, 2 * std::numbers::pi);
  const double radius = draws.uniform(0.22, 0.38);
  const double x0 = draws.uniform(radius + 0.03, 0.97 - radius);
  const double y0 = draws.uniform(radius + 0.03, 0.97 - radius);
  const double turn = draws.uniform(-std::numbers::pi / 12, std::numbers::pi / 12);
  const double drawn = draws.uniform(0, static_cast<double>(kColours.size()));
  const bool has_colours = spec.classes > static_cast<int64_t>(kShapes.size());
  const Colour& colour = kColours[has_colours ? label / kShapes.size() : static_cast<size_t>(drawn)].colour;
  const double cosine = std::cos(turn) / radius;
  const double sine = std::sin(turn) / radius;
  const double pixel = 1.0 / static_cast<double>(side);
  image.rgb.reserve(static_cast<size_t>(side * side * 3));
  for (int64_t row = 0; row < side; ++row) {
    for (int64_t column = 0; column < side; ++column) {
      int inside = 0;
      for (int sample = 0; sample < kSamples * kSamples; ++sample) {
        const int sample_row = sample / kSamples;
        const double x = (static_cast<double>(column) + (sample % kSamples + 0.5) / kSamples) * pixel - x0;
        const double y = (static_cast<double>(row) + (sample_row + 0.5) / kSamples) * pixel - y0;
        if (shape.has(cosine * x + sine * y, cosine * y - sine * x)) ++inside;
      }
      const double fraction = static_cast<double>(inside) / (kSamples * kSamples);
      const double x = (static_cast<double>(column) + 0.5) * pixel - 0.5;
      const double y = (static_cast<double>(row) + 0.5) * pixel - 0.5;
      const double way = std::clamp(0.5 + x * std::cos(slope) + y * std::sin(slope), 0.0, 1.0);
      for (size_t c = 0; c < 3; ++c) {
        const double background = from[c] + (to[c] - from[c]) * way;
        image.rgb.push_back(static_cast<uint8_t>(std::lround(background + (colour[c] - background) * fraction)));
      }
    }
  }
  return image;
}

}  // namespace lockstep
