#include "runner/base/tcp_listener.h"

#include <fcntl.h>

#include <boost/asio/ip/v6_only.hpp>
#include <cstdint>

namespace lockstep {

boost::system::error_code open_listener(boost::asio::ip::tcp::acceptor& acceptor, int port, bool is_loopback) {
  namespace asio = boost::asio;
  using Tcp = asio::ip::tcp;
  boost::system::error_code error;
  for (const Tcp& protocol : {Tcp::v6(), Tcp::v4()}) {
    if (is_loopback && protocol == Tcp::v6()) continue;
    boost::system::error_code ignored;
    acceptor.close(ignored);
    acceptor.open(protocol, error);
    if (error) continue;
    ::fcntl(acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
    acceptor.set_option(asio::socket_base::reuse_address(true), ignored);
    if (protocol == Tcp::v6()) acceptor.set_option(asio::ip::v6_only(false), ignored);
    Tcp::endpoint place(protocol, static_cast<uint16_t>(port));
    if (is_loopback) place.address(asio::ip::address_v4::loopback());
    acceptor.bind(place, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (!error || error == asio::error::address_in_use) return error;
  }
  return error;
}

}  // namespace lockstep
