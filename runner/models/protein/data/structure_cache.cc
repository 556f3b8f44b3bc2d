#include "runner/models/protein/data/structure_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/sha256.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "cache files are little-endian");

constexpr std::array<char, 8> kMagic = {'L', 'S', 'T', 'R', 'U', 'C', 'T', '\n'};
constexpr size_t kAlignment = 8;
constexpr size_t kHexDigest = 64;

// Offsets and sizes in bytes from the beginning of the file.
struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kStructureCacheVersion;
  uint32_t header_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t num_structures = 0;
  uint64_t index_offset = 0;    // num_structures IndexEntry
  uint64_t skipped_offset = 0;  // two lines of JSON, [[file, reason], …]: files that were skipped, and remarks
  uint64_t skipped_bytes = 0;
  std::array<char, kHexDigest> digest = {};  // SHA-256 of the index
};
static_assert(sizeof(Header) == 120 && std::is_trivially_copyable_v<Header>);

struct IndexEntry {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
  uint32_t positions = 0;
  uint32_t chains = 0;
  uint32_t text_bytes = 0;  // the name, then the chains' ids
  uint32_t name_bytes = 0;
  uint32_t unused = 0;
};
static_assert(sizeof(IndexEntry) == 40 && std::is_trivially_copyable_v<IndexEntry>);

struct ChainRecord {
  int64_t cluster = -1;
  uint32_t end = 0;  // index after its last position; the next chain begins there
  uint32_t group = 0;
  uint32_t id_bytes = 0;
  uint8_t is_protein = 0;
  uint8_t split = 0;
  uint16_t unused = 0;
};
static_assert(sizeof(ChainRecord) == 24 && std::is_trivially_copyable_v<ChainRecord>);
static_assert(sizeof(Backbone) == 48);

// Offsets of a structure's parts from its beginning, which is aligned. Arrays of larger elements come first, so that
// all are aligned.
struct StructureLayout {
  explicit StructureLayout(const IndexEntry& entry) {
    const uint64_t positions = entry.positions;
    backbone = entry.chains * sizeof(ChainRecord);
    numbers = backbone + positions * sizeof(Backbone);
    chi1 = numbers + positions * sizeof(int32_t);
    chain_of = chi1 + positions * sizeof(float);
    types = chain_of + positions * sizeof(uint16_t);
    flags = types + positions;
    insertion_codes = flags + positions;
    text = insertion_codes + positions;
    bytes = text + entry.text_bytes;
  }
  uint64_t chains = 0;
  uint64_t backbone, numbers, chi1, chain_of, types, flags, insertion_codes, text, bytes;
};

uint64_t aligned(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

template <typename T>
T read_at(std::string_view bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

IndexEntry entry_of(std::string_view bytes, uint64_t index_offset, int64_t structure) {
  return read_at<IndexEntry>(bytes, index_offset + static_cast<uint64_t>(structure) * sizeof(IndexEntry));
}

template <typename T>
void append_value(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// The structure's bytes, after which the next may begin.
std::string encode(const Structure& structure, IndexEntry& entry) {
  std::string text = structure.name;
  std::string out;
  uint32_t end = 0;
  for (const StructureChain& chain : structure.chains) {
    end += static_cast<uint32_t>(chain.positions.size());
    append_value(out, ChainRecord{.cluster = chain.cluster,
                                  .end = end,
                                  .group = chain.group,
                                  .id_bytes = static_cast<uint32_t>(chain.id.size()),
                                  .is_protein = static_cast<uint8_t>(chain.is_protein),
                                  .split = static_cast<uint8_t>(chain.split)});
    text += chain.id;
  }
  const auto append_all = [&](const auto& value_of) {
    for (size_t c = 0; c < structure.chains.size(); ++c) {
      for (const Position& position : structure.chains[c].positions) append_value(out, value_of(c, position));
    }
  };
  append_all([](size_t, const Position& position) { return position.backbone; });
  append_all([](size_t, const Position& position) { return position.number; });
  append_all([](size_t, const Position& position) { return position.chi1; });
  append_all([](size_t chain, const Position&) { return static_cast<uint16_t>(chain); });
  append_all([](size_t, const Position& position) { return position.type; });
  append_all([](size_t, const Position& position) { return position.flags; });
  append_all([](size_t, const Position& position) { return position.insertion_code; });
  out += text;
  entry.positions = end;
  entry.chains = static_cast<uint32_t>(structure.chains.size());
  entry.text_bytes = static_cast<uint32_t>(text.size());
  entry.name_bytes = static_cast<uint32_t>(structure.name.size());
  out.resize(aligned(out.size()), '\0');
  entry.bytes = out.size();
  entry.crc32 = crc32_of(out);
  return out;
}

std::string text_of(const std::vector<SkippedFile>& skipped, const std::vector<SkippedFile>& remarks) {
  return skipped_text(skipped) + "\n" + skipped_text(remarks);
}

std::string_view bytes_of_index(const std::vector<IndexEntry>& index) {
  return {reinterpret_cast<const char*>(index.data()), index.size() * sizeof(IndexEntry)};
}

Header header_of(const std::vector<IndexEntry>& index, uint64_t index_offset, size_t skipped_bytes) {
  Header header;
  header.header_bytes = sizeof(Header);
  header.num_structures = index.size();
  header.index_offset = index_offset;
  header.skipped_offset = index_offset + bytes_of_index(index).size();
  header.skipped_bytes = skipped_bytes;
  header.file_bytes = header.skipped_offset + skipped_bytes;
  const std::string digest = sha256_hex(bytes_of_index(index));
  std::copy(digest.begin(), digest.end(), header.digest.begin());
  return header;
}

}  // namespace

std::string structure_cache_bytes(const std::vector<Structure>& structures, const std::vector<SkippedFile>& skipped) {
  std::string out(sizeof(Header), '\0');
  std::vector<IndexEntry> index;
  for (const Structure& structure : structures) {
    index.emplace_back();
    index.back().offset = out.size();
    out += encode(structure, index.back());
  }
  std::vector<SkippedFile> remarks;
  for (const Structure& structure : structures) {
    for (const std::string& remark : structure.remarks) remarks.push_back({structure.name, remark});
  }
  const std::string text = text_of(skipped, remarks);
  const Header header = header_of(index, out.size(), text.size());
  std::memcpy(out.data(), &header, sizeof(Header));
  out += bytes_of_index(index);
  out += text;
  return out;
}

Status write_structure_cache(const std::vector<const StructureCache*>& parts, const ByteSink& sink) {
  std::vector<IndexEntry> index;
  std::vector<SkippedFile> skipped;
  std::vector<SkippedFile> remarks;
  uint64_t offset = sizeof(Header);
  for (const StructureCache* part : parts) {
    skipped.insert(skipped.end(), part->skipped_.begin(), part->skipped_.end());
    remarks.insert(remarks.end(), part->remarks_.begin(), part->remarks_.end());
    for (int64_t i = 0; i < part->num_structures_; ++i) {
      index.push_back(entry_of(part->bytes_, part->index_offset_, i));
      index.back().offset = offset;
      offset += index.back().bytes;
    }
  }
  const std::string text = text_of(skipped, remarks);
  const Header header = header_of(index, offset, text.size());
  TRY(sink(&header, sizeof(Header)));
  for (const StructureCache* part : parts) {
    for (int64_t i = 0; i < part->num_structures_; ++i) {
      TRY(part->structure(i));  // with its checksum
      const IndexEntry entry = entry_of(part->bytes_, part->index_offset_, i);
      TRY(sink(part->bytes_.data() + entry.offset, entry.bytes));
    }
  }
  TRY(sink(index.data(), index.size() * sizeof(IndexEntry)));
  return sink(text.data(), text.size());
}

Result<StructureCache> StructureCache::open(FileSystem& fs, const std::string& path) {
  TRY_ASSIGN(CacheBytes mapped, map_cache_file(fs, path));
  StructureCache cache;
  cache.what_ = path;
  cache.memory_ = std::move(mapped.memory);
  cache.bytes_ = mapped.bytes;
  TRY(cache.check());
  return cache;
}

Result<StructureCache> StructureCache::from_bytes(std::shared_ptr<const std::string> bytes, const std::string& what) {
  StructureCache cache;
  cache.what_ = what;
  cache.bytes_ = *bytes;
  cache.memory_ = std::move(bytes);
  TRY(cache.check());
  return cache;
}

Result<StructureCache> StructureCache::from_structures(const std::vector<Structure>& structures) {
  return from_bytes(std::make_shared<const std::string>(structure_cache_bytes(structures, {})), "memory");
}

Error StructureCache::corrupt(const std::string& message) const {
  return Error{ErrorCode::kCorrupt, what_ + ": " + message + "; remove the file, it is made again from its source"};
}

Status StructureCache::check() {
  if (bytes_.size() < sizeof(Header) || !bytes_.starts_with(std::string_view(kMagic.data(), kMagic.size()))) {
    return corrupt("is no structure cache, or cut off");
  }
  // Structures are read in place: a mapping is aligned, and so is a string's memory when it is not in the string
  // itself.
  if (reinterpret_cast<uintptr_t>(bytes_.data()) % kAlignment != 0)
    return corrupt("is not aligned to 8 bytes in memory");
  const auto header = read_at<Header>(bytes_, 0);
  if (header.version != kStructureCacheVersion) {
    return Error{ErrorCode::kConflict, what_ + ": is a structure cache of version " + std::to_string(header.version) +
                                           "; this program reads version " + std::to_string(kStructureCacheVersion) +
                                           ": remove the file, it is made again from its source"};
  }
  if (header.header_bytes != sizeof(Header)) return corrupt("has a damaged header");
  if (header.file_bytes != bytes_.size()) {
    return corrupt("has " + std::to_string(bytes_.size()) + " bytes instead of " + std::to_string(header.file_bytes));
  }
  if (header.num_structures > bytes_.size() / sizeof(IndexEntry) || header.index_offset < sizeof(Header) ||
      header.index_offset % kAlignment != 0 || header.index_offset > bytes_.size() ||
      header.num_structures * sizeof(IndexEntry) > bytes_.size() - header.index_offset ||
      header.skipped_offset != header.index_offset + header.num_structures * sizeof(IndexEntry) ||
      header.skipped_bytes != bytes_.size() - header.skipped_offset) {
    return corrupt("has a damaged header");
  }
  num_structures_ = static_cast<int64_t>(header.num_structures);
  index_offset_ = header.index_offset;
  digest_ = sha256_hex(bytes_.substr(index_offset_, header.num_structures * sizeof(IndexEntry)));
  if (digest_ != std::string_view(header.digest.data(), kHexDigest)) return corrupt("has a damaged index");
  for (int64_t i = 0; i < num_structures_; ++i) {
    const IndexEntry entry = entry_of(bytes_, index_offset_, i);
    if (entry.offset < sizeof(Header) || entry.offset % kAlignment != 0 || entry.offset > index_offset_ ||
        entry.bytes > index_offset_ - entry.offset || entry.positions == 0 || entry.positions > kPositionsMax ||
        entry.chains == 0 || entry.chains > kChainsMax || entry.name_bytes > entry.text_bytes ||
        entry.text_bytes > entry.bytes || aligned(StructureLayout(entry).bytes) != entry.bytes) {
      return corrupt("has a damaged index (structure " + std::to_string(i) + ")");
    }
  }
  const std::string_view lists = bytes_.substr(header.skipped_offset);
  const size_t end = lists.find('\n');
  if (end == std::string_view::npos) return corrupt("has a damaged list of skipped files");
  Result<std::vector<SkippedFile>> skipped = parse_skipped(lists.substr(0, end));
  if (!skipped.ok()) return corrupt(skipped.error().message);
  skipped_ = std::move(*skipped);
  Result<std::vector<SkippedFile>> remarks = parse_skipped(lists.substr(end + 1));
  if (!remarks.ok()) return corrupt(remarks.error().message);
  remarks_ = std::move(*remarks);
  return {};
}

int64_t StructureCache::length(int64_t i) const {
  LOCKSTEP_CHECK(i >= 0 && i < num_structures_, "no structure of this cache");
  return entry_of(bytes_, index_offset_, i).positions;
}

Result<StructureView> StructureCache::structure(int64_t i) const {
  LOCKSTEP_CHECK(i >= 0 && i < num_structures_, "no structure of this cache");
  const IndexEntry entry = entry_of(bytes_, index_offset_, i);
  const std::string_view bytes = bytes_.substr(entry.offset, entry.bytes);
  const auto damaged = [&] { return corrupt("structure " + std::to_string(i) + " is damaged"); };
  if (crc32_of(bytes) != entry.crc32) return damaged();
  const StructureLayout layout(entry);
  const auto span_at = [&]<typename T>(uint64_t offset, T /*element*/) {
    return std::span<const T>(reinterpret_cast<const T*>(bytes.data() + offset), entry.positions);
  };
  StructureView view;
  view.backbone = span_at(layout.backbone, Backbone());
  view.numbers = span_at(layout.numbers, int32_t());
  view.chi1 = span_at(layout.chi1, float());
  view.chain_of = span_at(layout.chain_of, uint16_t());
  view.types = span_at(layout.types, uint8_t());
  view.flags = span_at(layout.flags, uint8_t());
  view.insertion_codes = span_at(layout.insertion_codes, char());
  std::string_view text = bytes.substr(layout.text, entry.text_bytes);
  view.name = text.substr(0, entry.name_bytes);
  text.remove_prefix(entry.name_bytes);
  // A right checksum does not make the content right: a forged file has one, too. Values that other code uses as
  // indices are checked.
  uint32_t begin = 0;
  for (uint32_t c = 0; c < entry.chains; ++c) {
    const auto record = read_at<ChainRecord>(bytes, layout.chains + c * sizeof(ChainRecord));
    if (record.end <= begin || record.end > entry.positions || record.id_bytes > text.size() ||
        record.split > static_cast<uint8_t>(ChainSplit::kTest) || record.group >= entry.chains) {
      return damaged();
    }
    view.chains.push_back({.id = text.substr(0, record.id_bytes),
                           .begin = begin,
                           .end = record.end,
                           .is_protein = record.is_protein != 0,
                           .group = record.group,
                           .cluster = record.cluster,
                           .split = static_cast<ChainSplit>(record.split)});
    text.remove_prefix(record.id_bytes);
    for (; begin < record.end; ++begin) {
      if (view.chain_of[begin] != c || view.types[begin] > kUnknownResidue) return damaged();
    }
  }
  if (begin != entry.positions) return damaged();
  return view;
}

}  // namespace lockstep
