// Runs an event loop until something is so.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>

namespace lockstep {

inline constexpr std::chrono::seconds kPatience{20};  // for what takes milliseconds when all is well

// Whether it came to be so within kPatience. It is looked at after each thing that the loop does, and now and then.
inline bool run_until(boost::asio::io_context& loop, const std::function<bool()>& is_so) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  loop.restart();
  while (!is_so() && std::chrono::steady_clock::now() < deadline) loop.run_one_for(std::chrono::milliseconds(10));
  return is_so();
}

}  // namespace lockstep
