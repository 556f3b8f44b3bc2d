// make_synthetic USERS ITEMS EVENTS_MIN EVENTS_MAX [SEED]: a generated `user item rating timestamp` file on stdout.
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>

#include "runner/data/synthetic.h"

namespace {

bool parse(const char* text, int64_t min, int64_t max, int64_t& value) {
  const std::string_view view(text);
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  return error == std::errc() && end == view.data() + view.size() && value >= min && value <= max;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int64_t kCountMax = 10'000'000;
  lockstep::SyntheticOptions options;
  int64_t seed = 42;
  const bool usable = (argc == 5 || argc == 6) && parse(argv[1], 1, kCountMax, options.users) &&
                      parse(argv[2], 2, kCountMax, options.items) && parse(argv[3], 1, kCountMax, options.events_min) &&
                      parse(argv[4], options.events_min, kCountMax, options.events_max) &&
                      (argc == 5 || parse(argv[5], 0, INT64_MAX, seed));
  if (!usable) {
    std::fprintf(stderr, "usage: %s USERS ITEMS EVENTS_MIN EVENTS_MAX [SEED]\n", argv[0]);
    return 2;
  }
  options.seed = static_cast<uint64_t>(seed);
  const std::string text = lockstep::synthetic_ratings(options);
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0 ? 0 : 1;
}
