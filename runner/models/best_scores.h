// The candidates with the highest scores. Threads: pure function.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

// The indices of the `count` highest scores for which is_candidate(index) holds, highest first; equal scores are in the
// order of their indices. Scores that are not a number are left out, so that there may be fewer.
template <typename IsCandidate>
std::vector<int32_t> best_scores(std::span<const float> scores, int64_t count, const IsCandidate& is_candidate) {
  const auto is_better = [&](int32_t a, int32_t b) {
    const float first = scores[static_cast<size_t>(a)];
    const float second = scores[static_cast<size_t>(b)];
    return first > second || (first == second && a < b);
  };
  // A heap of the best so far, with the worst of them at the front. Indices ascend, so that a score equal to the worst
  // never replaces it.
  std::vector<int32_t> best;
  const auto wanted = static_cast<size_t>(std::min<int64_t>(count, static_cast<int64_t>(scores.size())));
  if (wanted == 0) return best;
  best.reserve(wanted);
  for (size_t i = 0; i < scores.size(); ++i) {
    const bool is_full = best.size() == wanted;
    const bool is_good = is_full ? scores[i] > scores[static_cast<size_t>(best.front())] : scores[i] == scores[i];
    if (!is_good || !is_candidate(i)) continue;
    if (is_full) {
      std::pop_heap(best.begin(), best.end(), is_better);
      best.pop_back();
    }
    best.push_back(static_cast<int32_t>(i));
    std::push_heap(best.begin(), best.end(), is_better);
  }
  std::sort_heap(best.begin(), best.end(), is_better);
  return best;
}

}  // namespace lockstep
