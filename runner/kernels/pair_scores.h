// The scores of all pairs of a user and an item, by a network whose first layer is the sum of a part of each.
//
// Role: ranks all items for many users. The hidden values [U, I, H] are never in memory all at once: a pass of our own
// for fp32 on processors with AVX2 or AVX-512 computes a score while they are in registers, and elsewhere the ATen
// operators go through the pairs in blocks. A pair's score depends neither on the other pairs nor on the number of
// threads.
// Threads: as ATen operators; on a CPU the users are split over ATen's threads.
// Shapes: U users, I items, H hidden values of the first layer, S of the second.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep {

// The layers behind the first one, each with weight and bias as torch.nn.Linear has them.
struct ScoreLayers {
  at::Tensor second_SH;
  at::Tensor second_bias_S;
  at::Tensor last_1S;
  at::Tensor last_bias_1;
};

// last(relu(second(relu(user + item)))) for each pair: [U, I], fp32, on the device of its inputs. No gradient.
at::Tensor pair_scores(const at::Tensor& users_UH, const at::Tensor& items_IH, const ScoreLayers& layers);

namespace pair_scores_detail {

// pair_scores with ATen operators: works on any device and with all types.
at::Tensor scores_by_operators(const at::Tensor& users_UH, const at::Tensor& items_IH, const ScoreLayers& layers);

struct PairSizes {
  int64_t items;
  int64_t hidden;
  int64_t second;
};
constexpr int64_t kHiddenMultiple = 16;  // the sizes for which the passes are written
constexpr int64_t kSecondMultiple = 32;

// Computes the scores of one user. All fp32; second_HS is the weight transposed, so that its rows belong to hidden
// values.
using UserScores = void (*)(PairSizes sizes, const float* user_H, const float* items_IH, const float* second_HS,
                            const float* second_bias_S, const float* last_S, float last_bias, float* scores_I);
// The passes that this processor can run, that with the widest vectors first.
std::vector<UserScores> passes();
// pair_scores by one of them: all fp32 on a CPU, sizes as above.
at::Tensor scores_by_pass(UserScores pass, const at::Tensor& users_UH, const at::Tensor& items_IH,
                          const ScoreLayers& layers);

}  // namespace pair_scores_detail
}  // namespace lockstep
