// Any bytes are either refused or give an array as large as its shape says. The input is a whole .npz when it begins
// like one, else the .npy in an .npz made here, so that the header is reached without guessing checksums.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runner/base/check.h"
#include "runner/formats/npz_file.h"
#include "runner/formats/zip_archive.h"

namespace {

std::string around(std::string_view array) {
  std::string file;
  const lockstep::ByteSink sink = [&](const void* from, size_t count) {
    file.append(static_cast<const char*>(from), count);
    return lockstep::Status();
  };
  lockstep::ZipWriter zip(sink, 0xFFFFFFFFU);
  static_cast<void>(zip.add("mu.npy", array.data(), array.size()).ok());
  static_cast<void>(zip.finish().ok());
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto array =
      lockstep::read_npz_array(input.starts_with("PK") ? std::string(input) : around(input), "mu", "fuzz");
  if (!array.ok()) {
    LOCKSTEP_CHECK(!array.error().message.empty(), "a refusal says why");
    return 0;
  }
  size_t count = 1;
  for (const int64_t length : array->shape) count *= static_cast<size_t>(length);
  LOCKSTEP_CHECK(array->values.size() == count, "as many values as the shape says");
  return 0;
}
