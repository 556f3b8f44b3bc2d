#include "runner/formats/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "runner/formats/little_endian.h"

namespace lockstep {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kCentralHeader = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kZip64End = 0x06064b50;
constexpr uint32_t kZip64Locator = 0x07064b50;
constexpr size_t kLocalHeaderBytes = 30;
constexpr size_t kCentralHeaderBytes = 46;
constexpr size_t kEndBytes = 22;
constexpr size_t kZip64EndBytes = 56;
constexpr size_t kZip64LocatorBytes = 20;
constexpr size_t kCommentBytesMax = 0xFFFF;
constexpr uint16_t kZip64ExtraId = 0x0001;
constexpr uint16_t kPaddingExtraId = 0x4246;  // "FB": what torch.save pads with
constexpr uint16_t kEncryptedFlag = 0x0001;
constexpr uint16_t kUtf8Flag = 0x0800;
constexpr uint16_t kVersionZip64 = 45;
constexpr uint32_t kMax32 = 0xFFFFFFFF;
constexpr uint16_t kMax16 = 0xFFFF;
constexpr uint64_t kAlignment = 64;  // torch maps storages from the file
// 1980-01-01 for all entries, so that two exports of one checkpoint have the same bytes.
constexpr uint16_t kDosDate = 0x0021;

// Reads little-endian fields one after the other. The caller has checked that they lie inside the file.
class Fields {
 public:
  Fields(std::string_view bytes, size_t offset) : bytes_(bytes), offset_(offset) {}
  uint16_t u16() { return static_cast<uint16_t>(take(2)); }
  uint32_t u32() { return static_cast<uint32_t>(take(4)); }
  uint64_t u64() { return take(8); }
  void skip(size_t bytes) { offset_ += bytes; }
  [[nodiscard]] size_t left() const { return bytes_.size() - offset_; }

 private:
  uint64_t take(size_t count) {
    const uint64_t value = little_endian(bytes_.substr(offset_, count));
    offset_ += count;
    return value;
  }
  std::string_view bytes_;
  size_t offset_;
};

bool holds(std::string_view file, uint64_t offset, uint64_t bytes) {
  return offset <= file.size() && bytes <= file.size() - offset;
}

struct Directory {
  uint64_t entries = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
};

std::optional<size_t> find_end(std::string_view file) {
  if (file.size() < kEndBytes) return std::nullopt;
  const size_t last = file.size() - kEndBytes;
  const size_t first = last > kCommentBytesMax ? last - kCommentBytesMax : 0;
  for (size_t offset = last + 1; offset-- > first;) {
    Fields fields(file, offset);
    if (fields.u32() != kEnd) continue;
    fields.skip(16);
    if (fields.u16() == file.size() - offset - kEndBytes) return offset;
  }
  return std::nullopt;
}

Result<Directory> read_end(std::string_view file, std::string_view what) {
  const std::optional<size_t> end = find_end(file);
  if (!end) return corrupt(what, "the zip directory at its end is missing; the file is truncated or no zip");
  Fields fields(file, *end + 10);
  Directory directory;
  directory.entries = fields.u16();
  directory.bytes = fields.u32();
  directory.offset = fields.u32();
  const bool is_zip64 = directory.entries == kMax16 || directory.bytes == kMax32 || directory.offset == kMax32;
  if (is_zip64) {
    if (*end < kZip64LocatorBytes) return corrupt(what, "the zip64 directory is missing");
    Fields locator(file, *end - kZip64LocatorBytes);
    const bool is_locator = locator.u32() == kZip64Locator;
    locator.skip(4);
    const uint64_t offset = locator.u64();
    if (!is_locator || !holds(file, offset, kZip64EndBytes)) return corrupt(what, "the zip64 directory is missing");
    Fields end64(file, static_cast<size_t>(offset));
    if (end64.u32() != kZip64End) return corrupt(what, "the zip64 directory is missing");
    end64.skip(28);
    directory.entries = end64.u64();
    directory.bytes = end64.u64();
    directory.offset = end64.u64();
  }
  if (!holds(file, directory.offset, directory.bytes)) return corrupt(what, "the zip directory lies outside the file");
  return directory;
}

// A 32-bit size or offset of 0xFFFFFFFF means that its value is in the zip64 extra field; they come in this order
// there.
bool read_zip64_extra(Fields extra, size_t extra_bytes, ZipEntry& entry, uint64_t& header_offset) {
  while (extra_bytes >= 4) {
    const uint16_t id = extra.u16();
    size_t size = extra.u16();
    extra_bytes -= 4;
    if (size > extra_bytes) return false;
    extra_bytes -= size;
    if (id != kZip64ExtraId) {
      extra.skip(size);
      continue;
    }
    for (uint64_t* field : {&entry.bytes, &entry.stored_bytes, &header_offset}) {
      if (*field != kMax32) continue;
      if (size < 8) return false;
      *field = extra.u64();
      size -= 8;
    }
    return true;
  }
  return entry.bytes != kMax32 && entry.stored_bytes != kMax32 && header_offset != kMax32;
}

struct LocatedEntry {
  std::string name;
  ZipEntry entry;
  uint64_t header_offset = 0;
};

Result<LocatedEntry> read_central_header(std::string_view file, Fields& fields, std::string_view what) {
  if (fields.left() < kCentralHeaderBytes || fields.u32() != kCentralHeader) {
    return corrupt(what, "the zip directory is damaged");
  }
  LocatedEntry located;
  fields.skip(4);
  const uint16_t flags = fields.u16();
  const uint16_t method = fields.u16();
  fields.skip(4);
  located.entry.crc32 = fields.u32();
  located.entry.stored_bytes = fields.u32();
  located.entry.bytes = fields.u32();
  const size_t name_bytes = fields.u16();
  const size_t extra_bytes = fields.u16();
  const size_t comment_bytes = fields.u16();
  fields.skip(8);
  located.header_offset = fields.u32();
  if (fields.left() < name_bytes + extra_bytes + comment_bytes) return corrupt(what, "the zip directory is damaged");
  const size_t name_offset = file.size() - fields.left();
  located.name = std::string(file.substr(name_offset, name_bytes));
  fields.skip(name_bytes);
  if (!read_zip64_extra(fields, extra_bytes, located.entry, located.header_offset)) {
    return corrupt(what, "zip entry " + located.name + " has a damaged zip64 field");
  }
  fields.skip(extra_bytes + comment_bytes);
  if ((flags & kEncryptedFlag) != 0 || (method != 0 && method != Z_DEFLATED)) {
    return Error{ErrorCode::kInvalid, std::string(what) + ": zip entry " + located.name +
                                          " is encrypted or compressed in a way that is not read here"};
  }
  located.entry.deflated = method == Z_DEFLATED;
  if (!located.entry.deflated && located.entry.bytes != located.entry.stored_bytes) {
    return corrupt(what, "zip entry " + located.name + " is stored, but its two sizes differ");
  }
  return located;
}

Status locate_data(std::string_view file, LocatedEntry& located, std::string_view what) {
  if (!holds(file, located.header_offset, kLocalHeaderBytes)) {
    return corrupt(what, "zip entry " + located.name + " lies outside the file");
  }
  Fields fields(file, static_cast<size_t>(located.header_offset));
  if (fields.u32() != kLocalHeader) return corrupt(what, "zip entry " + located.name + " has no header");
  fields.skip(22);
  const uint64_t name_bytes = fields.u16();
  const uint64_t extra_bytes = fields.u16();
  located.entry.data_offset = located.header_offset + kLocalHeaderBytes + name_bytes + extra_bytes;
  if (!holds(file, located.entry.data_offset, located.entry.stored_bytes)) {
    return corrupt(what, "zip entry " + located.name + " lies outside the file");
  }
  return {};
}

// With overlapping entries a small file could expand to very much data.
Status check_overlap(std::vector<LocatedEntry>& entries, uint64_t directory_offset, std::string_view what) {
  std::sort(entries.begin(), entries.end(),
            [](const LocatedEntry& a, const LocatedEntry& b) { return a.header_offset < b.header_offset; });
  for (size_t i = 0; i < entries.size(); ++i) {
    const uint64_t limit = i + 1 < entries.size() ? entries[i + 1].header_offset : directory_offset;
    if (entries[i].entry.data_offset + entries[i].entry.stored_bytes > limit) {
      return corrupt(what, "zip entry " + entries[i].name + " overlaps what follows it");
    }
  }
  return {};
}

Result<std::shared_ptr<const std::string>> inflate_entry(std::string_view stored, uint64_t bytes,
                                                         const Error& damaged) {
  if (stored.size() > std::numeric_limits<uInt>::max() || bytes > std::numeric_limits<uInt>::max()) {
    return Error{ErrorCode::kInvalid, damaged.message + " (deflated entries above 4 GB are not read; save it again)"};
  }
  auto content = std::make_shared<std::string>(static_cast<size_t>(bytes), '\0');
  z_stream stream = {};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return Error{ErrorCode::kUnavailable, "zlib cannot be started"};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data()));  // zlib's own signature
  stream.avail_in = static_cast<uInt>(stored.size());
  stream.next_out = reinterpret_cast<Bytef*>(content->data());
  stream.avail_out = static_cast<uInt>(bytes);
  const int result = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  if (result != Z_STREAM_END || stream.total_out != bytes) return damaged;
  return std::shared_ptr<const std::string>(std::move(content));
}

uint32_t crc32_of(const void* data, uint64_t bytes) {
  return static_cast<uint32_t>(crc32_z(0, static_cast<const Bytef*>(data), static_cast<z_size_t>(bytes)));
}

}  // namespace

Result<std::map<std::string, ZipEntry>> read_zip_directory(std::string_view file, std::string_view what) {
  TRY_ASSIGN(const Directory directory, read_end(file, what));
  if (directory.entries > directory.bytes / kCentralHeaderBytes) return corrupt(what, "the zip directory is damaged");
  const std::string_view upto = file.substr(0, static_cast<size_t>(directory.offset + directory.bytes));
  Fields fields(upto, static_cast<size_t>(directory.offset));
  std::vector<LocatedEntry> located;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    TRY_ASSIGN(LocatedEntry entry, read_central_header(upto, fields, what));
    TRY(locate_data(file, entry, what));
    located.push_back(std::move(entry));
  }
  TRY(check_overlap(located, directory.offset, what));
  std::map<std::string, ZipEntry> entries;
  for (LocatedEntry& entry : located) {
    if (!entries.emplace(entry.name, entry.entry).second) {
      return corrupt(what, "two zip entries are named " + entry.name);
    }
  }
  return entries;
}

Result<std::string_view> read_zip_entry(std::string_view file, const std::string& name, const ZipEntry& entry,
                                        std::shared_ptr<const std::string>& inflated, std::string_view what) {
  std::string_view content =
      file.substr(static_cast<size_t>(entry.data_offset), static_cast<size_t>(entry.stored_bytes));
  const Error damaged = corrupt(what, "zip entry " + name + " is damaged: its CRC or size is wrong");
  if (entry.deflated) {
    TRY_ASSIGN(inflated, inflate_entry(content, entry.bytes, damaged));
    content = *inflated;
  }
  if (crc32_of(content.data(), content.size()) != entry.crc32) return damaged;
  return content;
}

Status ZipWriter::send(const void* data, uint64_t bytes) {
  offset_ += bytes;
  return bytes == 0 ? Status() : sink_(data, static_cast<size_t>(bytes));
}

Status ZipWriter::add(const std::string& name, const void* data, uint64_t bytes) {
  const Written entry{name, crc32_of(data, bytes), bytes, offset_};
  const bool is_zip64 = bytes >= zip64_from_;
  std::string extra;
  if (is_zip64) {
    put_little_endian(extra, kZip64ExtraId, 2);
    put_little_endian(extra, 16, 2);
    put_little_endian(extra, bytes, 8);
    put_little_endian(extra, bytes, 8);
  }
  const uint64_t unpadded = offset_ + kLocalHeaderBytes + name.size() + extra.size() + 4;
  const uint64_t padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  put_little_endian(extra, kPaddingExtraId, 2);
  put_little_endian(extra, padding, 2);
  extra.append(static_cast<size_t>(padding), 'Z');

  std::string header;
  put_little_endian(header, kLocalHeader, 4);
  put_little_endian(header, is_zip64 ? kVersionZip64 : 0, 2);
  put_little_endian(header, kUtf8Flag, 2);
  put_little_endian(header, 0, 2);  // stored
  put_little_endian(header, 0, 2);  // time
  put_little_endian(header, kDosDate, 2);
  put_little_endian(header, entry.crc32, 4);
  put_little_endian(header, is_zip64 ? kMax32 : bytes, 4);
  put_little_endian(header, is_zip64 ? kMax32 : bytes, 4);
  put_little_endian(header, name.size(), 2);
  put_little_endian(header, extra.size(), 2);
  header += name + extra;
  TRY(send(header.data(), header.size()));
  TRY(send(data, bytes));
  entries_.push_back(entry);
  return {};
}

Status ZipWriter::finish() {
  const uint64_t directory_offset = offset_;
  std::string out;
  for (const Written& entry : entries_) {
    const bool is_large = entry.bytes >= zip64_from_;
    const bool is_far = entry.header_offset >= zip64_from_;
    std::string extra;
    if (is_large) {
      put_little_endian(extra, entry.bytes, 8);
      put_little_endian(extra, entry.bytes, 8);
    }
    if (is_far) put_little_endian(extra, entry.header_offset, 8);
    std::string extra_header;
    if (!extra.empty()) {
      put_little_endian(extra_header, kZip64ExtraId, 2);
      put_little_endian(extra_header, extra.size(), 2);
    }
    put_little_endian(out, kCentralHeader, 4);
    put_little_endian(out, kVersionZip64, 2);
    put_little_endian(out, is_large || is_far ? kVersionZip64 : 0, 2);
    put_little_endian(out, kUtf8Flag, 2);
    put_little_endian(out, 0, 2);  // stored
    put_little_endian(out, 0, 2);  // time
    put_little_endian(out, kDosDate, 2);
    put_little_endian(out, entry.crc32, 4);
    put_little_endian(out, is_large ? kMax32 : entry.bytes, 4);
    put_little_endian(out, is_large ? kMax32 : entry.bytes, 4);
    put_little_endian(out, entry.name.size(), 2);
    put_little_endian(out, extra_header.size() + extra.size(), 2);
    put_little_endian(out, 0, 2);  // comment
    put_little_endian(out, 0, 8);  // disk, attributes
    put_little_endian(out, is_far ? kMax32 : entry.header_offset, 4);
    out += entry.name + extra_header + extra;
  }
  const uint64_t directory_bytes = out.size();
  const uint64_t end_offset = directory_offset + directory_bytes;
  const bool is_zip64 = end_offset >= zip64_from_ || entries_.size() >= kMax16;
  if (is_zip64) {
    put_little_endian(out, kZip64End, 4);
    put_little_endian(out, kZip64EndBytes - 12, 8);
    put_little_endian(out, kVersionZip64, 2);
    put_little_endian(out, kVersionZip64, 2);
    put_little_endian(out, 0, 8);  // disks
    put_little_endian(out, entries_.size(), 8);
    put_little_endian(out, entries_.size(), 8);
    put_little_endian(out, directory_bytes, 8);
    put_little_endian(out, directory_offset, 8);
    put_little_endian(out, kZip64Locator, 4);
    put_little_endian(out, 0, 4);
    put_little_endian(out, end_offset, 8);
    put_little_endian(out, 1, 4);
  }
  put_little_endian(out, kEnd, 4);
  put_little_endian(out, 0, 4);  // disks
  put_little_endian(out, is_zip64 ? kMax16 : entries_.size(), 2);
  put_little_endian(out, is_zip64 ? kMax16 : entries_.size(), 2);
  put_little_endian(out, is_zip64 ? kMax32 : directory_bytes, 4);
  put_little_endian(out, is_zip64 ? kMax32 : directory_offset, 4);
  put_little_endian(out, 0, 2);
  return send(out.data(), out.size());
}

}  // namespace lockstep
