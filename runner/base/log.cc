#include "runner/base/log.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "runner/base/mutex.h"

namespace lockstep {
namespace {

std::string wall_clock() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[sizeof("2026-11-21T10:00:00.000Z") + 64];
  const size_t size = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + size, sizeof(text) - size, ".%03dZ", static_cast<int>(since % 1000));
  return text;
}

void to_stderr_line(const std::string& line) {
  const std::string whole = line + "\n";
  // Errors are ignored: a full or closed stderr must not stop the program.
  [[maybe_unused]] const size_t written = std::fwrite(whole.data(), 1, whole.size(), stderr);
}

// The text of a value: JSON, but a string that is one word is written without quotes.
std::string value_text(const OrderedJson& value) {
  if (!value.is_string()) return dump_line(value);
  const auto& text = value.get_ref<const std::string&>();
  const bool bare = !text.empty() && text.find_first_of(" \t\n\"=") == std::string::npos;
  return bare ? text : dump_line(value);
}

}  // namespace

const char* to_string(LogLevel level) {
  constexpr std::array kNames{"debug", "info", "warning", "error"};
  static_assert(kNames.size() == static_cast<size_t>(LogLevel::kError) + 1);
  return kNames.at(static_cast<size_t>(level));
}

struct Logger::Sink {
  Options options;
  Mutex mutex;
};

Logger::Logger(Options options) : sink_(std::make_shared<Sink>()) {
  sink_->options = std::move(options);
  if (!sink_->options.now) sink_->options.now = wall_clock;
}

Logger Logger::silent() { return Logger(Options{}); }

Logger Logger::to_stderr(LogLevel lowest) {
  return Logger(Options{.format = ::isatty(STDERR_FILENO) == 1 ? Format::kText : Format::kJson,
                        .lowest = lowest,
                        .sink = to_stderr_line});
}

Logger Logger::with(LogFields fields) const {
  Logger copy = *this;
  for (const auto& [key, value] : fields) copy.fields_[std::string(key)] = value;
  return copy;
}

void Logger::write(LogLevel level, std::string_view message, LogFields fields) const {
  const Options& options = sink_->options;
  if (!options.sink || level < options.lowest) return;
  OrderedJson all = fields_;
  for (const auto& [key, value] : fields) all[std::string(key)] = value;
  std::string line;
  if (options.format == Format::kJson) {
    OrderedJson whole{{"ts", options.now()}, {"level", to_string(level)}, {"msg", message}};
    for (const auto& [key, value] : all.items()) {
      if (!whole.contains(key)) whole[key] = value;
    }
    line = dump_line(whole);
  } else {
    line = options.now();
    line.append(" ").append(to_string(level)).append(" ").append(message);
    for (const auto& [key, value] : all.items()) line.append(" ").append(key).append("=").append(value_text(value));
  }
  const MutexLock lock(sink_->mutex);
  options.sink(line);
}

}  // namespace lockstep
