// Any bytes are either refused or give tensors whose every byte can be read, within bounds of time and memory.
// The input is a whole zip when it begins like one, else the data.pkl of a zip made here, so that the pickle machine
// is reached without guessing checksums. Links lockstep_formats.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runner/formats/pickle_zip.h"
#include "runner/formats/zip_archive.h"

namespace {

std::string around(std::string_view pickle) {
  std::string zip_bytes;
  const lockstep::ByteSink sink = [&](const void* from, size_t count) {
    zip_bytes.append(static_cast<const char*>(from), count);
    return lockstep::Status();
  };
  const std::string storage(256, 'x');
  lockstep::ZipWriter zip(sink, 0xFFFFFFFFU);
  static_cast<void>(zip.add("archive/data.pkl", pickle.data(), pickle.size()).ok());
  static_cast<void>(zip.add("archive/data/0", storage.data(), storage.size()).ok());
  static_cast<void>(zip.finish().ok());
  return zip_bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto bytes = std::make_shared<const std::string>(input.starts_with("PK") ? std::string(input) : around(input));
  const lockstep::Result<lockstep::TorchFile> file = lockstep::read_torch_zip(bytes, "fuzz");
  if (!file.ok()) return 0;
  const lockstep::Result<lockstep::TensorFile> tensors = lockstep::state_dict_of(*file, "fuzz");
  if (!tensors.ok()) return 0;
  unsigned sum = 0;
  for (const lockstep::TensorView& view : tensors->tensors) {
    const auto* at = static_cast<const uint8_t*>(view.data);
    for (uint64_t i = 0; i < view.bytes; ++i) sum += at[i];
  }
  volatile unsigned keep = sum;
  static_cast<void>(keep);
  return 0;
}
