#include "runner/formats/c_api.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#include "runner/base/file_system.h"
#include "runner/base/forwarding_file_system.h"
#include "runner/formats/c_api_answers.h"

namespace lockstep {
namespace {

std::atomic<uint64_t> operations_ended{0};

char* on_disk(CheckpointCall call, const char* request) {
  PosixFileSystem disk;
  WatchedFileSystem fs(disk, [] {
    operations_ended.fetch_add(1);
    return Status();
  });
  return ::strdup(answer_of(call, fs, request).c_str());
}

}  // namespace
}  // namespace lockstep

using lockstep::CheckpointCall;

char* lockstep_find_checkpoint(const char* request) { return lockstep::on_disk(CheckpointCall::kFind, request); }
char* lockstep_prepare_checkpoints(const char* request) { return lockstep::on_disk(CheckpointCall::kPrepare, request); }
char* lockstep_write_checkpoint(const char* request) { return lockstep::on_disk(CheckpointCall::kWrite, request); }
uint64_t lockstep_file_operations(void) { return lockstep::operations_ended.load(); }
