#include "runner/telemetry/tensorboard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "runner/base/file_system.h"

namespace lockstep {

namespace {

static_assert(std::endian::native == std::endian::little, "record framing and doubles are little-endian");

constexpr std::string_view kFilePrefix = "events.out.tfevents.";

constexpr std::array<uint32_t, 256> make_crc_table() {
  constexpr uint32_t kPolynomialReflected = 0x82F63B78U;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kPolynomialReflected : 0U);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

// TFRecord masks the CRCs that it stores, because a CRC over data that contains CRCs itself detects fewer errors.
uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return std::rotr(crc, 15) + 0xA282EAD8U;
}

template <typename T>
void put_fixed(std::string& out, T value) {
  std::array<char, sizeof(T)> bytes{};
  std::memcpy(bytes.data(), &value, sizeof(T));
  out.append(bytes.data(), bytes.size());
}

// Protocol buffers' wire format: https://protobuf.dev/programming-guides/encoding
enum class Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7F) | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_key(std::string& out, uint32_t field, Wire wire) {
  put_varint(out, (field << 3) | static_cast<uint32_t>(wire));
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, Wire::kBytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}

// tensorflow.Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
std::string event(double unix_time, int64_t step, uint32_t what_field, std::string_view what) {
  std::string out;
  put_key(out, 1, Wire::kFixed64);
  put_fixed(out, unix_time);
  put_key(out, 2, Wire::kVarint);
  put_varint(out, static_cast<uint64_t>(step));
  put_bytes(out, what_field, what);
  return out;
}

// tensorflow.Summary.Value: tag = 1, simple_value = 2.
std::string summary_value(std::string_view tag, float value) {
  std::string out;
  put_bytes(out, 1, tag);
  put_key(out, 2, Wire::kFixed32);
  put_fixed(out, value);
  return out;
}

// tensorflow.SessionLog: status = 1, of which START = 1.
std::string session_start() {
  std::string out;
  put_key(out, 1, Wire::kVarint);
  put_varint(out, 1);
  return out;
}

std::string record(std::string_view data) {
  std::string length;
  put_fixed(length, static_cast<uint64_t>(data.size()));
  std::string out = length;
  put_fixed(out, masked_crc32c(length));
  out.append(data);
  put_fixed(out, masked_crc32c(data));
  return out;
}

// The time in the newest event file's name, 0 when there is none.
Result<int64_t> newest_file_time(FileSystem& fs, const std::string& folder) {
  TRY_ASSIGN(const auto entries, fs.list(folder));
  int64_t newest = 0;
  for (const DirectoryEntry& entry : entries) {
    if (!entry.name.starts_with(kFilePrefix)) continue;
    int64_t time = 0;
    std::from_chars(entry.name.data() + kFilePrefix.size(), entry.name.data() + entry.name.size(), time);
    newest = std::max(newest, time);
  }
  return newest;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFFU];
  return ~crc;
}

Result<EventWriter> EventWriter::create(FileSystem& fs, const EventWriterOptions& options) {
  TRY(make_directories(fs, options.folder));
  TRY_ASSIGN(const int64_t newest, newest_file_time(fs, options.folder));
  const int64_t time = std::max(static_cast<int64_t>(options.unix_time), newest + 1);
  std::array<char, 24> digits{};
  std::snprintf(digits.data(), digits.size(), "%010lld", static_cast<long long>(time));
  const std::string name =
      std::string(kFilePrefix) + digits.data() + "." + options.host + "." + std::to_string(options.pid);
  TRY_ASSIGN(AppendFile file, AppendFile::open(fs, join_path(options.folder, name), FileSystem::Append::kToNew));
  EventWriter writer(std::move(file));
  // TensorBoard drops the events of earlier files from START's step on.
  TRY(writer.file_.append(record(event(options.unix_time, 0, 3, "brain.Event:2"))));
  TRY(writer.file_.append(record(event(options.unix_time, options.resume_step + 1, 7, session_start()))));
  return writer;
}

Status EventWriter::add_scalars(int64_t step, double unix_time,
                                const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) put_bytes(summary, 1, summary_value(tag, static_cast<float>(value)));
  return file_.append(record(event(unix_time, step, 5, summary)));
}

}  // namespace lockstep
