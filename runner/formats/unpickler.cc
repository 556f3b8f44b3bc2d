#include "runner/formats/unpickler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <unordered_map>
#include <utility>

#include "runner/formats/little_endian.h"

namespace lockstep {
namespace {

// Opcodes of pickle protocol 2 that torch.save emits (CPython, Lib/pickletools.py).
enum Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kProto = 0x80,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kBinFloat = 'G',
  kBinUnicode = 'X',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kAppend = 'a',
  kAppends = 'e',
  kSetItem = 's',
  kSetItems = 'u',
  kGlobal = 'c',
  kReduce = 'R',
  kBuild = 'b',
  kBinPersId = 'Q',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kBinGet = 'h',
  kLongBinGet = 'j',
};

constexpr int kProtocol = 2;
constexpr size_t kGlobalNameBytesMax = 256;
constexpr size_t kDimensionsMax = 64;  // as in torch

struct StorageType {
  std::string_view name;
  DType dtype;
};
constexpr std::array<StorageType, 10> kStorageTypes = {{{"torch.FloatStorage", DType::kF32},
                                                        {"torch.DoubleStorage", DType::kF64},
                                                        {"torch.HalfStorage", DType::kF16},
                                                        {"torch.BFloat16Storage", DType::kBF16},
                                                        {"torch.LongStorage", DType::kI64},
                                                        {"torch.IntStorage", DType::kI32},
                                                        {"torch.ShortStorage", DType::kI16},
                                                        {"torch.CharStorage", DType::kI8},
                                                        {"torch.ByteStorage", DType::kU8},
                                                        {"torch.BoolStorage", DType::kBool}}};
constexpr std::string_view kOrderedDict = "collections.OrderedDict";
constexpr std::string_view kRebuildTensor = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kRebuildParameter = "torch._utils._rebuild_parameter";
constexpr std::string_view kSize = "torch.Size";

class Machine {
 public:
  Machine(std::string_view bytes, std::string_view what) : bytes_(bytes), what_(what) {}

  Result<PickleGraph> run() {
    for (;;) {
      TRY_ASSIGN(const unsigned char opcode, byte());
      if (opcode == kStop) break;
      TRY(step(opcode));
      const size_t most = std::max({graph_.nodes.size(), marks_.size(), stack_.size(), memo_.size()});
      if (most > kPickleNodesMax) return refuse("holds more than 2,000,000 values");
    }
    if (stack_.size() != 1 || !marks_.empty()) return corrupt("does not end with exactly one value");
    graph_.root = stack_.back();
    return std::move(graph_);
  }

 private:
  Error corrupt(const std::string& message) const {
    return Error{ErrorCode::kCorrupt, std::string(what_) + ": the pickle " + message};
  }
  Error refuse(const std::string& message) const {
    return Error{ErrorCode::kInvalid, std::string(what_) + ": the pickle " + message};
  }

  Result<std::string_view> take(size_t count) {
    if (count > bytes_.size() - offset_) return corrupt("is truncated");
    const std::string_view taken = bytes_.substr(offset_, count);
    offset_ += count;
    return taken;
  }
  Result<unsigned char> byte() {
    TRY_ASSIGN(const std::string_view taken, take(1));
    return static_cast<unsigned char>(taken[0]);
  }
  Result<uint64_t> number(size_t count) {
    TRY_ASSIGN(const std::string_view taken, take(count));
    return little_endian(taken);
  }
  Result<std::string_view> line() {
    const size_t end = bytes_.find('\n', offset_);
    if (end == std::string_view::npos || end - offset_ > kGlobalNameBytesMax) {
      return corrupt("has a name that does not end");
    }
    const std::string_view text = bytes_.substr(offset_, end - offset_);
    offset_ = end + 1;
    return text;
  }

  PickleNode& at(PickleNodeId id) { return graph_.nodes[id]; }
  Status push(PickleNode node) {
    stack_.push_back(static_cast<PickleNodeId>(graph_.nodes.size()));
    graph_.nodes.push_back(std::move(node));
    return {};
  }
  Status push_container(PickleKind kind, std::vector<PickleNodeId> items) {
    PickleNode node;
    node.kind = kind;
    node.items = std::move(items);
    return push(std::move(node));
  }
  Status push_integer(PickleKind kind, int64_t value) {
    PickleNode node;
    node.kind = kind;
    node.integer = value;
    return push(std::move(node));
  }
  // Takes values from the top of the stack, but never below the innermost mark.
  Result<std::vector<PickleNodeId>> pop(size_t count) {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) return corrupt("takes more values from the stack than there are");
    std::vector<PickleNodeId> values(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return values;
  }
  Result<std::vector<PickleNodeId>> pop_to_mark() {
    if (marks_.empty()) return corrupt("closes a container that it did not open");
    const size_t floor = marks_.back();
    std::vector<PickleNodeId> values(stack_.begin() + static_cast<std::ptrdiff_t>(floor), stack_.end());
    stack_.resize(floor);
    marks_.pop_back();
    return values;
  }
  Result<PickleNodeId> top(PickleKind kind) {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor || at(stack_.back()).kind != kind) {
      return corrupt("adds items to a value that is no such container");
    }
    return stack_.back();
  }

  Status step(unsigned char opcode) {
    switch (opcode) {
      case kProto:
        return check_protocol();
      case kMark:
        marks_.push_back(stack_.size());
        return {};
      case kNone:
        return push({});
      case kNewTrue:
        return push_integer(PickleKind::kBool, 1);
      case kNewFalse:
        return push_integer(PickleKind::kBool, 0);
      case kBinInt:
      case kBinInt1:
      case kBinInt2:
        return push_fixed_integer(opcode);
      case kLong1:
        return push_long();
      case kBinFloat:
        return push_float();
      case kBinUnicode:
        return push_text();
      case kEmptyDict:
        return push_container(PickleKind::kDict, {});
      case kEmptyList:
        return push_container(PickleKind::kList, {});
      case kEmptyTuple:
        return push_container(PickleKind::kTuple, {});
      case kTuple:
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return make_tuple(opcode);
      case kAppend:
      case kAppends:
        return extend(PickleKind::kList, opcode == kAppend ? 1 : 0);
      case kSetItem:
      case kSetItems:
        return extend(PickleKind::kDict, opcode == kSetItem ? 2 : 0);
      case kGlobal:
        return push_global();
      case kReduce:
        return reduce();
      case kBuild:
        return build();
      case kBinPersId:
        return push_storage();
      case kBinPut:
      case kLongBinPut:
        return memoize(opcode == kBinPut ? 1 : 4);
      case kBinGet:
      case kLongBinGet:
        return recall(opcode == kBinGet ? 1 : 4);
      default:
        return refuse("uses opcode " + std::to_string(opcode) +
                      ", which torch.save of a state dict does not; save model.state_dict() with torch.save");
    }
  }

  Status check_protocol() {
    TRY_ASSIGN(const unsigned char protocol, byte());
    if (protocol == kProtocol) return {};
    return refuse("has protocol " + std::to_string(protocol) + "; 2 is read: save it with torch.save's default");
  }

  Status push_fixed_integer(unsigned char opcode) {
    const size_t count = opcode == kBinInt ? 4 : opcode == kBinInt2 ? 2 : 1;
    TRY_ASSIGN(const uint64_t value, number(count));
    const bool is_signed = opcode == kBinInt;
    return push_integer(PickleKind::kInt,
                        is_signed ? static_cast<int32_t>(static_cast<uint32_t>(value)) : static_cast<int64_t>(value));
  }

  Status push_long() {
    TRY_ASSIGN(const unsigned char count, byte());
    if (count > 8) return refuse("holds an integer of more than 64 bits");
    TRY_ASSIGN(uint64_t value, number(count));
    const bool is_negative = count > 0 && count < 8 && ((value >> (8U * count - 1U)) & 1U) != 0;
    if (is_negative) value |= ~uint64_t{0} << (8U * count);
    return push_integer(PickleKind::kInt, static_cast<int64_t>(value));
  }

  Status push_float() {
    TRY_ASSIGN(const std::string_view taken, take(8));
    uint64_t bits = 0;
    for (const char c : taken) bits = (bits << 8U) | static_cast<unsigned char>(c);  // big-endian, by the format
    PickleNode node;
    node.kind = PickleKind::kFloat;
    node.real = std::bit_cast<double>(bits);
    return push(std::move(node));
  }

  Status push_text() {
    TRY_ASSIGN(const uint64_t count, number(4));
    TRY_ASSIGN(const std::string_view taken, take(static_cast<size_t>(count)));
    PickleNode node;
    node.kind = PickleKind::kText;
    node.text = std::string(taken);
    return push(std::move(node));
  }

  Status make_tuple(unsigned char opcode) {
    Result<std::vector<PickleNodeId>> items =
        opcode == kTuple ? pop_to_mark() : pop(static_cast<size_t>(opcode - kTuple1) + 1);
    TRY(items);
    return push_container(PickleKind::kTuple, std::move(*items));
  }

  // count 0: all values since the mark.
  Status extend(PickleKind kind, size_t count) {
    Result<std::vector<PickleNodeId>> items = count == 0 ? pop_to_mark() : pop(count);
    TRY(items);
    if (kind == PickleKind::kDict && items->size() % 2 != 0) return corrupt("has a key without a value");
    TRY_ASSIGN(const PickleNodeId container, top(kind));
    // With the memo a short opcode can put the same value into containers again and again, so the number of values in
    // containers is bounded like the number of nodes.
    held_ += items->size();
    if (held_ > kPickleNodesMax) return refuse("holds more than 2,000,000 values");
    std::vector<PickleNodeId>& into = at(container).items;
    into.insert(into.end(), items->begin(), items->end());
    return {};
  }

  Status push_global() {
    TRY_ASSIGN(const std::string_view module, line());
    TRY_ASSIGN(const std::string_view name, line());
    PickleNode node;
    node.kind = PickleKind::kGlobal;
    node.text = std::string(module) + "." + std::string(name);
    for (const StorageType& type : kStorageTypes) {
      if (type.name != node.text) continue;
      node.kind = PickleKind::kStorageType;
      node.dtype = type.dtype;
      return push(std::move(node));
    }
    for (const std::string_view known : {kOrderedDict, kRebuildTensor, kRebuildParameter, kSize}) {
      if (known == node.text) return push(std::move(node));
    }
    return refuse("asks for " + node.text + ", which is refused: only tensors and plain containers are read; save " +
                  "model.state_dict() alone");
  }

  Status reduce() {
    TRY_ASSIGN(const std::vector<PickleNodeId> values, pop(2));
    const PickleNode& callable = at(values[0]);
    if (callable.kind != PickleKind::kGlobal || at(values[1]).kind != PickleKind::kTuple) {
      return corrupt("calls a value that is not a function");
    }
    const std::vector<PickleNodeId>& arguments = at(values[1]).items;
    if (callable.text == kOrderedDict && arguments.empty()) return push_container(PickleKind::kDict, {});
    if (callable.text == kRebuildTensor && arguments.size() >= 6) return rebuild_tensor(arguments);
    const bool passes_on =
        (callable.text == kRebuildParameter && !arguments.empty() && at(arguments[0]).kind == PickleKind::kTensor) ||
        (callable.text == kSize && arguments.size() == 1 && at(arguments[0]).kind == PickleKind::kTuple);
    if (!passes_on) return corrupt("calls " + callable.text + " with wrong arguments");
    stack_.push_back(arguments[0]);
    return {};
  }

  // torch stores the `_metadata` of an OrderedDict from module.state_dict() this way. It holds no weights and is
  // dropped.
  Status build() {
    TRY_ASSIGN(const std::vector<PickleNodeId> state, pop(1));
    TRY(top(PickleKind::kDict));
    if (at(state[0]).kind != PickleKind::kDict) return corrupt("sets the state of a dict to a value that is no dict");
    return {};
  }

  // ('storage', torch.FloatStorage, key, location, elements)
  Status push_storage() {
    TRY_ASSIGN(const std::vector<PickleNodeId> id, pop(1));
    const std::vector<PickleNodeId>& parts = at(id[0]).items;
    const bool is_storage = at(id[0]).kind == PickleKind::kTuple && parts.size() == 5 &&
                            at(parts[0]).kind == PickleKind::kText && at(parts[0]).text == "storage" &&
                            at(parts[1]).kind == PickleKind::kStorageType && at(parts[2]).kind == PickleKind::kText &&
                            at(parts[4]).kind == PickleKind::kInt && at(parts[4]).integer >= 0;
    if (!is_storage) return corrupt("refers to a storage in a way that torch.save does not");
    PickleNode node;
    node.kind = PickleKind::kStorage;
    node.dtype = at(parts[1]).dtype;
    node.text = at(parts[2]).text;
    node.integer = at(parts[4]).integer;
    return push(std::move(node));
  }

  Result<std::vector<int64_t>> counts(PickleNodeId tuple) {
    if (at(tuple).kind != PickleKind::kTuple) return corrupt("has a tensor whose shape is no tuple");
    if (at(tuple).items.size() > kDimensionsMax) return corrupt("has a tensor of more than 64 dimensions");
    std::vector<int64_t> values;
    for (const PickleNodeId item : at(tuple).items) {
      if (at(item).kind != PickleKind::kInt || at(item).integer < 0) {
        return corrupt("has a tensor whose shape or strides are no counts");
      }
      values.push_back(at(item).integer);
    }
    return values;
  }

  // (storage, offset, shape, strides, requires_grad, hooks[, metadata])
  Status rebuild_tensor(const std::vector<PickleNodeId>& arguments) {
    PickleNode node;
    node.kind = PickleKind::kTensor;
    node.storage = arguments[0];
    TRY_ASSIGN(node.shape, counts(arguments[2]));
    TRY_ASSIGN(node.strides, counts(arguments[3]));
    const bool fits = at(arguments[0]).kind == PickleKind::kStorage && at(arguments[1]).kind == PickleKind::kInt &&
                      at(arguments[1]).integer >= 0 && node.shape.size() == node.strides.size();
    if (!fits) return corrupt("has a tensor without storage, offset or as many strides as dimensions");
    node.integer = at(arguments[1]).integer;
    return push(std::move(node));
  }

  Status memoize(size_t count) {
    TRY_ASSIGN(const uint64_t key, number(count));
    if (stack_.empty()) return corrupt("stores a value in its memo when there is none");
    memo_[key] = stack_.back();
    return {};
  }

  Status recall(size_t count) {
    TRY_ASSIGN(const uint64_t key, number(count));
    const auto found = memo_.find(key);
    if (found == memo_.end()) return corrupt("reads an entry of its memo that it has not stored");
    stack_.push_back(found->second);
    return {};
  }

  std::string_view bytes_;
  std::string_view what_;
  size_t offset_ = 0;
  size_t held_ = 0;  // values in lists and dicts so far
  PickleGraph graph_;
  std::vector<PickleNodeId> stack_;
  std::vector<size_t> marks_;  // places in stack_
  std::unordered_map<uint64_t, PickleNodeId> memo_;
};

}  // namespace

Result<PickleGraph> unpickle(std::string_view bytes, std::string_view what) { return Machine(bytes, what).run(); }

}  // namespace lockstep
