// Any bytes as a watch, cut anywhere: events or one error, the same for every cut.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "operator/kube/watch_decoder.h"
#include "runner/base/check.h"

namespace {

using namespace lockstep;

struct Decoded {
  std::vector<std::string> events;
  std::string error;
  bool operator==(const Decoded&) const = default;
};

Decoded decode(std::string_view bytes, size_t piece_bytes) {
  Decoded decoded;
  kube::WatchDecoder decoder(4096);
  for (size_t begin = 0; begin < bytes.size(); begin += piece_bytes) {
    const Status status = decoder.decode(bytes.substr(begin, piece_bytes), [&](const kube::WatchEvent& event) {
      LOCKSTEP_CHECK(event.object.at("metadata").is_object(), "an event holds an object with metadata");
      decoded.events.push_back(std::to_string(static_cast<int>(event.type)) + dump_line(event.object));
    });
    if (!status.ok()) {
      LOCKSTEP_CHECK(!status.error().message.empty(), "an error says why");
      decoded.error = status.error().message;
      break;
    }
  }
  return decoded;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  // The first byte says how small the pieces are; the rest is the watch.
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (bytes.empty()) return 0;
  const Decoded whole = decode(bytes, bytes.size());
  const Decoded pieces = decode(bytes, size_t{data[0]} + 1);
  LOCKSTEP_CHECK(whole == pieces, "the cuts do not matter");
  return 0;
}
