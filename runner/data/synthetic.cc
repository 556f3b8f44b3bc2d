#include "runner/data/synthetic.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/philox.h"

namespace lockstep {
namespace {

// The `step` of the random streams: what the numbers are used for. Their `sample` is the user.
enum class Purpose : uint32_t { kChain = 0, kEvents = 1 };

class EventDraws {
 public:
  EventDraws(uint64_t seed, Purpose purpose, uint32_t sample)
      : stream_{seed, static_cast<uint32_t>(RandomPurpose::kSynthetic), static_cast<uint32_t>(purpose), sample} {}

  uint32_t below(uint32_t n) { return stream_.below(next_++, n); }
  // In [0, 1), 32 bits.
  double uniform() { return static_cast<double>(stream_.word(next_++)) * (1.0 / 4294967296.0); }

 private:
  PhiloxStream stream_;
  uint64_t next_ = 0;
};

// Cumulative Zipf weights with exponent 1. Uses only division, not pow(), so that all machines compute the same bits.
std::vector<double> cumulative_popularity(int64_t items) {
  std::vector<double> cumulative(static_cast<size_t>(items));
  double sum = 0.0;
  for (size_t i = 0; i < cumulative.size(); ++i) cumulative[i] = sum += 1.0 / static_cast<double>(i + 1);
  return cumulative;
}

int32_t popular_item(const std::vector<double>& cumulative, double uniform) {
  const auto it = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * cumulative.back());
  const auto index = std::min<int64_t>(it - cumulative.begin(), static_cast<int64_t>(cumulative.size()) - 1);
  return static_cast<int32_t>(index + 1);
}

}  // namespace

std::vector<int32_t> synthetic_successors(const SyntheticOptions& options) {
  LOCKSTEP_CHECK(options.items >= 2 && options.items <= std::numeric_limits<int32_t>::max(), "at least two items");
  std::vector<int32_t> cycle(static_cast<size_t>(options.items));
  std::iota(cycle.begin(), cycle.end(), 1);
  EventDraws draws(options.seed, Purpose::kChain, 0);
  for (size_t left = cycle.size(); left > 1; --left) {
    std::swap(cycle[left - 1], cycle[draws.below(static_cast<uint32_t>(left))]);
  }
  std::vector<int32_t> successors(cycle.size() + 1, 0);
  for (size_t i = 0; i < cycle.size(); ++i) {
    successors[static_cast<size_t>(cycle[i])] = cycle[(i + 1) % cycle.size()];
  }
  return successors;
}

std::string synthetic_ratings(const SyntheticOptions& options) {
  LOCKSTEP_CHECK(options.users >= 1 && options.events_min >= 1 && options.events_max >= options.events_min,
                 "users, and events from min to max");
  constexpr int64_t kFirstTime = 1'000'000'000;  // seconds
  constexpr uint32_t kGapMax = 86'400;
  const std::vector<int32_t> successors = synthetic_successors(options);
  const std::vector<double> popularity = cumulative_popularity(options.items);
  std::string text;
  for (int64_t user = 1; user <= options.users; ++user) {
    EventDraws draws(options.seed, Purpose::kEvents, static_cast<uint32_t>(user));
    const int64_t events =
        options.events_min + draws.below(static_cast<uint32_t>(options.events_max - options.events_min + 1));
    int32_t item = popular_item(popularity, draws.uniform());
    int64_t time = kFirstTime + draws.below(kGapMax);
    for (int64_t event = 0; event < events; ++event) {
      text += std::to_string(user) + "\t" + std::to_string(item) + "\t" + std::to_string(1 + draws.below(5)) + "\t" +
              std::to_string(time) + "\n";
      const bool follows = draws.uniform() < options.follow;
      const int32_t popular = popular_item(popularity, draws.uniform());
      item = follows ? successors[static_cast<size_t>(item)] : popular;
      time += 1 + draws.below(kGapMax);
    }
  }
  return text;
}

}  // namespace lockstep
