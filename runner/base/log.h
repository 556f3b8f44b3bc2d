// Logger: one line per event, JSON for machines ({"ts","level","msg", fields…}) or text for a terminal.
//
// Role: the log of a long-running program; passed in by constructor; there is no global logger. The output of a
// command (a table, a result) goes to stdout, not through it.
// Threads: safe from all threads; a line is written whole. Copies share the sink.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "runner/base/json.h"

namespace lockstep {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
const char* to_string(LogLevel level);

using LogField = std::pair<std::string_view, Json>;
using LogFields = std::initializer_list<LogField>;

class Logger {
 public:
  enum class Format { kJson, kText };
  struct Options {
    Format format = Format::kJson;
    LogLevel lowest = LogLevel::kInfo;
    std::function<void(const std::string& line)> sink;  // gets lines without '\n'; called by one thread at a time
    std::function<std::string()> now;                   // RFC 3339; empty: the wall clock
  };
  explicit Logger(Options options);

  // Drops everything; for tests and for callers that need no log.
  static Logger silent();
  // To standard error; text when that is a terminal.
  static Logger to_stderr(LogLevel lowest);

  // A logger with the same sink that puts these fields on every line, before the line's own.
  [[nodiscard]] Logger with(LogFields fields) const;

  void debug(std::string_view message, LogFields fields = {}) const { write(LogLevel::kDebug, message, fields); }
  void info(std::string_view message, LogFields fields = {}) const { write(LogLevel::kInfo, message, fields); }
  void warning(std::string_view message, LogFields fields = {}) const { write(LogLevel::kWarning, message, fields); }
  void error(std::string_view message, LogFields fields = {}) const { write(LogLevel::kError, message, fields); }

 private:
  struct Sink;
  void write(LogLevel level, std::string_view message, LogFields fields) const;

  std::shared_ptr<Sink> sink_;
  OrderedJson fields_ = OrderedJson::object();
};

}  // namespace lockstep
