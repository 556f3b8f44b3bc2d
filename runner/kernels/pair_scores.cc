#include "runner/kernels/pair_scores.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>

namespace lockstep {
namespace {

using namespace pair_scores_detail;

// Pairs of one block: on a CPU their hidden values fit into the cache of a core.
constexpr int64_t kUsersAtOnce = 16;
constexpr int64_t kItemsAtOnce = 4096;
constexpr int64_t kItemsInCache = 512;

bool fits_the_passes(const at::Tensor& users_UH, const at::Tensor& items_IH, const ScoreLayers& layers) {
  const auto is_fp32_on_cpu = [](const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; };
  return is_fp32_on_cpu(users_UH) && is_fp32_on_cpu(items_IH) && is_fp32_on_cpu(layers.second_SH) &&
         layers.second_SH.size(1) % kHiddenMultiple == 0 && layers.second_SH.size(0) % kSecondMultiple == 0;
}

}  // namespace

at::Tensor pair_scores_detail::scores_by_operators(const at::Tensor& users_UH, const at::Tensor& items_IH,
                                                   const ScoreLayers& layers) {
  const bool is_cpu = users_UH.is_cpu();
  const int64_t users_at_once = is_cpu ? 1 : kUsersAtOnce;
  const int64_t items_at_once = is_cpu ? kItemsInCache : kItemsAtOnce;
  const int64_t users = users_UH.size(0);
  const int64_t items = items_IH.size(0);
  const at::Tensor scores_UI = at::empty({users, items}, users_UH.options().dtype(at::kFloat));
  const auto score = [&](int64_t first_user, int64_t end_user) {
    const torch::NoGradGuard no_grad;  // a setting of each thread
    for (int64_t user = first_user; user < end_user; user += users_at_once) {
      const int64_t u = std::min(users_at_once, end_user - user);
      const at::Tensor some_users_U1H = users_UH.narrow(0, user, u).unsqueeze(1);
      for (int64_t item = 0; item < items; item += items_at_once) {
        const int64_t i = std::min(items_at_once, items - item);
        const at::Tensor first_UIH = at::relu(some_users_U1H + items_IH.narrow(0, item, i));
        const at::Tensor second_UIS = at::relu(at::linear(first_UIH, layers.second_SH, layers.second_bias_S));
        scores_UI.narrow(0, user, u)
            .narrow(1, item, i)
            .copy_(at::linear(second_UIS, layers.last_1S, layers.last_bias_1).squeeze(-1));
      }
    }
  };
  if (is_cpu) {
    at::parallel_for(0, users, /*grain_size=*/1, score);
  } else {
    score(0, users);
  }
  return scores_UI;
}

at::Tensor pair_scores_detail::scores_by_pass(UserScores pass, const at::Tensor& users_UH, const at::Tensor& items_IH,
                                              const ScoreLayers& layers) {
  const torch::NoGradGuard no_grad;
  const at::Tensor users = users_UH.contiguous();
  const at::Tensor items = items_IH.contiguous();
  const at::Tensor second_HS = layers.second_SH.t().contiguous();
  const at::Tensor second_bias_S = layers.second_bias_S.contiguous();
  const at::Tensor last_1S = layers.last_1S.contiguous();
  const auto last_bias = layers.last_bias_1.item<float>();
  const PairSizes sizes{.items = items.size(0), .hidden = second_HS.size(0), .second = second_HS.size(1)};
  const at::Tensor scores_UI = at::empty({users.size(0), sizes.items}, users.options());
  at::parallel_for(0, users.size(0), /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t user = begin; user < end; ++user) {
      pass(sizes, users.const_data_ptr<float>() + user * sizes.hidden, items.const_data_ptr<float>(),
           second_HS.const_data_ptr<float>(), second_bias_S.const_data_ptr<float>(), last_1S.const_data_ptr<float>(),
           last_bias, scores_UI.mutable_data_ptr<float>() + user * sizes.items);
    }
  });
  return scores_UI;
}

at::Tensor pair_scores(const at::Tensor& users_UH, const at::Tensor& items_IH, const ScoreLayers& layers) {
  const std::vector<UserScores> found = passes();
  if (found.empty() || !fits_the_passes(users_UH, items_IH, layers)) {
    return scores_by_operators(users_UH, items_IH, layers);
  }
  return scores_by_pass(found.front(), users_UH, items_IH, layers);
}

}  // namespace lockstep
