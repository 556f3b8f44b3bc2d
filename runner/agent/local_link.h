// LocalLink: the agent's end of the link to one worker, on the agent's event loop.
//
// Role: decodes incoming lines and passes them to `on_message`; queues outgoing messages, so that the agent never
// blocks. The queue needs no limit: a worker that does not read its replies cannot make further requests.
// Threads: the event loop's only.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "runner/base/line_channel.h"
#include "runner/contract/messages.h"

namespace lockstep {

class LocalLink : public std::enable_shared_from_this<LocalLink> {
 public:
  struct Handlers {
    std::function<void(const WorkerMessage&)> on_message;
    std::function<void(const Error&)> on_bad_line;  // the link is closed after it
  };

  // Takes ownership of `fd`. No handler is called after close(), so handlers may refer to the owner of the link.
  LocalLink(boost::asio::io_context& loop, int fd, Handlers handlers);

  // Waits for the next bytes; call once.
  void start();
  void send(const AgentMessage& message);
  // Handles what the worker wrote before it ended; called once it is reaped, before close().
  void drain();
  void close();

 private:
  bool read_available();
  void write_more();
  void handle(std::string_view bytes);

  boost::asio::local::stream_protocol::socket socket_;
  Handlers handlers_;
  LineSplitter splitter_;
  std::array<char, 65536> chunk_{};
  std::deque<std::string> queue_;
  bool writing_ = false;
};

}  // namespace lockstep
