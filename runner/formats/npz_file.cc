#include "runner/formats/npz_file.h"

#include <charconv>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "runner/base/plural.h"
#include "runner/formats/little_endian.h"
#include "runner/formats/zip_archive.h"

namespace lockstep {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr uint64_t kNpyBytesMax = uint64_t{1} << 30;

// The text after `'key': ` in the header, which is a Python dict: "{'descr': '<f8', 'fortran_order': False, …}".
std::string_view value_after(std::string_view header, const std::string& key) {
  const size_t at = header.find("'" + key + "':");
  if (at == std::string_view::npos) return {};
  const std::string_view rest = header.substr(at + key.size() + 3);
  const size_t begin = rest.find_first_not_of(' ');
  return begin == std::string_view::npos ? std::string_view() : rest.substr(begin);
}

// "(2048, 2048), …" → its numbers.
std::optional<std::vector<int64_t>> parse_shape(std::string_view text) {
  const size_t end = text.find(')');
  if (!text.starts_with('(') || end == std::string_view::npos) return std::nullopt;
  std::vector<int64_t> shape;
  text = text.substr(1, end - 1);
  while (true) {
    const size_t begin = text.find_first_not_of(" ,");
    if (begin == std::string_view::npos) return shape;
    text.remove_prefix(begin);
    int64_t size = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || size < 0) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(stop - text.data()));
    shape.push_back(size);
  }
}

Result<NpyArray> read_npy(std::string_view bytes, const std::string& what) {
  const auto corrupt = [&](const std::string& how) { return Error{ErrorCode::kCorrupt, what + ": " + how}; };
  constexpr size_t kFixed = 8;  // magic and version
  if (bytes.size() < kFixed + 4 || !bytes.starts_with(kNpyMagic)) return corrupt("is no NumPy array");
  // The header's length has 2 bytes in version 1, and 4 in later versions.
  const size_t length_bytes = bytes[6] == 1 ? 2 : 4;
  const uint64_t length = little_endian(bytes.substr(kFixed, length_bytes));
  const size_t begin = kFixed + length_bytes;
  if (length > bytes.size() - begin) return corrupt("its header is cut off");
  const std::string_view header = bytes.substr(begin, length);
  const std::string_view data = bytes.substr(begin + length);

  const std::string_view type = value_after(header, "descr");
  const bool is_double = type.starts_with("'<f8'");
  if (!is_double && !type.starts_with("'<f4'")) {
    return Error{
        ErrorCode::kInvalid,
        what + ": holds " + std::string(type.substr(0, type.find(','))) +
            "; expected float64 or float32, little-endian ('<f8', '<f4'): save it with .astype(numpy.float64)"};
  }
  const std::optional<std::vector<int64_t>> shape = parse_shape(value_after(header, "shape"));
  if (!shape) return corrupt("its header says no shape");
  if (shape->size() > 1 && !value_after(header, "fortran_order").starts_with("False")) {
    return Error{ErrorCode::kInvalid, what +
                                          ": is stored column by column; expected row by row: save "
                                          "numpy.ascontiguousarray(array)"};
  }
  const size_t value_bytes = is_double ? sizeof(double) : sizeof(float);
  uint64_t count = 1;
  for (const int64_t size : *shape) {
    if (size != 0 && count > kNpyBytesMax / static_cast<uint64_t>(size))
      return corrupt("its shape has more elements than are read");
    count *= static_cast<uint64_t>(size);
  }
  if (data.size() != count * value_bytes) {
    return corrupt("has " + std::to_string(data.size()) + " bytes of data; its shape needs " +
                   std::to_string(count * value_bytes));
  }
  NpyArray array{.shape = *shape, .values = std::vector<double>(count)};
  for (size_t i = 0; i < count; ++i) {
    float value = 0.0F;
    if (is_double) {
      std::memcpy(&array.values[i], data.data() + i * value_bytes, value_bytes);
    } else {
      std::memcpy(&value, data.data() + i * value_bytes, value_bytes);
      array.values[i] = value;
    }
  }
  return array;
}

}  // namespace

Result<NpyArray> read_npz_array(std::string_view bytes, const std::string& name, std::string_view what) {
  TRY_ASSIGN(const auto entries, read_zip_directory(bytes, what));
  const auto found = entries.find(name + ".npy");
  if (found == entries.end()) {
    const std::string names = joined(entries, ", ", [](const auto& entry) { return entry.first; });
    return Error{ErrorCode::kInvalid, std::string(what) + " has no array " + name + "; it has " +
                                          (names.empty() ? "none" : names) + ": save it with numpy.savez(file, " +
                                          name + "=…)"};
  }
  const std::string array = std::string(what) + ": " + name;
  if (found->second.bytes > kNpyBytesMax) {
    return Error{ErrorCode::kInvalid, array + " has " + std::to_string(found->second.bytes) + " bytes; at most " +
                                          std::to_string(kNpyBytesMax) + " are read"};
  }
  std::shared_ptr<const std::string> inflated;
  TRY_ASSIGN(const std::string_view content, read_zip_entry(bytes, found->first, found->second, inflated, what));
  return read_npy(content, array);
}

}  // namespace lockstep
