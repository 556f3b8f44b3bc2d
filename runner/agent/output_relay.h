// OutputRelay: reads a worker's output line by line on the agent's event loop.
//
// A program that draws a progress bar (tqdm) ends its pieces with '\r' and writes over them. Of a line that is drawn
// so, what a terminal would show is relayed: what follows the last '\r'. Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>

#include "runner/base/line_channel.h"

namespace lockstep {

class OutputRelay : public std::enable_shared_from_this<OutputRelay> {
 public:
  using OnLine = std::function<void(const std::string&)>;

  // Takes ownership of `fd`, the non-blocking read end of a pipe. `on_unfinished`, if there is one, is called when
  // the line that has not ended shows another text; with an empty one when it has ended.
  OutputRelay(boost::asio::io_context& loop, int fd, OnLine on_line, OnLine on_unfinished = {});

  // Waits for the next bytes; call once.
  void start();
  // Relays what is in the pipe now, including a last line without '\n', and closes it.
  void finish();

 private:
  bool read_available();
  void relay_lines();
  void relay_unfinished();

  boost::asio::posix::stream_descriptor pipe_;
  OnLine on_line_;
  OnLine on_unfinished_;
  std::string unfinished_;  // as it was relayed
  LineSplitter splitter_;
};

}  // namespace lockstep
