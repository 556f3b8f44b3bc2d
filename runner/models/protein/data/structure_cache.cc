#include "runner/models/protein/data/structure_cache.h"

#include <cstring>

namespace lockstep {
namespace {

// A record begins with it.
struct Sizes {
  uint32_t positions = 0;
  uint32_t chains = 0;
  uint32_t text_bytes = 0;  // the name, then the chains' ids
  uint32_t name_bytes = 0;
};
static_assert(sizeof(Sizes) == 16 && std::is_trivially_copyable_v<Sizes>);

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

// Offsets of a record's parts from its beginning, which is aligned. Arrays of larger elements come first, so that all
// are aligned.
struct StructureLayout {
  explicit StructureLayout(const Sizes& sizes) {
    const uint64_t positions = sizes.positions;
    backbone = chains + sizes.chains * sizeof(ChainRecord);
    numbers = backbone + positions * sizeof(Backbone);
    chi1 = numbers + positions * sizeof(int32_t);
    chain_of = chi1 + positions * sizeof(float);
    types = chain_of + positions * sizeof(uint16_t);
    flags = types + positions;
    insertion_codes = flags + positions;
    text = insertion_codes + positions;
    bytes = text + sizes.text_bytes;
  }
  uint64_t chains = sizeof(Sizes);
  uint64_t backbone, numbers, chi1, chain_of, types, flags, insertion_codes, text, bytes;
};

template <typename T>
T read_at(std::string_view bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <typename T>
void append_value(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

std::string structure_record(const Structure& structure) {
  std::string text = structure.name;
  std::string chains;
  uint32_t end = 0;
  for (const StructureChain& chain : structure.chains) {
    end += static_cast<uint32_t>(chain.positions.size());
    append_value(chains, ChainRecord{.cluster = chain.cluster,
                                     .end = end,
                                     .group = chain.group,
                                     .id_bytes = static_cast<uint32_t>(chain.id.size()),
                                     .is_protein = static_cast<uint8_t>(chain.is_protein),
                                     .split = static_cast<uint8_t>(chain.split)});
    text += chain.id;
  }
  std::string out;
  append_value(out, Sizes{.positions = end,
                          .chains = static_cast<uint32_t>(structure.chains.size()),
                          .text_bytes = static_cast<uint32_t>(text.size()),
                          .name_bytes = static_cast<uint32_t>(structure.name.size())});
  out += chains;
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
  return out + text;
}

Result<StructureView> StructureCache::structure(int64_t i) const {
  TRY_ASSIGN(const std::string_view bytes, records_.record(i));
  const auto damaged = [&] { return records_.corrupt("structure " + std::to_string(i) + " is damaged"); };
  if (bytes.size() < sizeof(Sizes)) return damaged();
  const auto sizes = read_at<Sizes>(bytes, 0);
  const StructureLayout layout(sizes);
  if (sizes.positions == 0 || sizes.positions > kPositionsMax || sizes.positions != records_.tag(i) ||
      sizes.chains == 0 || sizes.chains > kChainsMax || sizes.name_bytes > sizes.text_bytes ||
      layout.bytes != bytes.size()) {
    return damaged();
  }
  const auto span_at = [&]<typename T>(uint64_t offset, T /*element*/) {
    return std::span<const T>(reinterpret_cast<const T*>(bytes.data() + offset), sizes.positions);
  };
  StructureView view;
  view.backbone = span_at(layout.backbone, Backbone());
  view.numbers = span_at(layout.numbers, int32_t());
  view.chi1 = span_at(layout.chi1, float());
  view.chain_of = span_at(layout.chain_of, uint16_t());
  view.types = span_at(layout.types, uint8_t());
  view.flags = span_at(layout.flags, uint8_t());
  view.insertion_codes = span_at(layout.insertion_codes, char());
  std::string_view text = bytes.substr(layout.text, sizes.text_bytes);
  view.name = text.substr(0, sizes.name_bytes);
  text.remove_prefix(sizes.name_bytes);
  // A right checksum does not make the content right: a forged file has one, too. Values that other code uses as
  // indices are checked.
  uint32_t begin = 0;
  for (uint32_t c = 0; c < sizes.chains; ++c) {
    const auto record = read_at<ChainRecord>(bytes, layout.chains + c * sizeof(ChainRecord));
    if (record.end <= begin || record.end > sizes.positions || record.id_bytes > text.size() ||
        record.split > static_cast<uint8_t>(ChainSplit::kTest) || record.group >= sizes.chains) {
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
  if (begin != sizes.positions) return damaged();
  return view;
}

}  // namespace lockstep
