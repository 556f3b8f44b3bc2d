// The part of the zip format (PKWARE APPNOTE 6.3) that files of torch.save use: stored and deflated entries, zip64.
// Threads: pure functions; a ZipWriter belongs to one thread.
// Files are not trusted: every offset and size is checked, and entries may not overlap.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

struct ZipEntry {
  bool deflated = false;
  uint32_t crc32 = 0;
  uint64_t data_offset = 0;
  uint64_t stored_bytes = 0;  // in the file
  uint64_t bytes = 0;         // of the content
};

// The file's entries by name. Errors: kCorrupt; kInvalid for encryption or another compression.
Result<std::map<std::string, ZipEntry>> read_zip_directory(std::string_view file, std::string_view what);

// The content, with its CRC checked: a view into `file`, or for a deflated entry into `inflated`, which it fills. The
// caller must check entry.bytes against a limit before.
Result<std::string_view> read_zip_entry(std::string_view file, const std::string& name, const ZipEntry& entry,
                                        std::shared_ptr<const std::string>& inflated, std::string_view what);

class ZipWriter {
 public:
  // zip64_from: see TorchZipOptions.
  ZipWriter(const ByteSink& sink, uint64_t zip64_from) : sink_(sink), zip64_from_(zip64_from) {}

  // Stored, its data at a multiple of 64 bytes.
  Status add(const std::string& name, const void* data, uint64_t bytes);
  // The central directory.
  Status finish();

 private:
  struct Written {
    std::string name;
    uint32_t crc32;
    uint64_t bytes;
    uint64_t header_offset;
  };
  Status send(const void* data, uint64_t bytes);

  const ByteSink& sink_;
  uint64_t zip64_from_;
  uint64_t offset_ = 0;
  std::vector<Written> entries_;
};

}  // namespace lockstep
