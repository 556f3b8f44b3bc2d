#include "runner/config/flags_yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

namespace lockstep {
namespace {

// A flat map of flags has a few kilobytes. The limit bounds the parser's time and memory.
constexpr size_t kYamlBytesMax = 256 * 1024;

// Thrown by the handler to stop the parser at the first event that does not belong to a flat map of scalars.
struct Refused {
  int line;
  std::string message;
};

class FlatMapHandler final : public YAML::EventHandler {
 public:
  explicit FlatMapHandler(std::string file) : file_(std::move(file)) {}

  std::vector<YamlFlag> take() { return std::move(flags_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (seen_document_) throw Refused{line_of(mark), "a second document; expected one map of flags"};
    seen_document_ = true;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { scalar(mark, anchor, ""); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    throw Refused{line_of(mark), "an alias (*name); expected a plain value"};
  }
  void OnScalar(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                const std::string& value) override {
    scalar(mark, anchor, value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                       YAML::EmitterStyle::value /*style*/) override {
    nested(mark, "a list");
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                  YAML::EmitterStyle::value /*style*/) override {
    if (in_map_) nested(mark, "a map");
    in_map_ = true;
  }
  void OnMapEnd() override {}

 private:
  static int line_of(const YAML::Mark& mark) { return mark.line + 1; }

  [[noreturn]] void nested(const YAML::Mark& mark, const std::string& what) const {
    if (key_) throw Refused{line_of(mark), *key_ + ": found " + what + ", expected one plain value"};
    throw Refused{line_of(mark), "found " + what + ", expected lines of the form `flag: value`"};
  }

  void scalar(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& value) {
    if (!in_map_) throw Refused{line_of(mark), "expected lines of the form `flag: value`"};
    if (anchor != YAML::NullAnchor) throw Refused{line_of(mark), "an anchor (&name); expected a plain value"};
    if (!key_) {
      key_ = value;
      std::replace(key_->begin(), key_->end(), '-', '_');
      if (key_->empty()) throw Refused{line_of(mark), "an empty key; expected the name of a flag"};
      const auto [first, is_new] = lines_.emplace(*key_, line_of(mark));
      if (!is_new) {
        throw Refused{line_of(mark),
                      *key_ + " is given twice, first at " + file_ + ":" + std::to_string(first->second)};
      }
      return;
    }
    // yaml-cpp gives a missing value the position of what follows it, so the line of the key is reported.
    if (value.empty()) throw Refused{lines_[*key_], *key_ + ": found nothing, expected a value"};
    flags_.push_back({*key_, value, line_of(mark)});
    key_.reset();
  }

  std::string file_;
  bool seen_document_ = false;
  bool in_map_ = false;
  std::optional<std::string> key_;    // was read; its value comes next
  std::map<std::string, int> lines_;  // key → its line
  std::vector<YamlFlag> flags_;
};

Error invalid_at(const std::string& file, int line, const std::string& message) {
  return Error{ErrorCode::kInvalid, file + ":" + std::to_string(line) + ": " + message};
}

}  // namespace

Result<std::vector<YamlFlag>> parse_flags_yaml(std::string_view text, const std::string& file) {
  if (text.size() > kYamlBytesMax) {
    return invalid_at(
        file, 1, std::to_string(text.size()) + " bytes; a file of flags has at most " + std::to_string(kYamlBytesMax));
  }
  FlatMapHandler handler(file);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(handler)) {
    }
  } catch (const Refused& refused) {
    return invalid_at(file, refused.line, refused.message);
  } catch (const YAML::Exception& e) {
    return invalid_at(file, std::max(e.mark.line, 0) + 1, "not YAML: " + e.msg);
  }
  return handler.take();
}

}  // namespace lockstep
