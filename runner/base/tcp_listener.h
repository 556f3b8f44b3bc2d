// open_listener: opens a listening TCP socket for the servers of this project.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>

namespace lockstep {

// One socket for IPv6 and IPv4; on a machine without IPv6, and with `is_loopback`, for IPv4 only. Child processes do
// not inherit it. port 0: any free one. `is_loopback`: on 127.0.0.1. After an error the acceptor's state is undefined;
// address_in_use: another process has the port.
boost::system::error_code open_listener(boost::asio::ip::tcp::acceptor& acceptor, int port, bool is_loopback = false);

}  // namespace lockstep
