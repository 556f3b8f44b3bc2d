// WatchDecoder: turns the bytes of a watch, in pieces of any length, into events. Pure.
//
// A watch is one JSON object per line (Kubernetes API conventions, "Watch"); read_object reads the event's object.
// Bytes after the last newline are ignored when the watch ends: an event that was cut off comes again when the watch
// goes on from the last version. Threads: one at a time. Errors: kGone for an ERROR event of code 410 (list again), the
// code of api_error.h for its other codes, kCorrupt for a line that is too long, not JSON, or not an event. After an
// error the decoder must not be used any more.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "operator/kube/object_text.h"
#include "operator/kube/watch_event.h"
#include "runner/base/line_channel.h"
#include "runner/base/result.h"

namespace lockstep::kube {

// etcd takes no object above 1.5 MB; in JSON, with what the API server adds, it stays far below this.
inline constexpr size_t kWatchLineBytesMax = size_t{8} << 20;

class WatchDecoder {
 public:
  // `field_bytes_max`: of read_object.
  explicit WatchDecoder(size_t line_bytes_max = kWatchLineBytesMax, size_t field_bytes_max = kFieldBytesMax)
      : lines_(line_bytes_max), field_bytes_max_(field_bytes_max) {}

  // Calls `on_event` for every event that is whole now, in order.
  Status decode(std::string_view bytes, const std::function<void(WatchEvent)>& on_event);

 private:
  LineSplitter lines_;
  const size_t field_bytes_max_;
};

// One line.
Result<WatchEvent> decode_watch_line(std::string_view line, size_t field_bytes_max = kFieldBytesMax);

}  // namespace lockstep::kube
