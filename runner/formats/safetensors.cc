#include "runner/formats/safetensors.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "runner/base/json.h"
#include "runner/formats/little_endian.h"
#include "runner/formats/open_text.h"

namespace lockstep {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

constexpr int kHeaderDepthMax = 2;     // {name: {shape: [...]}}
constexpr size_t kExcerptBytes = 200;  // of a name or value in an error

std::string quote(std::string_view name) { return "\"" + std::string(name.substr(0, kExcerptBytes)) + "\""; }

std::string length_field(uint64_t value) {
  std::string bytes(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) bytes[i] = static_cast<char>((value >> (8 * i)) & 0xFFU);
  return bytes;
}

// Also finds duplicate keys, of which nlohmann would silently keep the last: a file with two tensors of one name is
// damaged.
Result<Json> parse_header(std::string_view text, std::string_view what) {
  std::set<std::string> names;
  std::string duplicate;
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1 && !names.insert(parsed.get<std::string>()).second) {
      duplicate = parsed.get<std::string>();
    }
    const bool opens = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (opens && depth > kHeaderDepthMax) too_deep = true;
    return !too_deep;  // false: the value is dropped, so that deep nesting costs neither memory nor stack
  };
  try {
    Json header = Json::parse(text, watch);
    if (too_deep) return corrupt(what, "the header is nested too deeply");
    if (!duplicate.empty()) return corrupt(what, "two tensors are named " + quote(duplicate));
    if (!header.is_object()) return corrupt(what, "the header is no JSON object");
    return header;
  } catch (const Json::exception& e) {
    return corrupt(what, std::string("the header is not valid JSON: ") + e.what());
  }
}

struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
  TensorView view;
};

Result<Extent> parse_entry(const std::string& name, const Json& entry, std::string_view what) {
  const std::string tensor = "tensor " + quote(name);
  Extent extent;
  extent.view.name = name;
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets")) {
    return corrupt(what, tensor + " has not exactly dtype, shape and data_offsets");
  }
  const Json& dtype_name = entry["dtype"];
  const Json& shape = entry["shape"];
  const Json& offsets = entry["data_offsets"];
  if (!dtype_name.is_string()) return corrupt(what, tensor + ": dtype is no text");
  const std::optional<DType> dtype = dtype_of_safetensors_name(dtype_name.get_ref<const std::string&>());
  if (!dtype) {
    return Error{ErrorCode::kInvalid, std::string(what) + ": " + tensor + " has dtype " +
                                          quote(dtype_name.get_ref<const std::string&>()) +
                                          "; known are BOOL, U8, I8, I16, I32, I64, F16, BF16, F32, F64"};
  }
  extent.view.dtype = *dtype;
  if (!shape.is_array()) return corrupt(what, tensor + ": shape is no array");
  for (const Json& dimension : shape) {
    if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return corrupt(what, tensor + ": shape holds " + std::string(dimension.type_name()) + " that is no count");
    }
    extent.view.shape.push_back(dimension.get<int64_t>());
  }
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return corrupt(what, tensor + ": data_offsets are not two counts");
  }
  extent.begin = offsets[0].get<uint64_t>();
  extent.end = offsets[1].get<uint64_t>();
  const std::optional<uint64_t> bytes = bytes_of(*dtype, extent.view.shape);
  if (!bytes || extent.end < extent.begin || extent.end - extent.begin != *bytes) {
    return corrupt(what, tensor + " of dtype " + std::string(safetensors_name(*dtype)) + " and shape " +
                             shape_text(extent.view.shape) + " does not fit its bytes " + std::to_string(extent.begin) +
                             " to " + std::to_string(extent.end));
  }
  extent.view.bytes = *bytes;
  return extent;
}

Status parse_metadata(const Json& json, std::map<std::string, std::string>& metadata, std::string_view what) {
  if (!json.is_object()) return corrupt(what, "__metadata__ is no object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return corrupt(what, "__metadata__ " + quote(key) + " is no text");
    metadata[key] = value.get<std::string>();
  }
  return {};
}

// `extents` are sorted by their place in the file. Checks that they have no gaps, do not overlap and fill the data.
Status check_extents(const std::vector<Extent>& extents, uint64_t data_bytes, std::string_view what) {
  uint64_t end = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != end) {
      return corrupt(what, "tensor " + quote(extent.view.name) + " begins at " + std::to_string(extent.begin) +
                               " where the one before ends at " + std::to_string(end));
    }
    end = extent.end;
    if (end > data_bytes) {
      return corrupt(what, "tensor " + quote(extent.view.name) + " ends at " + std::to_string(end) + " of " +
                               std::to_string(data_bytes) + " bytes; the file is truncated");
    }
  }
  if (end != data_bytes) {
    return corrupt(what, "the tensors end at " + std::to_string(end) + " but " + std::to_string(data_bytes) +
                             " bytes follow the header");
  }
  return {};
}

Status check_for_writing(const std::vector<TensorView>& tensors) {
  std::set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    if (tensor.name == kMetadataKey || !names.insert(tensor.name).second) {
      return Error{ErrorCode::kInvalid, "two tensors are named " + quote(tensor.name) + ", or the name is reserved"};
    }
    if (bytes_of(tensor.dtype, tensor.shape) != tensor.bytes) {
      return Error{ErrorCode::kInvalid, "tensor " + quote(tensor.name) + " of shape " + shape_text(tensor.shape) +
                                            " has " + std::to_string(tensor.bytes) + " bytes"};
    }
  }
  return {};
}

}  // namespace

Status write_safetensors(const std::vector<TensorView>& tensors, const std::map<std::string, std::string>& metadata,
                         const ByteSink& sink) {
  TRY(check_for_writing(tensors));
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    const size_t size_a = size_of(a->dtype);
    const size_t size_b = size_of(b->dtype);
    return size_a != size_b ? size_a > size_b : a->name < b->name;
  });
  OrderedJson header = OrderedJson::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  uint64_t offset = 0;
  for (const TensorView* tensor : order) {
    header[tensor->name] = {{"dtype", safetensors_name(tensor->dtype)},
                            {"shape", tensor->shape},
                            {"data_offsets", {offset, offset + tensor->bytes}}};
    offset += tensor->bytes;
  }
  std::string text = dump_line(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kSafetensorsHeaderBytesMax) {
    return Error{ErrorCode::kInvalid,
                 "the safetensors header of " + std::to_string(tensors.size()) + " tensors exceeds 100 MB"};
  }
  text.insert(0, length_field(text.size()));
  TRY(sink(text.data(), text.size()));
  for (const TensorView* tensor : order) {
    if (tensor->bytes > 0) TRY(sink(tensor->data, tensor->bytes));
  }
  return {};
}

Result<TensorFile> read_safetensors(std::shared_ptr<const std::string> bytes, std::string_view what) {
  if (const std::string stray = stray_file(*bytes); !stray.empty()) return invalid(std::string(what) + " " + stray);
  if (bytes->size() < kLengthBytes) return corrupt(what, "has " + std::to_string(bytes->size()) + " bytes; truncated");
  const uint64_t header_bytes = little_endian(std::string_view(*bytes).substr(0, kLengthBytes));
  if (header_bytes > kSafetensorsHeaderBytesMax || header_bytes > bytes->size() - kLengthBytes) {
    return corrupt(what, "claims a header of " + std::to_string(header_bytes) + " bytes in a file of " +
                             std::to_string(bytes->size()) + "; truncated, or not safetensors");
  }
  TRY_ASSIGN(const Json header, parse_header(std::string_view(*bytes).substr(kLengthBytes, header_bytes), what));
  TensorFile file;
  std::vector<Extent> extents;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataKey) {
      TRY(parse_metadata(entry, file.metadata, what));
      continue;
    }
    TRY_ASSIGN(Extent extent, parse_entry(name, entry, what));
    extents.push_back(std::move(extent));
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.begin, a.end, a.view.name) < std::tie(b.begin, b.end, b.view.name);
  });
  const uint64_t data_begin = kLengthBytes + header_bytes;
  TRY(check_extents(extents, bytes->size() - data_begin, what));
  for (Extent& extent : extents) {
    extent.view.data = bytes->data() + data_begin + extent.begin;
    file.tensors.push_back(std::move(extent.view));
  }
  file.memory.push_back(std::move(bytes));
  return file;
}

}  // namespace lockstep
