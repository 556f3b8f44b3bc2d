#include "runner/data/record_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/sha256.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "cache files are little-endian");

constexpr size_t kHexDigest = 64;

// Offsets and sizes in bytes from the beginning of the file.
struct Header {
  std::array<char, 8> magic = {};
  uint32_t version = 0;
  uint32_t header_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t num_records = 0;
  uint64_t index_offset = 0;                 // num_records RecordEntry
  uint64_t facts_bytes = 0;                  // JSON; follow the index. The lists [skipped, remarks] follow them
  std::array<char, kHexDigest> digest = {};  // SHA-256 of index and facts
};
static_assert(sizeof(Header) == 112 && std::is_trivially_copyable_v<Header>);
static_assert(sizeof(RecordEntry) == 24 && std::is_trivially_copyable_v<RecordEntry>);

uint64_t aligned(uint64_t offset) { return (offset + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment; }

// The file without the records.
struct Frame {
  std::string header;
  std::string trailer;
};

Frame frame_of(const CacheFormat& format, const std::vector<RecordEntry>& index, uint64_t index_offset,
               const Json& facts, const std::vector<SkippedFile>& skipped, const std::vector<SkippedFile>& remarks) {
  Frame frame;
  frame.trailer.assign(reinterpret_cast<const char*>(index.data()), index.size() * sizeof(RecordEntry));
  const std::string facts_text = dump_line(facts);
  frame.trailer += facts_text;
  const std::string digest = sha256_hex(frame.trailer);
  frame.trailer += "[" + skipped_text(skipped) + "," + skipped_text(remarks) + "]";
  Header header{.version = format.version,
                .header_bytes = sizeof(Header),
                .file_bytes = index_offset + frame.trailer.size(),
                .num_records = index.size(),
                .index_offset = index_offset,
                .facts_bytes = facts_text.size()};
  std::copy(format.magic.begin(), format.magic.end(), header.magic.begin());
  std::copy(digest.begin(), digest.end(), header.digest.begin());
  frame.header.assign(reinterpret_cast<const char*>(&header), sizeof(Header));
  return frame;
}

}  // namespace

RecordCacheWriter::RecordCacheWriter(const CacheFormat& format, int64_t records, size_t record_bytes)
    : format_(format) {
  constexpr size_t kListsBytes = size_t{64} << 10;  // of most: facts and lists
  if (record_bytes > 0) {
    bytes_.reserve(sizeof(Header) + static_cast<size_t>(records) * (aligned(record_bytes) + sizeof(RecordEntry)) +
                   kListsBytes);
  }
  bytes_.resize(sizeof(Header), '\0');
}

void RecordCacheWriter::add(std::string_view record, uint32_t tag) {
  const size_t begin = bytes_.size();
  bytes_ += record;
  bytes_.resize(aligned(bytes_.size()), '\0');
  index_.push_back(
      {.offset = begin, .bytes = record.size(), .crc32 = crc32_of(std::string_view(bytes_).substr(begin)), .tag = tag});
}

std::string RecordCacheWriter::finish(const Json& facts, const std::vector<SkippedFile>& skipped,
                                      const std::vector<SkippedFile>& remarks) && {
  const Frame frame = frame_of(format_, index_, bytes_.size(), facts, skipped, remarks);
  std::copy(frame.header.begin(), frame.header.end(), bytes_.begin());
  bytes_ += frame.trailer;
  return std::move(bytes_);
}

Status write_record_cache(const CacheFormat& format, const std::vector<const RecordCache*>& parts,
                          const ByteSink& sink) {
  const RecordCache& first = *parts.at(0);
  std::vector<RecordEntry> index;
  std::vector<SkippedFile> skipped;
  std::vector<SkippedFile> remarks;
  uint64_t offset = sizeof(Header);
  for (const RecordCache* part : parts) {
    if (part->facts_ != first.facts_) return part->corrupt("was prepared in another way than " + first.what_);
    skipped.insert(skipped.end(), part->skipped_.begin(), part->skipped_.end());
    remarks.insert(remarks.end(), part->remarks_.begin(), part->remarks_.end());
    for (int64_t i = 0; i < part->num_records_; ++i) {
      index.push_back(part->entry(i));
      index.back().offset = offset;
      offset += aligned(index.back().bytes);
    }
  }
  const Frame frame = frame_of(format, index, offset, first.facts_, skipped, remarks);
  TRY(sink(frame.header.data(), frame.header.size()));
  for (const RecordCache* part : parts) {
    for (int64_t i = 0; i < part->num_records_; ++i) {
      TRY_ASSIGN(const std::string_view record, part->record(i));  // with its checksum
      TRY(sink(record.data(), aligned(record.size())));
    }
  }
  return sink(frame.trailer.data(), frame.trailer.size());
}

Result<RecordCache> RecordCache::open(FileSystem& fs, const std::string& path, const CacheFormat& format) {
  TRY_ASSIGN(CacheBytes mapped, map_cache_file(fs, path));
  return checked(std::move(mapped), path, format);
}

Result<RecordCache> RecordCache::from_bytes(std::shared_ptr<const std::string> bytes, const std::string& what,
                                            const CacheFormat& format) {
  const std::string_view all = *bytes;
  return checked({.memory = std::move(bytes), .bytes = all}, what, format);
}

Result<RecordCache> RecordCache::checked(CacheBytes file, const std::string& what, const CacheFormat& format) {
  RecordCache cache;
  cache.what_ = what;
  cache.file_ = std::move(file);
  TRY(cache.check(format));
  return cache;
}

Error RecordCache::corrupt(const std::string& message) const {
  return Error{ErrorCode::kCorrupt, what_ + ": " + message + "; remove the file, it is made again from its source"};
}

RecordEntry RecordCache::entry(int64_t i) const {
  LOCKSTEP_CHECK(i >= 0 && i < num_records_, "no record of this cache");
  RecordEntry entry;
  std::memcpy(&entry, file_.bytes.data() + index_offset_ + static_cast<uint64_t>(i) * sizeof(RecordEntry),
              sizeof(RecordEntry));
  return entry;
}

Status RecordCache::check(const CacheFormat& format) {
  const std::string_view bytes = file_.bytes;
  const std::string name = format.name;
  if (bytes.size() < sizeof(Header) || !bytes.starts_with(format.magic))
    return corrupt("is no " + name + ", or cut off");
  // Records are read in place: a mapping is aligned, and so is a string's memory when it is not in the string itself.
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kRecordAlignment != 0) {
    return corrupt("is not aligned to 8 bytes in memory");
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.version != format.version) {
    return Error{ErrorCode::kConflict, what_ + ": is a " + name + " of version " + std::to_string(header.version) +
                                           "; this program reads version " + std::to_string(format.version) +
                                           ": remove the file, it is made again from its source"};
  }
  if (header.header_bytes != sizeof(Header)) return corrupt("has a damaged header");
  if (header.file_bytes != bytes.size()) {
    return corrupt("has " + std::to_string(bytes.size()) + " bytes instead of " + std::to_string(header.file_bytes));
  }
  if (header.num_records > bytes.size() / sizeof(RecordEntry) || header.index_offset < sizeof(Header) ||
      header.index_offset % kRecordAlignment != 0 || header.index_offset > bytes.size() ||
      header.num_records * sizeof(RecordEntry) > bytes.size() - header.index_offset ||
      header.facts_bytes > bytes.size() - header.index_offset - header.num_records * sizeof(RecordEntry)) {
    return corrupt("has a damaged header");
  }
  num_records_ = static_cast<int64_t>(header.num_records);
  index_offset_ = header.index_offset;
  const size_t index_bytes = header.num_records * sizeof(RecordEntry);
  digest_ = sha256_hex(bytes.substr(index_offset_, index_bytes + header.facts_bytes));
  if (digest_ != std::string_view(header.digest.data(), kHexDigest)) return corrupt("has a damaged index");
  for (int64_t i = 0; i < num_records_; ++i) {
    const RecordEntry e = entry(i);
    if (e.offset < sizeof(Header) || e.offset % kRecordAlignment != 0 || e.offset > index_offset_ ||
        e.bytes > index_offset_ - e.offset || aligned(e.bytes) > index_offset_ - e.offset) {
      return corrupt("has a damaged index (record " + std::to_string(i) + ")");
    }
  }
  Result<Json> facts = parse_json(bytes.substr(index_offset_ + index_bytes, header.facts_bytes), "facts");
  if (!facts.ok()) return corrupt("has damaged facts");
  facts_ = std::move(*facts);
  const Result<Json> lists = parse_json(bytes.substr(index_offset_ + index_bytes + header.facts_bytes), "lists");
  if (!lists.ok() || !lists->is_array() || lists->size() != 2) return corrupt("has a damaged list of skipped files");
  for (auto [list, into] : {std::pair(&(*lists)[0], &skipped_), std::pair(&(*lists)[1], &remarks_)}) {
    Result<std::vector<SkippedFile>> read = skipped_files_of(*list);
    if (!read.ok()) return corrupt(read.error().message);
    *into = std::move(*read);
  }
  return {};
}

Result<std::string_view> RecordCache::record(int64_t i) const {
  const RecordEntry e = entry(i);
  if (crc32_of(file_.bytes.substr(e.offset, aligned(e.bytes))) != e.crc32) {
    return corrupt("record " + std::to_string(i) + " is damaged");
  }
  return file_.bytes.substr(e.offset, e.bytes);
}

}  // namespace lockstep
