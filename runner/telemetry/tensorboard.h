// EventWriter: TensorBoard event files (TFRecord framing, tensorflow.Event messages), scalars only.
//
// Role: writes what TensorBoard reads, without protobuf (torch carries its own). Each start of a run opens a new file
// whose SessionLog START makes TensorBoard hide the steps that are redone (its "purge orphaned data").
// Threads: one thread. Ownership: owns the file descriptor; only rank 0 has a writer.
// Errors: see append_file.h; training goes on without the events that were lost.
// Tags by convention: train/loss, train/lr, train/grad_norm, speed/samples_per_second, eval/<metric>.
// Formats: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto, framework/summary.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/append_file.h"
#include "runner/base/result.h"

namespace lockstep {

struct EventWriterOptions {
  std::string folder;       // created when missing
  std::string host;         // for the file's name
  int pid = 0;              // for the file's name
  double unix_time = 0.0;   // of the start
  int64_t resume_step = 0;  // steps done by the checkpoint that the run continues from; later ones are hidden
};

class EventWriter {
 public:
  // events.out.tfevents.<time>.<host>.<pid>. TensorBoard reads files in the order of their names, so the time is moved
  // past that of every file already there. `fs` outlives the writer.
  static Result<EventWriter> create(FileSystem& fs, const EventWriterOptions& options);

  // One event with all scalars of a step.
  Status add_scalars(int64_t step, double unix_time, const std::vector<std::pair<std::string, double>>& scalars);

  [[nodiscard]] const std::string& path() const { return file_.path(); }

 private:
  explicit EventWriter(AppendFile file) : file_(std::move(file)) {}

  AppendFile file_;
};

// CRC-32C (Castagnoli, RFC 3720 B.4) of `bytes`.
uint32_t crc32c(std::string_view bytes);

}  // namespace lockstep
