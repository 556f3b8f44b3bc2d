// How messages become lines of JSON and back: the one codec behind messages.cc and coordination.cc.
//
// Role: each message names its fields once, in a function `fields(v, message)` that serves both directions: V is an
// Encoder (Ref<T> = const T&) or a Decoder (Ref<T> = T&). kTypeNames and kEnumNames give the words.
// Included only by messages.cc and coordination.cc. Threads: pure.
#pragma once

#include <array>
#include <chrono>
#include <cmath>
#include <concepts>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/utf8.h"
#include "runner/contract/messages.h"

namespace lockstep {

// Of a variant of messages; indexed by the alternative's index.
template <typename Variant>
constexpr std::array<const char*, 0> kTypeNames{};

// Indexed by the enumerator's value.
template <typename E>
constexpr std::array<const char*, 0> kEnumNames{};
template <>
inline constexpr std::array<const char*, 9> kEnumNames<StoreOp>{"set",   "get",      "add",  "compare_set", "delete",
                                                                "check", "num_keys", "wait", "append"};
template <>
inline constexpr std::array<const char*, 4> kEnumNames<StoreStatus>{"ok", "timeout", "stale", "invalid"};

// ---- parts of messages on both links ----

template <typename V>
void fields(V& v, typename V::template Ref<StoreRequest> m) {
  v("id", m.id);
  v("generation", m.generation);
  v("op", m.op);
  v("keys", m.keys);
  v.hex("values", m.values);
  v("amount", m.amount);
  v("timeout_ms", m.timeout);
}
template <typename V>
void fields(V& v, typename V::template Ref<StoreReply> m) {
  v("id", m.id);
  v("status", m.status);
  v.hex("values", m.values);
  v("number", m.number);
  v.text("message", m.message);
}
template <typename V>
void fields(V& v, typename V::template Ref<StateClaim> m) {
  v("lineage", m.lineage);
  v("step", m.step);
  v.optional("evaluated_step", m.evaluated_step);
  v("has_state", m.has_state);
  v.optional("generation", m.generation);
  v.optional("at_commit", m.at_commit);
  v.optional("complete", m.complete);
  v.optional("kept_from", m.kept_from);
  v.optional("is_whole", m.is_whole);
  v.optional("can_take", m.can_take);
}
template <typename V>
void fields(V& v, typename V::template Ref<Handover> m) {
  v("rank", m.rank);
  v("size", m.size);
}
template <typename V>
void fields(V& v, typename V::template Ref<Plan> m) {
  v("source", m.source);
  v("state", m.state);
  v("results", m.results);
  v("first_result", m.first_result);
  v("complete", m.complete);
  v("behind", m.behind);
  v("is_lost", m.is_lost);
}
template <typename V>
void fields(V& v, typename V::template Ref<Assignment> m) {
  v("generation", m.generation);
  v("rank", m.rank);
  v("local_rank", m.local_rank);
  v("world_size", m.world_size);
  v("local_world_size", m.local_world_size);
  v("nnodes", m.nnodes);
  v.optional("declared_world_size", m.declared_world_size);
  v.optional("node_cores", m.node_cores);
  v.optional("address", m.address);
  v.optional("plans", m.plans);
}

inline constexpr const char* kHexDigits = "0123456789abcdef";

inline std::string to_hex(std::string_view bytes) {
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += kHexDigits[byte >> 4];
    hex += kHexDigits[byte & 15];
  }
  return hex;
}

inline int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

inline std::optional<std::string> from_hex(std::string_view hex) {
  if (hex.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int high = hex_digit(hex[i]);
    const int low = hex_digit(hex[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

// ---- struct -> JSON ----

class Encoder {
 public:
  template <typename T>
  using Ref = const T&;

  template <typename T>
  void operator()(const char* name, const T& value) {
    object_[name] = json_of(value);
  }
  void hex(const char* name, const std::vector<std::string>& values) {
    Json array = Json::array();
    for (const std::string& value : values) array.push_back(to_hex(value));
    object_[name] = std::move(array);
  }
  void text(const char* name, const std::string& value) { (*this)(name, value); }
  template <typename T>
  void optional(const char* name, const T& value) {
    (*this)(name, value);
  }
  template <typename T>
  void optional(const char* name, const std::optional<T>& value) {
    if (value) (*this)(name, *value);
  }
  template <typename T>
  void optional(const char* name, const std::vector<T>& values) {
    if (!values.empty()) (*this)(name, values);
  }
  Json take() && { return std::move(object_); }

 private:
  template <typename T>
  static Json json_of(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      return kEnumNames<T>[static_cast<size_t>(value)];
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      return value;
    } else {
      Encoder encoder;
      fields<Encoder>(encoder, value);
      return std::move(encoder).take();
    }
  }
  static Json json_of(double value) {
    if (std::isfinite(value)) return value;
    if (std::isnan(value)) return "NaN";
    return value > 0 ? "+Inf" : "-Inf";
  }
  static Json json_of(std::chrono::milliseconds value) { return value.count(); }
  template <typename T>
  static Json json_of(const std::vector<T>& values) {
    Json array = Json::array();
    for (const T& value : values) array.push_back(json_of(value));
    return array;
  }
  template <typename T>
  static Json json_of(const std::map<std::string, T>& values) {
    Json object = Json::object();
    for (const auto& [key, value] : values) object[key] = json_of(value);
    return object;
  }

  Json object_ = Json::object();
};

// ---- JSON -> struct; remembers the first wrong field ----

class Decoder {
 public:
  template <typename T>
  using Ref = T&;

  explicit Decoder(const Json& object) : object_(object) {}

  template <typename T>
  void operator()(const char* name, T& out) {
    if (const Json* value = find(name)) read(name, *value, out);
  }
  void hex(const char* name, std::vector<std::string>& out) {
    std::vector<std::string> texts;
    (*this)(name, texts);
    for (const std::string& text : texts) {
      std::optional<std::string> bytes = from_hex(text);
      if (!bytes) return fail(name, "bytes in lower-case hex");
      out.push_back(std::move(*bytes));
    }
  }
  // Keeps its default where the peer, of another version, does not say it.
  template <typename T>
  void optional(const char* name, T& out) {
    if (object_.contains(name)) (*this)(name, out);
  }
  template <typename T>
  void optional(const char* name, std::optional<T>& out) {
    if (object_.contains(name)) (*this)(name, out.emplace());
  }
  // Of any length, and cut: the other side may be hostile or out of order, and the text goes into statuses.
  void text(const char* name, std::string& out) {
    (*this)(name, out);
    if (out.size() > kMessageTextBytesMax) out = shortened(out, kMessageTextBytesMax);
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  const Json* find(const char* name) {
    const auto it = object_.find(name);
    if (it != object_.end()) return &*it;
    if (problem_.empty()) problem_ = std::string("field \"") + name + "\" is missing";
    return nullptr;
  }
  void fail(const std::string& name, const std::string& expected) {
    if (problem_.empty()) problem_ = "field \"" + name + "\" must be " + expected;
  }

  template <std::integral T>
  void read(const std::string& name, const Json& value, T& out) {
    const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<uint64_t>())
                                                 : value.is_number_integer() && std::in_range<T>(value.get<int64_t>());
    if (!fits) {
      return fail(name, "an integer from " + std::to_string(std::numeric_limits<T>::min()) + " to " +
                            std::to_string(std::numeric_limits<T>::max()));
    }
    out = value.get<T>();
  }
  void read(const std::string& name, const Json& value, bool& out) {
    if (!value.is_boolean()) return fail(name, "true or false");
    out = value.get<bool>();
  }
  void read(const std::string& name, const Json& value, double& out) {
    if (value.is_number()) {
      out = value.get<double>();
    } else if (value == "NaN") {
      out = std::numeric_limits<double>::quiet_NaN();
    } else if (value == "+Inf" || value == "-Inf") {
      out = value == "+Inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
    } else {
      fail(name, R"(a number, "NaN", "+Inf" or "-Inf")");
    }
  }
  void read(const std::string& name, const Json& value, std::string& out) {
    if (!value.is_string()) return fail(name, "a string");
    out = value.get<std::string>();
  }
  void read(const std::string& name, const Json& value, std::chrono::milliseconds& out) {
    int64_t count = 0;
    read(name, value, count);
    if (count < 0) return fail(name, "at least 0");
    out = std::chrono::milliseconds(count);
  }
  template <typename E>
  requires std::is_enum_v<E>
  void read(const std::string& name, const Json& value, E& out) {
    std::string expected;
    for (size_t i = 0; i < kEnumNames<E>.size(); ++i) {
      if (value == kEnumNames<E>[i]) {
        out = static_cast<E>(i);
        return;
      }
      expected += std::string(i == 0 ? "one of " : ", ") + kEnumNames<E>[i];
    }
    fail(name, expected);
  }
  template <typename T>
  void read(const std::string& name, const Json& value, std::vector<T>& out) {
    if (!value.is_array()) return fail(name, "an array");
    if (value.size() > kMessageListMax) {
      return fail(name, "an array of at most " + std::to_string(kMessageListMax) + " entries");
    }
    for (const Json& item : value) {
      const std::string place = name + "[" + std::to_string(out.size()) + "]";
      read(place, item, out.emplace_back());
    }
  }
  template <typename T>
  void read(const std::string& name, const Json& value, std::map<std::string, T>& out) {
    if (!value.is_object()) return fail(name, "an object");
    for (const auto& [key, item] : value.items()) read(name + "." + key, item, out[key]);
  }
  template <typename M>
  requires std::is_class_v<M>
  void read(const std::string& name, const Json& value, M& out) {
    if (!value.is_object()) return fail(name, "an object");
    Decoder inner(value);
    fields<Decoder>(inner, out);
    if (!inner.problem().empty() && problem_.empty()) problem_ = "in \"" + name + "\": " + inner.problem();
  }

  const Json& object_;  // outlives the decoder: a local of decode_line or a part of it
  std::string problem_;
};

template <typename Variant>
std::string encode_line(const Variant& message) {
  return std::visit(
      [&message](const auto& m) {
        Encoder encoder;
        fields<Encoder>(encoder, m);
        Json object = std::move(encoder).take();
        object["type"] = kTypeNames<Variant>[message.index()];
        return dump_line(object);
      },
      message);
}

// Tries the alternatives of `Variant` from index I on.
template <typename Variant, size_t I = 0>
Result<Variant> decode_as(const std::string& type, const Json& object) {
  static_assert(kTypeNames<Variant>.size() == std::variant_size_v<Variant>);
  if constexpr (I == std::variant_size_v<Variant>) {
    return Error{ErrorCode::kCorrupt, "message of unknown type \"" + type.substr(0, 64) + "\""};
  } else {
    using M = std::variant_alternative_t<I, Variant>;
    if (type != kTypeNames<Variant>[I]) return decode_as<Variant, I + 1>(type, object);
    M message;
    Decoder decoder(object);
    fields<Decoder>(decoder, message);
    if (!decoder.problem().empty()) {
      return Error{ErrorCode::kCorrupt, "message \"" + type + "\": " + decoder.problem()};
    }
    return Variant(std::move(message));
  }
}

template <typename Variant>
Result<Variant> decode_line(std::string_view line) {
  TRY_ASSIGN(const Json object, parse_json(line, "message"));
  if (!object.is_object()) return Error{ErrorCode::kCorrupt, "message is not a JSON object"};
  const auto type = object.find("type");
  if (type == object.end() || !type->is_string()) {
    return Error{ErrorCode::kCorrupt, "message has no field \"type\" that is a string"};
  }
  return decode_as<Variant>(type->get<std::string>(), object);
}

}  // namespace lockstep
