// FlagTableBuilder: declares flags, each in one line, around fields of a RunConfig. Used by config for the flags that
// every workload has, and by each workload for its own (runner/models/*/*_flags.cc).
//
//   builder.group("Model");
//   builder.integer("num_blocks", kMaths, 0, 1024, &Options::num_blocks, "attention blocks");
//
// where Options is what the workload or the task puts into its options (options_of). A field anywhere else in the
// config is given as [](auto& config) -> auto& { return config.…; }. Threads: plain values.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runner/config/flag_table.h"

namespace lockstep {

using enum FlagScope;

// Limits that keep products (batch × length × width) within 64 bits and catch typing errors.
inline constexpr int64_t kCountMax = 1'000'000'000;
inline constexpr int64_t kWidthMax = 65'536;

// Parses `text` as a number of this type; false when it is not one as a whole.
template <typename T>
bool parse_whole(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// The shortest text that reads back as the same number.
std::string number_text(double value);
// "from 1 to 65535", "of at least 0"
std::string range_text(int64_t min, int64_t max);

// A member of a member of the options: field_of(&Options::decoder, &DecoderOptions::depth).
template <typename Outer, typename Inner, typename Value>
auto field_of(Inner Outer::*outer, Value Inner::*inner) {
  return [=](auto& config) -> auto& { return options_of<Outer>(config).*outer.*inner; };
}
template <typename Options, typename Value>
auto field_of(Value Options::*member) {
  return [=](auto& config) -> auto& { return options_of<Options>(config).*member; };
}
// `field` is called with RunConfig& and const RunConfig& alike and returns a reference to the value.
template <typename Field>
Field field_of(Field field) {
  return field;
}

// Builds a Flag around one field of a RunConfig. A Flag& that is returned is valid until take().
class FlagTableBuilder {
 public:
  // Begins a group. `needs`: Flag::needs of its flags.
  void group(std::string name, std::function<std::string(const RunConfig& config)> needs = {}) {
    group_ = std::move(name);
    needs_ = std::move(needs);
  }

  template <typename Field>
  Flag& integer(const char* name, FlagScope scope, int64_t min, int64_t max, Field member, const char* help) {
    const auto field = field_of(member);
    Flag& flag = add(name, scope, "an integer " + range_text(min, max), help);
    using Value = std::remove_cvref_t<decltype(field(std::declval<RunConfig&>()))>;
    flag.set = [=](std::string_view text, RunConfig& config) {
      int64_t value = 0;
      if (!parse_whole(text, value) || value < min || value > max) return false;
      field(config) = static_cast<Value>(value);
      return true;
    };
    flag.get = [=](const RunConfig& config) { return std::to_string(field(config)); };
    return flag;
  }

  // nullopt is written "auto".
  template <typename Field>
  Flag& optional_integer(const char* name, FlagScope scope, int64_t min, int64_t max, Field member, const char* help) {
    const auto field = field_of(member);
    Flag& flag = add(name, scope, "an integer " + range_text(min, max) + ", or auto", help);
    using Value = typename std::remove_cvref_t<decltype(field(std::declval<RunConfig&>()))>::value_type;
    flag.set = [=](std::string_view text, RunConfig& config) {
      int64_t value = 0;
      if (text == "auto") {
        field(config).reset();
        return true;
      }
      if (!parse_whole(text, value) || value < min || value > max) return false;
      field(config) = static_cast<Value>(value);
      return true;
    };
    flag.get = [=](const RunConfig& config) {
      return field(config) ? std::to_string(*field(config)) : std::string("auto");
    };
    return flag;
  }

  // Real numbers in [min, max], or [min, max) with `open`.
  template <typename Field>
  Flag& real(const char* name, FlagScope scope, double min, double max, bool open, Field member, const char* help) {
    const auto field = field_of(member);
    const std::string upper = open ? " to below " : " to ";
    Flag& flag = add(name, scope, "a number from " + number_text(min) + upper + number_text(max), help);
    flag.set = [=](std::string_view text, RunConfig& config) {
      double value = 0.0;
      if (!parse_whole(text, value) || !std::isfinite(value)) return false;
      if (value < min || value > max || (open && value == max)) return false;
      field(config) = value + 0.0;  // -0 becomes 0: one canonical text
      return true;
    };
    flag.get = [=](const RunConfig& config) { return number_text(field(config)); };
    return flag;
  }

  // nullopt is written "auto".
  template <typename Field>
  Flag& optional_real(const char* name, FlagScope scope, double min, double max, Field member, const char* help) {
    const auto field = field_of(member);
    Flag& flag = add(name, scope, "a number from " + number_text(min) + " to " + number_text(max) + ", or auto", help);
    flag.set = [=](std::string_view text, RunConfig& config) {
      double value = 0.0;
      if (text == "auto") {
        field(config).reset();
        return true;
      }
      if (!parse_whole(text, value) || !std::isfinite(value) || value < min || value > max) return false;
      field(config) = value + 0.0;
      return true;
    };
    flag.get = [=](const RunConfig& config) {
      return field(config) ? number_text(*field(config)) : std::string("auto");
    };
    return flag;
  }

  template <typename Field>
  Flag& boolean(const char* name, FlagScope scope, Field member, const char* help) {
    const auto field = field_of(member);
    Flag& flag = add(name, scope, "true or false", help);
    flag.is_bool = true;
    flag.set = [=](std::string_view text, RunConfig& config) {
      bool value = false;
      if (!parse_bool_word(text, value)) return false;
      field(config) = value;
      return true;
    };
    flag.get = [=](const RunConfig& config) { return bool_text(field(config)); };
    return flag;
  }

  // `words`: one for each value of the enumeration, in order from 0.
  template <typename Field>
  Flag& choice(const char* name, FlagScope scope, std::vector<std::string> words, Field member, const char* help) {
    const auto field = field_of(member);
    std::string expects = words.front();
    for (size_t i = 1; i < words.size(); ++i) expects += (i + 1 == words.size() ? " or " : ", ") + words[i];
    Flag& flag = add(name, scope, std::move(expects), help);
    flag.words = words;
    using Value = std::remove_cvref_t<decltype(field(std::declval<RunConfig&>()))>;
    flag.set = [=](std::string_view text, RunConfig& config) {
      const auto it = std::find(words.begin(), words.end(), text);
      if (it == words.end()) return false;
      field(config) = static_cast<Value>(it - words.begin());
      return true;
    };
    flag.get = [=](const RunConfig& config) { return words[static_cast<size_t>(field(config))]; };
    return flag;
  }

  template <typename Field>
  Flag& text(const char* name, FlagScope scope, const char* expects, Field member, const char* help) {
    const auto field = field_of(member);
    Flag& flag = add(name, scope, expects, help);
    flag.set = [=](std::string_view text, RunConfig& config) {
      // A value must fit on one line of args.txt and of the log.
      if (text.find_first_of(std::string_view("\n\r\0", 3)) != std::string_view::npos) return false;
      field(config) = std::string(text);
      return true;
    };
    flag.get = [=](const RunConfig& config) { return std::string(field(config)); };
    return flag;
  }

  Flag& custom(const char* name, FlagScope scope, const char* expects, const char* help) {
    return add(name, scope, expects, help);
  }

  // A guide's name for a --train_dir that is a path; both flags set the same value.
  Flag& train_dir_path(const char* name);

  std::vector<Flag> take() { return {std::make_move_iterator(flags_.begin()), std::make_move_iterator(flags_.end())}; }

 private:
  Flag& add(const char* name, FlagScope scope, std::string expects, const char* help) {
    if (std::string_view(name).find('-') != std::string_view::npos) {
      throw std::invalid_argument(std::string("the flag ") + name + " has a dash in its name, expected _ in its place");
    }
    if (std::any_of(flags_.begin(), flags_.end(), [&](const Flag& other) { return other.name == name; })) {
      throw std::invalid_argument(std::string("there is a flag ") + name +
                                  " already: give this one another name, or, if it is a flag that every workload "
                                  "has, set its default in set_defaults");
    }
    Flag flag;
    flag.name = name;
    flag.group = group_;
    flag.needs = needs_;
    flag.expects = std::move(expects);
    flag.help = help;
    flag.scope = scope;
    return flags_.emplace_back(std::move(flag));
  }

  std::string group_;
  std::function<std::string(const RunConfig& config)> needs_;
  std::deque<Flag> flags_;  // the references that were given out stay valid while flags are added
};

}  // namespace lockstep
