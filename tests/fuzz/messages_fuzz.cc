// Any bytes as a message: decoding never crashes, and what was understood survives a round trip.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runner/contract/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  if (const auto message = decode_worker_message(line); message.ok()) {
    const std::string again = encode(*message);
    const auto back = decode_worker_message(again);
    if (!back.ok() || encode(*back) != again) std::abort();
  }
  if (const auto message = decode_agent_message(line); message.ok()) {
    if (!decode_agent_message(encode(*message)).ok()) std::abort();
  }
  return 0;
}
