// Runs an event loop until a condition holds.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>

namespace lockstep {

inline constexpr std::chrono::seconds kPatience{20};  // for what takes milliseconds when all is well

// True if the condition held within kPatience. It is checked after each handler of the loop, at least every 10 ms.
inline bool run_until(boost::asio::io_context& loop, const std::function<bool()>& is_so) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  loop.restart();
  while (!is_so() && std::chrono::steady_clock::now() < deadline) loop.run_one_for(std::chrono::milliseconds(10));
  return is_so();
}

}  // namespace lockstep
