// Any bytes are either refused or give views whose every byte can be read. Links lockstep_formats.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "runner/formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::make_shared<const std::string>(reinterpret_cast<const char*>(data), size);
  const lockstep::Result<lockstep::TensorFile> file = lockstep::read_safetensors(bytes, "fuzz");
  if (!file.ok()) return 0;
  unsigned sum = 0;
  for (const lockstep::TensorView& view : file->tensors) {
    const auto* at = static_cast<const uint8_t*>(view.data);
    for (uint64_t i = 0; i < view.bytes; ++i) sum += at[i];
  }
  // What was read can be written, and reads back.
  std::string again;
  const lockstep::Status written =
      lockstep::write_safetensors(file->tensors, file->metadata, [&](const void* from, size_t count) {
        again.append(static_cast<const char*>(from), count);
        return lockstep::Status();
      });
  if (!written.ok() || !lockstep::read_safetensors(std::make_shared<const std::string>(again), "again").ok()) {
    std::abort();
  }
  volatile unsigned keep = sum;
  static_cast<void>(keep);
  return 0;
}
