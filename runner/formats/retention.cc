#include "runner/formats/retention.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace lockstep {

std::vector<size_t> select_for_removal(const std::vector<RetentionItem>& items, const Retention& retention) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tie(items[a].stamp, items[a].step) < std::tie(items[b].stamp, items[b].step);
  });
  const auto best = std::find_if(order.rbegin(), order.rend(), [&](size_t i) { return items[i].is_best; });
  const size_t keep_last = static_cast<size_t>(std::max<int64_t>(retention.keep_last, 1));
  std::vector<size_t> removed;
  for (size_t place = 0; place + keep_last < order.size(); ++place) {
    const size_t index = order[place];
    const bool is_milestone = retention.keep_every > 0 && items[index].step % retention.keep_every == 0;
    const bool is_best = retention.keep_best && best != order.rend() && *best == index;
    if (!is_milestone && !is_best) removed.push_back(index);
  }
  return removed;
}

}  // namespace lockstep
