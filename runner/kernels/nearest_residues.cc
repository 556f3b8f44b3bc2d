#include "runner/kernels/nearest_residues.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "runner/base/vector_loops.h"

namespace lockstep {
namespace {

constexpr float kSquareEps = 1e-6F;
constexpr int64_t kRowsAtOnce = 64;                  // fewest rows that a thread takes
constexpr int64_t kDistancesMax = int64_t{1} << 25;  // in memory at a time, on devices other than the CPU

// The upper 32 bits are those of a squared distance, as a float (non-negative floats are ordered like their bits); the
// lower 32 bits are an index in Points.
using Candidate = uint64_t;

// The used residues of one sample.
struct Points {
  std::vector<int64_t> places;
  std::vector<float> x;
  std::vector<float> y;
  std::vector<float> z;
  std::vector<float> known;  // 1 or 0
  bool are_all_known = true;

  Points(const float* points, const bool* known_L, const bool* used_L, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      if (!used_L[i]) continue;
      places.push_back(i);
      x.push_back(points[3 * i]);
      y.push_back(points[3 * i + 1]);
      z.push_back(points[3 * i + 2]);
      known.push_back(known_L[i] ? 1.0F : 0.0F);
      are_all_known = are_all_known && known_L[i];
    }
  }
  [[nodiscard]] size_t size() const { return places.size(); }
};

// The squared distances of all points from point i. A point without coordinates gets the largest of them.
LOCKSTEP_VECTOR_CLONES
void squares_from(const Points& points, size_t i, float* out) {
  const auto size = static_cast<int64_t>(points.size());
  const float* const x = points.x.data();
  const float* const y = points.y.data();
  const float* const z = points.z.data();
  const float* const known = points.known.data();
  for_each_value(
      size, LOCKSTEP_EACH(j) {
        const float dx = x[j] - x[i];
        const float dy = y[j] - y[i];
        const float dz = z[j] - z[i];
        out[j] = known[i] * known[j] * (dx * dx + dy * dy + dz * dz + kSquareEps);
      });
  if (points.are_all_known) return;
  const float farthest = *std::max_element(out, out + size);
  for (int64_t j = 0; j < size; ++j) {
    if (known[i] * known[j] == 0.0F) out[j] = farthest;
  }
}

// Moves the k nearest candidates to the front of `row`, in order, with the algorithm of torch.topk on a CPU, so that
// ties are resolved in the same way.
void nearest_first(std::vector<Candidate>& row, size_t k) {
  const auto is_nearer = [](const Candidate& a, const Candidate& b) { return a >> 32 < b >> 32; };
  const auto kth = row.begin() + static_cast<std::ptrdiff_t>(k);
  constexpr size_t kHeapBelow = 64;
  if (k * kHeapBelow <= row.size()) {
    std::partial_sort(row.begin(), kth, row.end(), is_nearer);
  } else {
    std::nth_element(row.begin(), kth - 1, row.end(), is_nearer);
    std::sort(row.begin(), kth - 1, is_nearer);
  }
}

void nearest_on_cpu(const Points& points, int64_t k, int64_t* places, float* distances, bool* present) {
  const size_t found = std::min(points.size(), static_cast<size_t>(k));
  at::parallel_for(0, static_cast<int64_t>(points.size()), kRowsAtOnce, [&](int64_t begin, int64_t end) {
    std::vector<float> squares(points.size());
    std::vector<Candidate> row(points.size());
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      squares_from(points, i, squares.data());
      for (size_t j = 0; j < points.size(); ++j) row[j] = Candidate{std::bit_cast<uint32_t>(squares[j])} << 32 | j;
      nearest_first(row, found);
      const int64_t first = points.places[i] * k;
      for (size_t n = 0; n < found; ++n) {
        places[first + static_cast<int64_t>(n)] = points.places[row[n] & 0xffffffffU];
        distances[first + static_cast<int64_t>(n)] =
            std::sqrt(std::bit_cast<float>(static_cast<uint32_t>(row[n] >> 32)));
      }
      std::fill_n(present + first, found, true);
    }
  });
}

}  // namespace

NearestResidues nearest_residues_detail::nearest_by_operators(const at::Tensor& points_BL3, const at::Tensor& known_BL,
                                                              const at::Tensor& used_BL, int64_t k,
                                                              int64_t distances_max) {
  const int64_t b = points_BL3.size(0);
  const int64_t l = points_BL3.size(1);
  const int64_t found = std::min(k, l);
  const at::Tensor known = known_BL.logical_and(used_BL).to(at::kFloat);  // padding does not count as the farthest
  std::vector<at::Tensor> places;
  std::vector<at::Tensor> distances;
  std::vector<at::Tensor> present;
  const int64_t rows = std::clamp<int64_t>(distances_max / (b * l), 1, l);
  for (int64_t begin = 0; begin < l; begin += rows) {
    const int64_t r = std::min(rows, l - begin);
    const at::Tensor difference_BRL3 = points_BL3.narrow(1, begin, r).unsqueeze(2) - points_BL3.unsqueeze(1);
    const at::Tensor both_BRL = known.narrow(1, begin, r).unsqueeze(2) * known.unsqueeze(1);
    const at::Tensor distance_BRL = both_BRL * (difference_BRL3.square().sum(-1) + kSquareEps).sqrt();
    const at::Tensor farthest_BR1 = std::get<0>(distance_BRL.max(-1, /*keepdim=*/true));
    const at::Tensor adjusted_BRL =
        (distance_BRL + (1.0 - both_BRL) * farthest_BR1)
            .masked_fill(used_BL.unsqueeze(1).logical_not(), std::numeric_limits<double>::infinity());
    auto [nearest_BRK, places_BRK] = adjusted_BRL.topk(found, -1, /*largest=*/false);
    const at::Tensor present_BRK = nearest_BRK.isfinite().logical_and(used_BL.narrow(1, begin, r).unsqueeze(2));
    places.push_back(places_BRK.masked_fill(present_BRK.logical_not(), 0));
    distances.push_back(nearest_BRK.masked_fill(present_BRK.logical_not(), 0.0));
    present.push_back(present_BRK);
  }
  return {.places_BLK = at::constant_pad_nd(at::cat(places, 1), {0, k - found}),
          .distances_BLK = at::constant_pad_nd(at::cat(distances, 1), {0, k - found}),
          .present_BLK = at::constant_pad_nd(at::cat(present, 1), {0, k - found})};
}

NearestResidues nearest_residues(const at::Tensor& points_BL3, const at::Tensor& known_BL, const at::Tensor& used_BL,
                                 int64_t k) {
  const at::NoGradGuard no_grad;
  if (!points_BL3.is_cpu())
    return nearest_residues_detail::nearest_by_operators(points_BL3, known_BL, used_BL, k, kDistancesMax);
  const at::Tensor points = points_BL3.to(at::kFloat).contiguous();
  const at::Tensor known = known_BL.contiguous();
  const at::Tensor used = used_BL.contiguous();
  const int64_t b = points.size(0);
  const int64_t l = points.size(1);
  NearestResidues out{.places_BLK = at::zeros({b, l, k}, at::kLong),
                      .distances_BLK = at::zeros({b, l, k}),
                      .present_BLK = at::zeros({b, l, k}, at::kBool)};
  for (int64_t n = 0; n < b; ++n) {
    const Points sample(points.const_data_ptr<float>() + n * l * 3, known.const_data_ptr<bool>() + n * l,
                        used.const_data_ptr<bool>() + n * l, l);
    nearest_on_cpu(sample, k, out.places_BLK.mutable_data_ptr<int64_t>() + n * l * k,
                   out.distances_BLK.mutable_data_ptr<float>() + n * l * k,
                   out.present_BLK.mutable_data_ptr<bool>() + n * l * k);
  }
  return out;
}

}  // namespace lockstep
