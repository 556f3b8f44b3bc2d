#include "runner/agent/termination_log.h"

#include <fcntl.h>
#include <unistd.h>

#include "runner/base/utf8.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

OrderedJson words_with(const Termination& t, const std::string& message) {
  OrderedJson line{{"exitCode", t.exit_code}, {"reason", termination_reason(t.exit_code, t.message)},
                   {"message", message},      {"rank", t.rank},
                   {"step", t.step},          {"generation", t.generation}};
  if (t.job_ended) line["jobEnded"] = true;
  return line;
}

std::string line_with(const Termination& t, const std::string& message) { return dump_line(words_with(t, message)); }

}  // namespace

std::string termination_message(const Termination& t) {
  OrderedJson words = words_with(t, t.message);
  std::string line = dump_line(words);
  if (line.size() <= kTerminationMessageBytesMax) {
    for (const auto& [name, figure] : t.figures.items()) {
      words[name] = figure;
      std::string longer = dump_line(words);
      if (longer.size() > kTerminationMessageBytesMax) break;
      line = std::move(longer);
    }
    return line;
  }
  // Escapes make the line longer than its parts, so the longest beginning of the message that fits is found by
  // bisection.
  size_t fits = 0;
  size_t too_long = t.message.size();
  while (too_long - fits > 1) {
    const size_t middle = fits + (too_long - fits) / 2;
    (line_with(t, cut_utf8(t.message, middle)).size() <= kTerminationMessageBytesMax ? fits : too_long) = middle;
  }
  return line_with(t, cut_utf8(t.message, fits));
}

void write_termination_log(const std::string& path, const Termination& termination) {
  if (path.empty()) return;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;
  const std::string text = termination_message(termination);
  [[maybe_unused]] const ssize_t written = ::write(fd, text.data(), text.size());
  ::close(fd);
}

}  // namespace lockstep
