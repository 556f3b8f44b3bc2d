// open_listener: a listening TCP socket as our servers want it.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>

namespace lockstep {

// One socket for IPv6 and IPv4; machines without IPv6 get IPv4 alone. Not inherited by child processes. port 0: any
// free one. An error leaves the acceptor as it may be; address_in_use: somebody else has the port.
boost::system::error_code open_listener(boost::asio::ip::tcp::acceptor& acceptor, int port);

}  // namespace lockstep
