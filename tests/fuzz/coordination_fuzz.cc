// Any bytes as a line between agent and coordinator: decoding never crashes, and what was understood survives a round
// trip. Seeds: one line of each message.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runner/contract/coordination.h"

namespace {

using namespace lockstep;

template <typename Message>
void must_survive(const Result<Message>& message, Result<Message> (*decode)(std::string_view)) {
  if (!message.ok()) return;
  const std::string again = encode(*message);
  const Result<Message> back = decode(again);
  if (!back.ok() || encode(*back) != again) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  must_survive(decode_node_message(line), &decode_node_message);
  must_survive(decode_coordinator_message(line), &decode_coordinator_message);
  return 0;
}
