#include "runner/formats/pickle_zip.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "runner/base/plural.h"
#include "runner/formats/little_endian.h"
#include "runner/formats/open_text.h"
#include "runner/formats/tensor_file.h"
#include "runner/formats/unpickler.h"
#include "runner/formats/zip_archive.h"

namespace lockstep {
namespace {

constexpr uint64_t kPickleBytesMax = uint64_t{64} << 20;  // of data.pkl: names and shapes, no weights
constexpr int kDepthMax = 64;
// Inflating and copying may use at most kExpansionBytes + kExpansionFactor × the file's size.
constexpr uint64_t kExpansionBytes = uint64_t{64} << 20;
constexpr uint64_t kExpansionFactor = 16;

constexpr std::array<std::string_view, 6> kStateDictKeys = {"model",  "state_dict", "model_state_dict",
                                                            "module", "net",        "weights"};

constexpr std::string_view kPartEnding = "_state_dict";

bool is_contiguous(const PickleNode& tensor) {
  int64_t expected = 1;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];  // cannot overflow: the caller has checked the product
  }
  return true;
}

// The index of the last storage element that a non-empty tensor uses; nullopt on overflow.
std::optional<uint64_t> last_element(const PickleNode& tensor) {
  uint64_t last = static_cast<uint64_t>(tensor.integer);
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    uint64_t span = 0;
    if (__builtin_mul_overflow(static_cast<uint64_t>(tensor.shape[i] - 1), static_cast<uint64_t>(tensor.strides[i]),
                               &span) ||
        __builtin_add_overflow(last, span, &last)) {
      return std::nullopt;
    }
  }
  return last;
}

std::string gather(const PickleNode& tensor, const char* storage, uint64_t bytes, size_t element_bytes) {
  std::string out(static_cast<size_t>(bytes), '\0');
  std::vector<int64_t> index(tensor.shape.size(), 0);
  uint64_t element = static_cast<uint64_t>(tensor.integer);
  for (size_t at = 0; at < out.size(); at += element_bytes) {
    std::memcpy(out.data() + at, storage + element * element_bytes, element_bytes);
    for (size_t i = index.size(); i-- > 0;) {
      element += static_cast<uint64_t>(tensor.strides[i]);
      if (++index[i] < tensor.shape[i]) break;
      element -= static_cast<uint64_t>(tensor.shape[i]) * static_cast<uint64_t>(tensor.strides[i]);
      index[i] = 0;
    }
  }
  return out;
}

// Reads one file: finds the zip entry of each storage in the graph.
class Reader {
 public:
  Reader(std::shared_ptr<const std::string> bytes, std::string_view what)
      : bytes_(std::move(bytes)), what_(what), expansion_left_(kExpansionBytes + kExpansionFactor * bytes_->size()) {}

  Result<TorchFile> read() {
    TRY_ASSIGN(entries_, read_zip_directory(*bytes_, what_));
    TRY(find_prefix());
    file_.memory.push_back(bytes_);
    TRY(check_byte_order());
    const ZipEntry& pickle = entries_.at(prefix_ + "data.pkl");
    if (pickle.bytes > kPickleBytesMax) return corrupt("data.pkl has more than 64 MB");
    TRY_ASSIGN(const std::string_view text, content("data.pkl"));
    TRY_ASSIGN(graph_, unpickle(text, what_));
    TRY_ASSIGN(file_.root, convert(graph_.root, 0));
    return std::move(file_);
  }

 private:
  Error corrupt(const std::string& message) const {
    return Error{ErrorCode::kCorrupt, std::string(what_) + ": " + message};
  }

  Status find_prefix() {
    constexpr std::string_view kSuffix = "/data.pkl";
    for (const auto& [name, entry] : entries_) {
      if (!name.ends_with(kSuffix) || name.find('/') != name.size() - kSuffix.size()) continue;
      prefix_ = name.substr(0, name.size() - kSuffix.size() + 1);
      return {};
    }
    return corrupt("is a zip, but holds no NAME/data.pkl: not a file of torch.save");
  }

  Status check_byte_order() {
    if (!entries_.contains(prefix_ + "byteorder")) return {};
    TRY_ASSIGN(const std::string_view order, content("byteorder"));
    if (order == "little") return {};
    return Error{ErrorCode::kInvalid,
                 std::string(what_) + ": byte order is not little-endian; save it again on a little-endian machine"};
  }

  Status spend(uint64_t bytes) {
    if (bytes > expansion_left_) return corrupt("expands to far more data than its size; refused");
    expansion_left_ -= bytes;
    return {};
  }

  // The content of the zip entry prefix_ + name; kept, so that it is inflated only once.
  Result<std::string_view> content(const std::string& name) {
    const auto known = contents_.find(name);
    if (known != contents_.end()) return known->second;
    const auto found = entries_.find(prefix_ + name);
    if (found == entries_.end()) return corrupt("has no zip entry " + prefix_ + name);
    if (found->second.deflated) TRY(spend(found->second.bytes));
    std::shared_ptr<const std::string> inflated;
    TRY_ASSIGN(const std::string_view bytes, read_zip_entry(*bytes_, prefix_ + name, found->second, inflated, what_));
    if (inflated) file_.memory.push_back(inflated);
    contents_.emplace(name, bytes);
    return bytes;
  }

  Result<TensorView> convert_tensor(PickleNodeId id) {
    const auto known = tensors_.find(id);
    if (known != tensors_.end()) return known->second;
    const PickleNode& tensor = graph_.nodes[id];
    const PickleNode& storage = graph_.nodes[tensor.storage];
    TensorView view;
    view.dtype = storage.dtype;
    view.shape = tensor.shape;
    const std::optional<uint64_t> bytes = bytes_of(storage.dtype, tensor.shape);
    if (!bytes) return corrupt("has a tensor of impossible shape " + shape_text(tensor.shape));
    view.bytes = *bytes;
    if (view.bytes > 0) {
      const size_t element_bytes = size_of(storage.dtype);
      TRY_ASSIGN(const std::string_view data, content("data/" + storage.text));
      const std::optional<uint64_t> last = last_element(tensor);
      const uint64_t elements = std::min(data.size() / element_bytes, static_cast<uint64_t>(storage.integer));
      if (!last || *last >= elements) {
        return corrupt("has a tensor of shape " + shape_text(tensor.shape) + " that leaves its storage data/" +
                       storage.text);
      }
      if (is_contiguous(tensor)) {
        view.data = data.data() + static_cast<uint64_t>(tensor.integer) * element_bytes;
      } else {
        TRY(spend(view.bytes));
        file_.memory.push_back(
            std::make_shared<const std::string>(gather(tensor, data.data(), view.bytes, element_bytes)));
        view.data = file_.memory.back()->data();
      }
    }
    tensors_.emplace(id, view);
    return view;
  }

  Result<std::string> convert_key(PickleNodeId id) {
    const PickleNode& node = graph_.nodes[id];
    if (node.kind == PickleKind::kText) return node.text;
    if (node.kind == PickleKind::kInt) return std::to_string(node.integer);
    return Error{ErrorCode::kInvalid, std::string(what_) + ": a dict has a key that is neither text nor integer"};
  }

  Result<PickleValue> convert(PickleNodeId id, int depth) {
    if (depth > kDepthMax) return corrupt("nests more than 64 containers, or one in itself");
    const PickleNode& node = graph_.nodes[id];
    // The graph may refer to one value many times, and the tree holds a copy for each, so each copy counts.
    TRY(spend(sizeof(PickleValue) + node.text.size()));
    switch (node.kind) {
      case PickleKind::kNone:
        return PickleValue{};
      case PickleKind::kBool:
        return PickleValue{node.integer != 0};
      case PickleKind::kInt:
        return PickleValue{node.integer};
      case PickleKind::kFloat:
        return PickleValue{node.real};
      case PickleKind::kText:
        return PickleValue{node.text};
      case PickleKind::kTensor: {
        TRY_ASSIGN(TensorView view, convert_tensor(id));
        return PickleValue{std::move(view)};
      }
      case PickleKind::kDict:
        return convert_dict(node, depth);
      case PickleKind::kList:
      case PickleKind::kTuple: {
        PickleList list;
        for (const PickleNodeId item : node.items) {
          TRY_ASSIGN(PickleValue value, convert(item, depth + 1));
          list.push_back(std::move(value));
        }
        return PickleValue{std::move(list)};
      }
      case PickleKind::kGlobal:
      case PickleKind::kStorageType:
      case PickleKind::kStorage:
        break;
    }
    return Error{ErrorCode::kInvalid,
                 std::string(what_) + ": holds a bare type or storage where a tensor or a plain value was expected"};
  }

  Result<PickleValue> convert_dict(const PickleNode& node, int depth) {
    PickleDict dict;
    for (size_t i = 0; i + 1 < node.items.size(); i += 2) {
      TRY_ASSIGN(std::string key, convert_key(node.items[i]));
      TRY(spend(key.size()));
      TRY_ASSIGN(PickleValue value, convert(node.items[i + 1], depth + 1));
      if (auto* tensor = std::get_if<TensorView>(&value.value)) tensor->name = key;
      dict.emplace_back(std::move(key), std::move(value));
    }
    return PickleValue{std::move(dict)};
  }

  std::shared_ptr<const std::string> bytes_;
  std::string_view what_;
  uint64_t expansion_left_;
  std::map<std::string, ZipEntry> entries_;
  std::string prefix_;  // "NAME/"
  std::map<std::string, std::string_view> contents_;
  std::map<PickleNodeId, TensorView> tensors_;
  PickleGraph graph_;
  TorchFile file_;
};

bool holds_tensor(const PickleDict& dict) {
  return std::any_of(dict.begin(), dict.end(),
                     [](const auto& item) { return std::holds_alternative<TensorView>(item.second.value); });
}

// Writes pickle protocol 2 and collects the storages in their order.
class Pickler {
 public:
  Result<std::string> pickle(const PickleDict& root) {
    out_ = "\x80\x02";
    TRY(put_dict(root, 0));
    out_ += '.';
    return std::move(out_);
  }
  [[nodiscard]] const std::vector<const TensorView*>& storages() const { return storages_; }

 private:
  void put_text(std::string_view text) {
    out_ += 'X';
    put_little_endian(out_, text.size(), 4);
    out_ += text;
  }
  void put_integer(int64_t value) {
    if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
      out_ += 'J';
      put_little_endian(out_, static_cast<uint64_t>(value), 4);
    } else {
      out_ += "\x8a\x08";
      put_little_endian(out_, static_cast<uint64_t>(value), 8);
    }
  }
  void put_float(double value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    out_ += 'G';
    for (size_t i = 8; i-- > 0;) out_.push_back(static_cast<char>((bits >> (8 * i)) & 0xFFU));
  }
  void put_counts(const std::vector<int64_t>& counts) {
    out_ += '(';
    for (const int64_t count : counts) put_integer(count);
    out_ += 't';
  }

  Status put_tensor(const TensorView& tensor) {
    if (bytes_of(tensor.dtype, tensor.shape) != tensor.bytes) {
      return Error{ErrorCode::kInvalid, "tensor \"" + tensor.name + "\" of shape " + shape_text(tensor.shape) +
                                            " has " + std::to_string(tensor.bytes) + " bytes"};
    }
    constexpr std::array<std::string_view, 10> kStorage = {"Bool", "Byte", "Char",     "Short", "Int",
                                                           "Long", "Half", "BFloat16", "Float", "Double"};
    std::vector<int64_t> strides(tensor.shape.size(), 1);
    for (size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(tensor.shape[i], 1);
    out_ += "ctorch._utils\n_rebuild_tensor_v2\n((";
    put_text("storage");
    out_ += "ctorch\n";
    out_ += kStorage[static_cast<size_t>(tensor.dtype)];
    out_ += "Storage\n";
    put_text(std::to_string(storages_.size()));
    put_text("cpu");
    put_integer(static_cast<int64_t>(tensor.bytes / size_of(tensor.dtype)));
    out_ += "tQ";
    put_integer(0);
    put_counts(tensor.shape);
    put_counts(strides);
    out_ +=
        "\x89"
        "ccollections\nOrderedDict\n)RtR";
    storages_.push_back(&tensor);
    return {};
  }

  Status put_dict(const PickleDict& dict, int depth) {
    out_ += holds_tensor(dict) ? "ccollections\nOrderedDict\n)R" : "}";
    out_ += '(';
    std::set<std::string_view> keys;
    for (const auto& [key, value] : dict) {
      if (!keys.insert(key).second) return Error{ErrorCode::kInvalid, "two entries are named \"" + key + "\""};
      put_text(key);
      TRY(put(value, depth + 1));
    }
    out_ += 'u';
    return {};
  }

  Status put(const PickleValue& value, int depth) {
    if (depth > kDepthMax) return Error{ErrorCode::kInvalid, "more than 64 nested containers cannot be written"};
    if (std::holds_alternative<std::monostate>(value.value)) out_ += 'N';
    if (const auto* flag = std::get_if<bool>(&value.value)) out_ += *flag ? '\x88' : '\x89';
    if (const auto* integer = std::get_if<int64_t>(&value.value)) put_integer(*integer);
    if (const auto* real = std::get_if<double>(&value.value)) put_float(*real);
    if (const auto* text = std::get_if<std::string>(&value.value)) put_text(*text);
    if (const auto* tensor = std::get_if<TensorView>(&value.value)) return put_tensor(*tensor);
    if (const auto* dict = std::get_if<PickleDict>(&value.value)) return put_dict(*dict, depth);
    if (const auto* list = std::get_if<PickleList>(&value.value)) {
      out_ += "](";
      for (const PickleValue& item : *list) TRY(put(item, depth + 1));
      out_ += 'e';
    }
    return {};
  }

  std::string out_;
  std::vector<const TensorView*> storages_;
};

}  // namespace

Status write_torch_zip(const PickleDict& root, const ByteSink& sink, const TorchZipOptions& options) {
  Pickler pickler;
  TRY_ASSIGN(const std::string pickle, pickler.pickle(root));
  ZipWriter zip(sink, options.zip64_from);
  const auto add_text = [&](const std::string& name, std::string_view text) {
    return zip.add("archive/" + name, text.data(), text.size());
  };
  TRY(add_text("data.pkl", pickle));
  TRY(add_text("byteorder", "little"));
  size_t key = 0;
  for (const TensorView* tensor : pickler.storages()) {
    TRY(zip.add("archive/data/" + std::to_string(key++), tensor->data, tensor->bytes));
  }
  TRY(add_text("version", "3\n"));
  return zip.finish();
}

Result<TorchFile> read_torch_zip(std::shared_ptr<const std::string> bytes, std::string_view what) {
  if (const std::string stray = stray_file(*bytes); !stray.empty()) return invalid(std::string(what) + " " + stray);
  if (!bytes->starts_with("PK")) {
    const bool is_pickle = bytes->starts_with("\x80");
    return Error{is_pickle ? ErrorCode::kInvalid : ErrorCode::kCorrupt,
                 std::string(what) +
                     (is_pickle ? ": was saved in the format of torch before version 1.6, which is not read; save it "
                                  "again in Python: torch.save(torch.load(FILE), FILE)"
                                : ": is no file of torch.save (no zip)")};
  }
  return Reader(std::move(bytes), what).read();
}

Result<TensorFile> state_dict_of(const TorchFile& file, std::string_view what) {
  const auto* root = std::get_if<PickleDict>(&file.root.value);
  if (root == nullptr) return Error{ErrorCode::kInvalid, std::string(what) + ": holds no dict of tensors"};
  const PickleDict* chosen = holds_tensor(*root) ? root : nullptr;
  std::vector<std::pair<std::string, const PickleDict*>> nested;
  for (const auto& [key, value] : *root) {
    const auto* dict = std::get_if<PickleDict>(&value.value);
    if (dict != nullptr && holds_tensor(*dict)) nested.emplace_back(key, dict);
  }
  for (const std::string_view key : kStateDictKeys) {
    for (const auto& [name, dict] : nested) {
      if (chosen == nullptr && name == key) chosen = dict;
    }
  }
  if (chosen == nullptr && nested.size() == 1) chosen = nested[0].second;
  // A model saved in parts, {"encoder_state_dict": …, "decoder_state_dict": …}: the parts' names become prefixes of the
  // tensors' names ("encoder.…").
  PickleDict whole;
  if (chosen == nullptr && nested.size() > 1 &&
      std::all_of(nested.begin(), nested.end(), [](const auto& part) { return part.first.ends_with(kPartEnding); })) {
    for (const auto& [name, dict] : nested) {
      const std::string prefix = name.substr(0, name.size() - kPartEnding.size()) + ".";
      std::vector<std::string_view> names;
      for (const auto& [key, value] : *dict) names.emplace_back(key);
      const size_t wrappers = bytes_of_wrappers(names);
      for (const auto& [key, value] : *dict) {
        const auto* tensor = std::get_if<TensorView>(&value.value);
        if (tensor == nullptr) continue;
        TensorView renamed = *tensor;
        renamed.name = prefix + key.substr(wrappers);
        whole.emplace_back(renamed.name, PickleValue{renamed});
      }
    }
    chosen = &whole;
  }
  if (chosen == nullptr) {
    const std::string names = joined(nested, ", ", [](const auto& part) { return part.first; });
    return Error{ErrorCode::kInvalid,
                 std::string(what) + (names.empty() ? ": holds no dict of tensors"
                                                    : ": holds several dicts of tensors (" + names +
                                                          "); save the one that is the model")};
  }
  TensorFile tensors;
  tensors.memory = file.memory;
  std::set<std::string_view> names;
  for (const auto& [key, value] : *chosen) {
    const auto* tensor = std::get_if<TensorView>(&value.value);
    if (tensor == nullptr) continue;
    if (!names.insert(key).second) {
      return Error{ErrorCode::kCorrupt, std::string(what) + ": two tensors are named \"" + key + "\""};
    }
    tensors.tensors.push_back(*tensor);
  }
  return tensors;
}

}  // namespace lockstep
