#include "runner/models/jit/data/centre_crop.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "runner/base/vector_loops.h"
#include "runner/models/jit/data/pixel_vectors.h"

namespace lockstep {
namespace {

constexpr int kChannels = 3;
// Weights are multiples of 2^-22, as in Pillow, so that weighted sums of 8-bit values fit into 32 bits.
constexpr int kWeightBits = 22;

// A function of the distance from the centre of a new pixel; 0 beyond `support`. When the image shrinks, distances are
// in new pixels, else in old ones.
struct Filter {
  double support;
  double (*weight)(double distance);
};

double box_weight(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

double bicubic_weight(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0;
}

constexpr Filter kBox = {0.5, box_weight};
constexpr Filter kBicubic = {2.0, bicubic_weight};

// The old rows or columns of which a new one is the weighted sum: weights.size() of them, from `begin` on.
struct Taps {
  int64_t begin = 0;
  std::vector<int32_t> weights;
};

// The taps of the new rows or columns [begin, begin + count) when old_size rows or columns, of which the picture covers
// `covered`, are resized to new_size.
std::vector<Taps> taps_of(const Filter& filter, int64_t old_size, double covered, int64_t new_size, int64_t begin,
                          int64_t count) {
  const double scale = covered / static_cast<double>(new_size);
  const double stretch = std::max(scale, 1.0);
  const double support = filter.support * stretch;
  std::vector<Taps> taps;
  std::vector<double> weights;
  for (int64_t i = begin; i < begin + count; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<int64_t>(std::lround(centre - support), 0);
    const auto last = std::min<int64_t>(std::lround(centre + support), old_size);
    weights.clear();
    double sum = 0;
    for (int64_t j = first; j < last; ++j) {
      weights.push_back(filter.weight((static_cast<double>(j) - centre + 0.5) * (1.0 / stretch)));
      sum += weights.back();
    }
    taps.push_back({.begin = first, .weights = {}});
    for (const double weight : weights) {
      const double fraction = sum != 0 ? weight / sum : weight;
      taps.back().weights.push_back(static_cast<int32_t>(fraction * (1 << kWeightBits) + (fraction < 0 ? -0.5 : 0.5)));
    }
  }
  return taps;
}

[[gnu::always_inline]] inline uint8_t rounded(int32_t sum) {
  return static_cast<uint8_t>(std::clamp((sum + (1 << (kWeightBits - 1))) >> kWeightBits, 0, 255));
}

// Resizes a row. `row` must have one readable byte after its last pixel, and `out` one writable byte after its last.
LOCKSTEP_VECTOR_CLONES
void narrow_row(const std::vector<Taps>& columns, const uint8_t* row, uint8_t* out) {
  for (const Taps& column : columns) {
    const uint8_t* pixel = row + static_cast<size_t>(column.begin) * kChannels;
    FourSums sums = {};
    for (const int32_t weight : column.weights) {
      sums += weight * widened(pixel);
      pixel += kChannels;
    }
    sums = (sums + (1 << (kWeightBits - 1))) >> kWeightBits;
    sums = sums < 0 ? FourSums{} : sums;
    sums = sums > 255 ? FourSums{} + 255 : sums;
    store_narrowed(sums, out);
    out += kChannels;
  }
}

// Does what narrow_row does, in a third of the time, if each column is the average of two.
LOCKSTEP_VECTOR_CLONES
void halve_row(const std::vector<Taps>& columns, const uint8_t* row, uint8_t* out) {
  for (const Taps& column : columns) {
    const uint8_t* pixel = row + static_cast<size_t>(column.begin) * kChannels;
    store_narrowed((widened(pixel) + widened(pixel + kChannels) + 1) >> 1, out);
    out += kChannels;
  }
}

bool are_halves(const std::vector<Taps>& columns) {
  const std::vector<int32_t> halves(2, 1 << (kWeightBits - 1));
  return std::all_of(columns.begin(), columns.end(), [&](const Taps& column) { return column.weights == halves; });
}

// Makes one row as the weighted sum of consecutive rows of `width` bytes. sums: scratch memory for `width` sums.
LOCKSTEP_VECTOR_CLONES
void merge_rows(const std::vector<int32_t>& weights, int64_t width, const uint8_t* rows, int32_t* sums, uint8_t* out) {
  std::fill_n(sums, width, 0);
  for (const int32_t weight : weights) {
    for_each_value(
        width, LOCKSTEP_EACH(i) { sums[i] += weight * rows[i]; });
    rows += width;
  }
  for_each_value(
      width, LOCKSTEP_EACH(i) { out[i] = rounded(sums[i]); });
}

// The part of a resized image that is computed.
struct Window {
  int64_t left = 0;
  int64_t top = 0;
  int64_t width = 0;
  int64_t height = 0;
};

// The window of `image` resized to width × height.
Image resized(const Image& image, const Filter& filter, int64_t width, int64_t height, const Window& window) {
  const std::vector<Taps> columns = taps_of(filter, image.width, image.covered_width, width, window.left, window.width);
  const std::vector<Taps> rows = taps_of(filter, image.height, image.covered_height, height, window.top, window.height);
  // The first of the old rows that the window needs, and the one after the last.
  const int64_t top = rows.front().begin;
  const int64_t bottom = rows.back().begin + static_cast<int64_t>(rows.back().weights.size());
  const auto row_bytes = static_cast<size_t>(window.width * kChannels);
  const auto old_bytes = static_cast<size_t>(image.width * kChannels);
  std::vector<uint8_t> row(old_bytes + 1);
  std::vector<uint8_t> narrow(static_cast<size_t>(bottom - top) * row_bytes + 1);
  const auto narrow_columns = are_halves(columns) ? halve_row : narrow_row;
  for (int64_t y = top; y < bottom; ++y) {
    std::copy_n(image.rgb.data() + static_cast<size_t>(y) * old_bytes, old_bytes, row.data());
    narrow_columns(columns, row.data(), narrow.data() + static_cast<size_t>(y - top) * row_bytes);
  }
  Image result{.width = window.width, .height = window.height, .rgb = {}};
  result.rgb.resize(static_cast<size_t>(window.height) * row_bytes);
  std::vector<int32_t> sums(row_bytes);
  uint8_t* out = result.rgb.data();
  for (const Taps& taps : rows) {
    merge_rows(taps.weights, window.width * kChannels,
               narrow.data() + static_cast<size_t>(taps.begin - top) * row_bytes, sums.data(), out);
    out += row_bytes;
  }
  return result;
}

}  // namespace

Image centre_crop(Image image, int64_t side) {
  for (;;) {
    const auto width = static_cast<int64_t>(image.covered_width);
    const auto height = static_cast<int64_t>(image.covered_height);
    if (std::min(width, height) < 2 * side) break;
    image = resized(image, kBox, width / 2, height / 2, {.width = width / 2, .height = height / 2});
  }
  const double scale = static_cast<double>(side) / std::min(image.covered_width, image.covered_height);
  // llrint rounds halves to even, like Python's round().
  const int64_t width = std::llrint(image.covered_width * scale);
  const int64_t height = std::llrint(image.covered_height * scale);
  const Window window = {.left = (width - side) / 2, .top = (height - side) / 2, .width = side, .height = side};
  if (width != image.width || height != image.height) return resized(image, kBicubic, width, height, window);
  if (width == side && height == side) return image;
  Image cut{.width = side, .height = side, .rgb = {}};
  for (int64_t y = window.top; y < window.top + side; ++y) {
    const auto* row = image.rgb.data() + static_cast<size_t>(y * width + window.left) * kChannels;
    cut.rgb.insert(cut.rgb.end(), row, row + side * kChannels);
  }
  return cut;
}

}  // namespace lockstep
