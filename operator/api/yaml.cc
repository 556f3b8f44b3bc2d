#include "operator/api/yaml.h"

#include <yaml-cpp/emitter.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "operator/api/schema.h"
#include "runner/base/parse_number.h"
#include "runner/base/utf8.h"

namespace lockstep::api {
namespace {

constexpr std::string_view kTagPrefix = "tag:yaml.org,2002:";
constexpr std::string_view kMergeKey = "<<";

// Thrown to stop the parser at the first construct that is refused.
struct Refused {
  YAML::Mark mark;
  std::string message;
};

std::string in_quotes(std::string_view text) {
  constexpr size_t kShownMax = 40;  // it may be a secret: enough to find the place
  std::string shown(text.substr(0, kShownMax));
  if (text.size() > kShownMax) shown += "…";
  return dump_line(Json(shown));
}

// --- YAML 1.2's core schema (chapter 10.3) ---

bool all_of(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
}

constexpr std::string_view kDigits = "0123456789";

std::string_view without_sign(std::string_view text) {
  return !text.empty() && (text.front() == '-' || text.front() == '+') ? text.substr(1) : text;
}

bool is_null(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

std::optional<bool> as_bool(std::string_view text) {
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  return std::nullopt;
}

bool is_integer(std::string_view text) {
  if (text.starts_with("0o")) return all_of(text.substr(2), "01234567");
  if (text.starts_with("0x")) return all_of(text.substr(2), "0123456789abcdefABCDEF");
  return all_of(without_sign(text), kDigits);
}

// [-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?
bool is_float(std::string_view text) {
  text = without_sign(text);
  const size_t exponent = text.find_first_of("eE");
  if (exponent != std::string_view::npos) {
    if (!all_of(without_sign(text.substr(exponent + 1)), kDigits)) return false;
    text = text.substr(0, exponent);
  }
  const size_t point = text.find('.');
  if (point == std::string_view::npos) return all_of(text, kDigits);
  const std::string_view whole = text.substr(0, point);
  const std::string_view fraction = text.substr(point + 1);
  if (whole.empty()) return all_of(fraction, kDigits);
  return all_of(whole, kDigits) && (fraction.empty() || all_of(fraction, kDigits));
}

bool is_not_finite(std::string_view text) {
  const std::string_view magnitude = without_sign(text);
  if (magnitude == ".inf" || magnitude == ".Inf" || magnitude == ".INF") return true;
  return text == ".nan" || text == ".NaN" || text == ".NAN";
}

// The value of a word that is a boolean in YAML 1.1 but not in YAML 1.2.
std::optional<bool> as_yaml11_bool(std::string_view text) {
  for (const std::string_view word : {"y", "Y", "yes", "Yes", "YES", "on", "On", "ON"}) {
    if (text == word) return true;
  }
  for (const std::string_view word : {"n", "N", "no", "No", "NO", "off", "Off", "OFF"}) {
    if (text == word) return false;
  }
  return std::nullopt;
}

// Is the text a number in YAML 1.1 that YAML 1.2 reads as another number or as a string? 012, 1_000, 0b1, -0x1f.
bool is_yaml11_number(std::string_view text) {
  const std::string_view magnitude = without_sign(text);
  if (magnitude.empty() || magnitude.front() < '0' || magnitude.front() > '9') return false;
  std::string digits(magnitude);
  std::erase(digits, '_');
  const bool has_underscores = digits.size() != magnitude.size();
  const std::string_view rest = std::string_view(digits).substr(std::min<size_t>(2, digits.size()));
  if (digits.starts_with("0b") || digits.starts_with("0B")) return all_of(rest, "01");
  if (digits.starts_with("0x") || digits.starts_with("0X")) {
    const bool is_same = magnitude.size() == text.size() && digits.starts_with("0x") && !has_underscores;
    return !is_same && all_of(rest, "0123456789abcdefABCDEF");
  }
  if (digits.starts_with("0o") || digits.starts_with("0O")) {
    const bool is_same = magnitude.size() == text.size() && digits.starts_with("0o") && !has_underscores;
    return !is_same && all_of(rest, "01234567");
  }
  if (has_underscores) return is_float(digits);
  const bool is_octal = digits.size() > 1 && digits.front() == '0' && all_of(digits, "01234567");
  return is_octal && digits.find_first_not_of('0') != std::string::npos;
}

OrderedJson integer_value(const YAML::Mark& mark, std::string_view text) {
  int base = 10;
  std::string_view digits = text;
  if (text.starts_with("0o") || text.starts_with("0x")) {
    base = text[1] == 'o' ? 8 : 16;
    digits = text.substr(2);
  } else if (text.starts_with('+')) {
    digits = text.substr(1);
  }
  if (const auto value = parse_number<int64_t>(digits, base)) return *value;
  if (const auto value = parse_number<uint64_t>(digits, base)) return *value;
  throw Refused{mark, in_quotes(text) + " does not fit into 64 bits; quote it if it is not meant as a number"};
}

OrderedJson float_value(const YAML::Mark& mark, std::string_view text) {
  double value = 0.0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    throw Refused{mark, in_quotes(text) + " is beyond a 64-bit number; quote it if it is not meant as one"};
  }
  return value;
}

OrderedJson plain_value(const YAML::Mark& mark, const std::string& text) {
  if (is_null(text)) return nullptr;
  if (const auto value = as_bool(text)) return *value;
  if (is_integer(text)) return integer_value(mark, text);
  if (is_float(text)) return float_value(mark, text);
  if (is_not_finite(text)) throw Refused{mark, in_quotes(text) + " has no form in JSON; expected a finite number"};
  return text;
}

OrderedJson scalar_value(const YAML::Mark& mark, const std::string& tag, const std::string& text) {
  if (tag == "?" || tag.empty()) return plain_value(mark, text);
  if (tag == "!") return text;  // quoted, or a block
  const std::string_view type =
      tag.starts_with(kTagPrefix) ? std::string_view(tag).substr(kTagPrefix.size()) : std::string_view();
  if (type == "str") return text;
  if (type == "null" && is_null(text)) return nullptr;
  if (const auto value = as_bool(text); type == "bool" && value) return *value;
  if (type == "int" && is_integer(text)) return integer_value(mark, text);
  if (type == "float" && is_float(text)) return float_value(mark, text);
  if (type == "null" || type == "bool" || type == "int" || type == "float") {
    throw Refused{mark, in_quotes(text) + " is not of its tag !!" + std::string(type)};
  }
  throw Refused{mark, "the tag " + in_quotes(tag) + " is unknown; expected none"};
}

void check_collection_tag(const YAML::Mark& mark, const std::string& tag, std::string_view type) {
  if (tag.empty() || tag == "?" || tag == "!" || tag == std::string(kTagPrefix).append(type)) return;
  throw Refused{mark, "the tag " + in_quotes(tag) + " is unknown; expected none"};
}

// --- Events → Json ---

enum class Reading {
  kYaml12,
  kKubectl,  // YAML 1.1, as kubectl reads it; positions are recorded
};

// How large a value is when all aliases are written out.
struct Size {
  size_t nodes = 0;
  size_t bytes = 0;
  size_t depth = 0;
};

struct Built {
  OrderedJson value;
  Size size;
};

YamlPosition position_at(const YAML::Mark& mark) {
  return {.line = std::max(mark.line, 0) + 1, .column = std::max(mark.column, 0) + 1};
}

class DocumentBuilder final : public YAML::EventHandler {
 public:
  DocumentBuilder(std::string_view text, Reading reading) : text_(text), reading_(reading) {}

  // Without empty ones.
  std::vector<YamlDocument> documents() && {
    std::erase_if(documents_, [](const YamlDocument& document) { return document.value.is_null(); });
    return std::move(documents_);
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    // yaml-cpp begins a new document at whatever it cannot attach to the last one.
    if (!documents_.empty() && !text_.substr(static_cast<size_t>(mark.pos)).starts_with("---")) {
      throw Refused{mark, "text after the end of the document; expected `---` before another one"};
    }
    begin_ = position_at(mark);
    anchors_.clear();
    total_ = {};
    positions_.clear();
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { scalar(mark, anchor, nullptr, "", true); }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    const bool is_plain = tag == "?" || tag.empty();
    if (is_plain && reading_ == Reading::kKubectl) {
      if (const auto value = as_yaml11_bool(text)) return scalar(mark, anchor, *value, *value ? "true" : "false", true);
      if (is_yaml11_number(text)) {
        throw Refused{mark, in_quotes(text) +
                                " is another number to kubectl, which reads YAML 1.1, than it is by "
                                "YAML 1.2; write it in plain digits, or in quotes if it is a word"};
      }
    }
    scalar(mark, anchor, scalar_value(mark, tag, text), text, is_plain);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) throw Refused{mark, "an alias inside of what it stands for"};
    const Built& meant = found->second;
    grow(mark, meant.size.nodes, meant.size.bytes);
    check_depth(mark, frames_.size() + meant.size.depth);
    if (expects_key()) {
      if (meant.value.is_structured() || meant.value.is_null()) refuse_key(mark);
      set_key(mark, meant.value.is_string() ? meant.value.get<std::string>() : meant.value.dump(), false);
      return;
    }
    note_entry(mark);
    attach(mark, Built{meant});
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    check_collection_tag(mark, tag, "seq");
    open(mark, anchor, OrderedJson::array());
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    check_collection_tag(mark, tag, "map");
    open(mark, anchor, OrderedJson::object());
  }
  void OnMapEnd() override { close(); }

 private:
  // A list or map that is still open.
  struct Frame {
    YAML::Mark mark;
    YAML::anchor_t anchor;
    Built built;
    std::optional<std::string> path;  // nullopt: too long, or positions are not recorded
    std::optional<std::string> key;   // the key that was read last; its value comes next
    bool key_is_merge = false;
    std::unordered_map<std::string, YAML::Mark> keys;
    std::optional<OrderedJson> merged;  // the value of `<<`
  };

  [[nodiscard]] bool expects_key() const {
    return !frames_.empty() && frames_.back().built.value.is_object() && !frames_.back().key;
  }

  [[noreturn]] static void refuse_key(const YAML::Mark& mark) {
    throw Refused{mark, "a key that is not one plain word; expected `name: value`"};
  }

  void grow(const YAML::Mark& mark, size_t nodes, size_t bytes) {
    total_.nodes += nodes;
    total_.bytes += bytes;
    if (total_.nodes > kYamlNodesMax) {
      throw Refused{mark, "more than " + std::to_string(kYamlNodesMax) + " values, aliases written out"};
    }
    if (total_.bytes > kYamlBytesMax) {
      throw Refused{mark, "more than " + std::to_string(kYamlBytesMax) + " bytes, aliases written out"};
    }
  }

  static void check_depth(const YAML::Mark& mark, size_t depth) {
    if (depth > kYamlDepthMax) throw Refused{mark, "nested deeper than " + std::to_string(kYamlDepthMax) + " levels"};
  }

  // The path of the value that comes next.
  [[nodiscard]] std::optional<std::string> next_path() const {
    if (reading_ != Reading::kKubectl) return std::nullopt;
    if (frames_.empty()) return std::string();
    const Frame& frame = frames_.back();
    constexpr size_t kPathBytesMax = 1024;  // paths of paths grow with the square of the depth
    const size_t more = frame.key ? frame.key->size() : 0;
    if (!frame.path || frame.path->size() + more > kPathBytesMax) return std::nullopt;
    return frame.key ? field_below(*frame.path, *frame.key) : field_below(*frame.path, frame.built.value.size());
  }

  void note_position(const YAML::Mark& mark) {
    if (const std::optional<std::string> path = next_path()) positions_.insert_or_assign(*path, position_at(mark));
  }
  // Fields of maps stand where their keys do.
  void note_entry(const YAML::Mark& mark) {
    if (frames_.empty() || frames_.back().built.value.is_array()) note_position(mark);
  }

  void set_key(const YAML::Mark& mark, std::string key, bool is_merge) {
    Frame& frame = frames_.back();
    const auto [first, is_new] = frame.keys.emplace(key, mark);
    if (!is_new) {
      throw Refused{mark, "the key " + in_quotes(key) + " is given twice in one map, first in line " +
                              std::to_string(first->second.line + 1)};
    }
    frame.built.size.bytes += key.size();
    frame.key = std::move(key);
    frame.key_is_merge = is_merge;
    note_position(mark);
  }

  void scalar(const YAML::Mark& mark, YAML::anchor_t anchor, OrderedJson value, const std::string& text, bool plain) {
    grow(mark, 1, text.size());
    // yaml-cpp turns each of the escapes \_ and \N into one byte; in UTF-8 their characters have two.
    if (!is_utf8(text)) throw Refused{mark, "an escape \\_ or \\N, which is not supported; write \\u00a0 or \\u0085"};
    Built built{std::move(value), Size{.nodes = 1, .bytes = text.size(), .depth = 0}};
    if (!expects_key()) {
      if (anchor != YAML::NullAnchor) anchors_[anchor] = built;
      note_entry(mark);
      attach(mark, std::move(built));
      return;
    }
    if (built.value.is_null()) refuse_key(mark);
    if (anchor != YAML::NullAnchor) anchors_[anchor] = built;
    set_key(mark, text, plain && text == kMergeKey);
  }

  void open(const YAML::Mark& mark, YAML::anchor_t anchor, OrderedJson empty) {
    if (expects_key()) refuse_key(mark);
    check_depth(mark, frames_.size() + 1);
    grow(mark, 1, 0);
    note_entry(mark);
    std::optional<std::string> path = next_path();
    Built built{std::move(empty), Size{.nodes = 1, .bytes = 0, .depth = 1}};
    frames_.push_back(Frame{mark, anchor, std::move(built), std::move(path), {}, {}, {}, {}});
  }

  void close() {
    if (frames_.back().merged) merge(frames_.back());
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    if (frame.anchor != YAML::NullAnchor) anchors_[frame.anchor] = frame.built;
    attach(frame.mark, std::move(frame.built));
  }

  // `<<: *defaults` or `<<: [*a, *b]`: a key of the map itself wins, then that of the first source that has it.
  static void merge(Frame& frame) {
    const OrderedJson& merged = *frame.merged;
    const OrderedJson sources = merged.is_array() ? merged : OrderedJson::array({merged});
    for (const OrderedJson& source : sources) {
      if (!source.is_object()) throw Refused{frame.mark, "a merge key (<<) with something else than a map"};
      for (const auto& [key, value] : source.items()) {
        if (frame.keys.emplace(key, frame.mark).second) members_of(frame.built.value).emplace_back(key, value);
      }
    }
  }

  // ordered_json looks for the key on each insertion; ours are known to be new.
  static OrderedJson::object_t& members_of(OrderedJson& object) { return object.get_ref<OrderedJson::object_t&>(); }

  void attach(const YAML::Mark& mark, Built built) {
    if (frames_.empty()) {
      documents_.push_back({std::move(built.value), begin_, std::move(positions_)});
      return;
    }
    Frame& frame = frames_.back();
    frame.built.size.nodes += built.size.nodes;
    frame.built.size.bytes += built.size.bytes;
    frame.built.size.depth = std::max(frame.built.size.depth, built.size.depth + 1);
    if (frame.built.value.is_array()) {
      frame.built.value.push_back(std::move(built.value));
    } else if (frame.key_is_merge) {
      if (!built.value.is_structured()) throw Refused{mark, "a merge key (<<) with something else than a map"};
      frame.merged = std::move(built.value);
    } else {
      members_of(frame.built.value).emplace_back(std::move(*frame.key), std::move(built.value));
    }
    frame.key.reset();
    frame.key_is_merge = false;
  }

  std::string_view text_;
  Reading reading_;
  std::vector<Frame> frames_;
  std::map<YAML::anchor_t, Built> anchors_;        // of the current document, whole ones only
  Size total_;                                     // of the current document
  std::map<std::string, YamlPosition> positions_;  // likewise
  YamlPosition begin_;                             // likewise
  std::vector<YamlDocument> documents_;
};

Error invalid_at(std::string_view what, const YamlPosition& position, const std::string& message) {
  std::string text(what);
  text.append(":").append(std::to_string(position.line)).append(":").append(std::to_string(position.column));
  return invalid(text, message);
}

// Throws the exceptions of YAML::Parser, and Refused from the handler.
void run_parser(std::string_view text, YAML::EventHandler& handler) {
  std::istringstream stream{std::string(text)};
  YAML::Parser parser(stream);
  while (parser.HandleNextDocument(handler)) {
  }
}

// Refuses texts that yaml-cpp would silently read as something else: it stops at a NUL and replaces invalid UTF-8.
Status check_bytes(std::string_view text, std::string_view what) {
  const auto refuse = [&](const std::string& why) { return invalid(std::string(what), why); };
  if (text.size() > kYamlBytesMax) {
    return refuse(std::to_string(text.size()) + " bytes; expected at most " + std::to_string(kYamlBytesMax));
  }
  if (text.find('\0') != std::string_view::npos) return refuse("holds a NUL byte; expected YAML in UTF-8");
  if (!is_utf8(text)) return refuse("is not UTF-8; expected YAML in UTF-8");
  return {};
}

// JSON's white space may be a tab, which yaml-cpp takes for a wrong indentation. "" when there is nothing to do.
std::string json_without_tabs(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '{' || text.find('\t') == std::string_view::npos) return {};
  std::string spaced(text);
  bool in_string = false;
  for (size_t i = first; i < spaced.size(); ++i) {
    if (spaced[i] == '"') in_string = !in_string;
    if (spaced[i] == '\\') ++i;  // and what it escapes
    if (i < spaced.size() && spaced[i] == '\t' && !in_string) spaced[i] = ' ';
  }
  return spaced;
}

Result<std::vector<YamlDocument>> build(std::string_view text, std::string_view what, Reading reading) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark, which the parser does not count
  TRY(check_bytes(text, what));
  DocumentBuilder builder(text, reading);
  try {
    run_parser(text, builder);
    // yaml-cpp 0.7 takes white space at the end of the text for the end of a quoted scalar that never ends: a cut file
    // would pass. Without that space it complains.
    if (text.find_first_of("'\"") != std::string_view::npos) {
      DocumentBuilder ignored(text, reading);
      run_parser(text.substr(0, text.find_last_not_of(" \t\r\n") + 1), ignored);
    }
  } catch (const Refused& refused) {
    return invalid_at(what, position_at(refused.mark), refused.message);
  } catch (const YAML::Exception& e) {
    return invalid_at(what, position_at(e.mark), "not YAML: " + e.msg);
  }
  return std::move(builder).documents();
}

// --- Json → text ---

// Would a reader of YAML 1.1 or 1.2 take the word for something else than a string, if it stood there without quotes?
// Whatever begins like a number or a date counts: YAML 1.1 has many forms of them.
bool needs_quotes(std::string_view text) {
  return text.empty() || is_null(text) || as_bool(text) || as_yaml11_bool(text) || text == kMergeKey ||
         std::string_view("0123456789+-.=").find(text.front()) != std::string_view::npos;
}

// Characters that some reader takes for a line break or drops.
bool needs_escapes(std::string_view text) {
  constexpr std::array<std::string_view, 6> kCharacters = {"\r",           "\x7f",         "\xc2\x85",
                                                           "\xe2\x80\xa8", "\xe2\x80\xa9", "\xef\xbb\xbf"};
  return std::any_of(kCharacters.begin(), kCharacters.end(),
                     [&](std::string_view one) { return text.find(one) != std::string_view::npos; });
}

// Can a literal block (|) hold it? yaml-cpp writes one without a sign that keeps or removes newlines at the end.
bool is_block(std::string_view text) {
  const size_t lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  const bool ends_well = text.size() > 1 && text.back() == '\n' && text[text.size() - 2] != '\n';
  const bool is_printable =
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x20 || c == '\n'; });
  return lines > 0 && ends_well && is_printable && text.front() != ' ' && text.front() != '\n' &&
         text.find(" \n") == std::string_view::npos;
}

void write_text(const std::string& text, bool is_key, YAML::Emitter& out) {
  if (needs_escapes(text)) {
    out << YAML::EscapeNonAscii << YAML::DoubleQuoted;
  } else if (!is_key && is_block(text)) {
    out << YAML::Literal << text.substr(0, text.size() - 1);  // a reader adds the newline at the end
    return;
  } else if (needs_quotes(text) || text.find('\n') != std::string::npos) {
    out << YAML::DoubleQuoted;
  }
  out << text;
}

void write(const OrderedJson& value, YAML::Emitter& out) {
  constexpr size_t kShortKeyBytesMax = 250;  // escapes may quadruple it, and a key that ends with a colon has 1,024
  if (value.is_structured() && value.empty()) out << YAML::Flow;
  if (value.is_object()) {
    out << YAML::BeginMap;
    for (const auto& [key, member] : value.items()) {
      if (key.size() > kShortKeyBytesMax) out << YAML::LongKey;
      out << YAML::Key;
      write_text(valid_utf8(key), true, out);
      out << YAML::Value;
      write(member, out);
    }
    out << YAML::EndMap;
  } else if (value.is_array()) {
    out << YAML::BeginSeq;
    for (const OrderedJson& item : value) write(item, out);
    out << YAML::EndSeq;
  } else if (value.is_string()) {
    write_text(valid_utf8(value.get_ref<const std::string&>()), false, out);
  } else if (value.is_null()) {
    out << YAML::Null;
  } else {
    out << dump_line(value);  // a number keeps its type: 1.0
  }
}

}  // namespace

Result<std::vector<OrderedJson>> parse_yaml_documents(std::string_view text, std::string_view what) {
  TRY_ASSIGN(std::vector<YamlDocument> documents, build(text, what, Reading::kYaml12));
  std::vector<OrderedJson> values;
  for (YamlDocument& document : documents) values.push_back(std::move(document.value));
  return values;
}

Result<OrderedJson> parse_yaml(std::string_view text, std::string_view what) {
  TRY_ASSIGN(std::vector<YamlDocument> documents, build(text, what, Reading::kYaml12));
  if (documents.empty()) {
    return invalid(std::string(what), "holds nothing; expected one YAML document");
  }
  if (documents.size() > 1) return invalid_at(what, documents[1].begin, "a second document; expected one");
  return std::move(documents.front().value);
}

YamlPosition YamlDocument::position_of(std::string_view field) const {
  while (true) {
    if (const auto it = positions.find(std::string(field)); it != positions.end()) return it->second;
    if (field.empty()) return {};
    const size_t cut = field.find_last_of(".[");
    field = field.substr(0, cut == std::string_view::npos ? 0 : cut);
  }
}

Result<std::vector<YamlDocument>> parse_manifests(std::string_view text, std::string_view what) {
  const std::string without_tabs = json_without_tabs(text);
  return build(without_tabs.empty() ? text : without_tabs, what, Reading::kKubectl);
}

std::string to_yaml(const OrderedJson& value) {
  YAML::Emitter out;
  out.SetNullFormat(YAML::LowerNull);
  write(value, out);
  return out.c_str() + std::string("\n");
}

}  // namespace lockstep::api
