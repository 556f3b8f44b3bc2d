// The transport against a server that misbehaves as it is told to, over real sockets and real TLS.
#include "operator/kube/cpprest_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <future>
#include <latch>
#include <set>
#include <thread>

#include "operator/kube/api_error.h"
#include "tests/fake/http_server.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::kube {
namespace {

using fake::CertificateAuthority;
using fake::Exchange;
using fake::Gate;
using fake::HttpServer;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Far longer than anything here takes, far shorter than a test's timeout.
constexpr seconds kLong{30};

std::shared_ptr<HttpTransport> connect(const CpprestTransportOptions& options) {
  Result<std::shared_ptr<HttpTransport>> transport = make_cpprest_transport(options);
  EXPECT_TRUE(transport.ok()) << (transport.ok() ? "" : transport.error().message);
  return transport.ok() ? *transport : nullptr;
}
std::shared_ptr<HttpTransport> connect(const HttpServer& server) { return connect({.url = server.url()}); }

HttpRequest get(const std::string& path) { return {.path = path, .timeout = kLong}; }

std::string seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::to_string(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()) + " s";
}

// --- plain HTTP ---

TEST(CpprestTransport, a_request_arrives_as_it_was_made) {
  fake::Request seen;
  HttpServer server({}, [&](Exchange& exchange) {
    seen = exchange.request();
    exchange.answer(201, R"({"a":1})", {{"X-Thing", "Yes"}});
  });
  const auto transport = connect({.url = server.url() + "/prefix/"});
  const Result<HttpResponse> answer =
      transport->send({.method = "PATCH",
                       .path = "/api/v1/namespaces/a%2Fb/pods",
                       .query = "labelSelector=a%3Db%2Cc%20in%20%28d%29&limit=5",
                       .headers = {{"Content-Type", "application/apply-patch+yaml"}, {"Authorization", "Bearer t"}},
                       .body = R"({"x":"\u00e9"})",
                       .timeout = kLong});
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->status, 201);
  EXPECT_EQ(answer->body, R"({"a":1})");
  EXPECT_EQ(answer->headers.at("x-thing"), "Yes");
  EXPECT_GT(answer->duration.count(), 0);
  EXPECT_EQ(seen.method, "PATCH");
  EXPECT_EQ(seen.path, "/prefix/api/v1/namespaces/a%2Fb/pods");
  EXPECT_EQ(seen.query, "labelSelector=a%3Db%2Cc%20in%20%28d%29&limit=5");
  EXPECT_EQ(seen.headers.at("content-type"), "application/apply-patch+yaml");
  EXPECT_EQ(seen.headers.at("authorization"), "Bearer t");
  EXPECT_EQ(seen.headers.at("host"), "127.0.0.1:" + std::to_string(server.port()));
  EXPECT_EQ(seen.body, R"({"x":"\u00e9"})");
}

TEST(CpprestTransport, every_status_is_an_answer) {
  HttpServer server({}, [](Exchange& exchange) { exchange.answer(std::stoi(exchange.request().path.substr(1)), "b"); });
  const auto transport = connect(server);
  for (const int status : {200, 201, 400, 401, 403, 404, 409, 410, 422, 429, 500, 503}) {
    const Result<HttpResponse> answer = transport->send(get("/" + std::to_string(status)));
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->status, status);
    EXPECT_EQ(answer->body, "b");
  }
  EXPECT_EQ(server.connections(), 1) << "one connection is used again and again";
}

TEST(CpprestTransport, redirects_are_not_followed) {
  HttpServer elsewhere({}, [](Exchange& exchange) { exchange.answer(200, "stolen"); });
  HttpServer server({}, [&](Exchange& exchange) { exchange.answer(302, "", {{"Location", elsewhere.url() + "/x"}}); });
  EXPECT_EQ(connect(server)->send(get("/"))->status, 302);
  EXPECT_EQ(elsewhere.connections(), 0);
}

TEST(CpprestTransport, header_values_cannot_begin_another_header) {
  HttpServer server({}, [](Exchange& exchange) { exchange.answer(200, ""); });
  HttpRequest request = get("/");
  request.headers["Authorization"] = "Bearer t\r\nX-Other: 1";
  const Result<HttpResponse> answer = connect(server)->send(request);
  EXPECT_EQ(answer.error().code, ErrorCode::kInvalid);
  EXPECT_EQ(server.requests(), 0);
}

TEST(CpprestTransport, a_path_that_is_not_encoded_is_refused) {
  HttpServer server({}, [](Exchange& exchange) { exchange.answer(200, ""); });
  EXPECT_EQ(connect(server)->send(get("/a b")).error().code, ErrorCode::kInvalid);
}

TEST(CpprestTransport, a_refused_connection_says_so_and_that_nothing_was_sent) {
  uint16_t port = 0;
  {
    HttpServer server({}, [](Exchange&) {});
    port = server.port();
  }
  const std::string url = "http://127.0.0.1:" + std::to_string(port);
  const Result<HttpResponse> answer = connect({.url = url})->send(get("/"));
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(answer.error().reason, kReasonNotConnected);
  EXPECT_EQ(answer.error().message, url + ": cannot connect: connection refused, or host unreachable");
}

TEST(CpprestTransport, a_name_that_does_not_exist_says_so) {
  const Result<HttpResponse> answer = connect({.url = "http://nowhere.invalid:1"})->send(get("/"));
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().reason, kReasonNotConnected);
  EXPECT_THAT(answer.error().message, HasSubstr("its name cannot be resolved"));
}

TEST(CpprestTransport, an_address_of_ipv6_works) {
  if (!std::filesystem::exists("/proc/net/if_inet6")) GTEST_SKIP() << "no IPv6 on this machine";
  std::string host;
  const CertificateAuthority authority("ca");
  HttpServer server({.address = "::1", .certificate = authority.issue({.addresses = {"::1"}})},
                    [&](Exchange& exchange) {
                      host = exchange.request().headers.at("host");
                      exchange.answer(200, "six");
                    });
  const auto transport = connect({.url = server.url(), .tls = {.authority = {"", authority.certificate_pem()}}});
  const Result<HttpResponse> answer = transport->send(get("/"));
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->body, "six");
  EXPECT_EQ(host, "[::1]:" + std::to_string(server.port()));
}

TEST(CpprestTransport, an_answer_that_never_ends_meets_the_deadline_of_the_whole_exchange) {
  Gate over;
  HttpServer server({}, [&](Exchange& exchange) {
    exchange.begin(200);
    // A drop now and then keeps an inactivity timer happy for ever.
    while (exchange.chunk("x") && !over.wait(milliseconds(20))) {
    }
  });
  HttpRequest request = get("/slow");
  request.timeout = milliseconds(200);
  const Result<HttpResponse> answer = connect(server)->send(request);
  over.open();
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(answer.error().message, "GET " + server.url() + "/slow: no whole answer within 0.200 s");
}

TEST(CpprestTransport, bodies_come_whole_however_they_are_cut) {
  const std::string body = std::string(300'000, 'x') + "end";
  HttpServer server({}, [&](Exchange& exchange) {
    if (exchange.request().path == "/whole") return exchange.answer(200, body);
    if (exchange.request().path == "/nothing") return exchange.answer(204, "");
    if (exchange.request().path == "/until-closed") {
      exchange.raw("HTTP/1.1 200 OK\r\n\r\n" + body);
      return exchange.cut();
    }
    exchange.begin(200);
    for (size_t i = 0; i < body.size(); i += 777) exchange.chunk(std::string_view(body).substr(i, 777));
    exchange.end();
  });
  const auto transport = connect(server);
  for (const char* path : {"/whole", "/chunks", "/until-closed"}) {
    const Result<HttpResponse> answer = transport->send(get(path));
    ASSERT_TRUE(answer.ok()) << path << answer.error().message;
    EXPECT_EQ(answer->body, body) << path;
  }
  EXPECT_EQ(transport->send(get("/nothing"))->status, 204);
}

TEST(CpprestTransport, half_an_answer_is_an_error) {
  HttpServer server({}, [&](Exchange& exchange) {
    const std::string& path = exchange.request().path;
    if (path == "/length") exchange.raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"half\":");
    if (path == "/chunk") exchange.raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{\"half\":");
    if (path == "/headers") exchange.raw("HTTP/1.1 200 OK\r\nContent-Le");
    if (path == "/garbage") exchange.raw("SSH-2.0-OpenSSH_9.2\r\n\r\n");
    exchange.cut();
  });
  const auto transport = connect(server);
  for (const char* path : {"/length", "/chunk", "/headers", "/nothing", "/garbage"}) {
    const Result<HttpResponse> answer = transport->send(get(path));
    ASSERT_FALSE(answer.ok()) << path;
    EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable) << path;
    EXPECT_EQ(answer.error().reason, "") << path;
    EXPECT_THAT(answer.error().message, StartsWith(server.url() + ": the connection broke: ")) << path;
  }
}

TEST(CpprestTransport, an_answer_beyond_the_cap_is_given_up) {
  Gate gone;
  HttpServer server({}, [&](Exchange& exchange) {
    exchange.begin(200);
    while (exchange.chunk(std::string(10'000, 'x'))) {
    }
    gone.open();
  });
  const auto transport = connect({.url = server.url(), .body_bytes_max = 1'000'000});
  const Result<HttpResponse> answer = transport->send(get("/big"));
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(answer.error().message, HasSubstr("the answer is larger than 1000000 bytes"));
  EXPECT_TRUE(gone.wait()) << "the connection was closed";
}

TEST(CpprestTransport, an_idle_connection_that_the_server_closed_is_replaced) {
  HttpServer server({}, [](Exchange& exchange) { exchange.answer(200, exchange.request().body); });
  const auto transport = connect(server);
  // Without a body the library itself sends it again; with one it may only notice while it writes that body.
  for (int i = 0; i < 20; ++i) {
    HttpRequest request = get("/");
    request.method = i % 2 == 0 ? "POST" : "GET";
    request.body = i % 2 == 0 ? std::string(1000, 'b') : "";
    Result<HttpResponse> answer = transport->send(request);
    if (!answer.ok()) {
      EXPECT_EQ(request.method, "POST") << answer.error().message;
      EXPECT_EQ(answer.error().reason, kReasonNotConnected) << answer.error().message;
      answer = transport->send(request);
    }
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->body, request.body);
    server.close_idle_connections();
  }
}

TEST(CpprestTransport, where_one_idle_connection_is_dead_the_others_are_not_tried) {
  std::latch together(8);
  HttpServer server({}, [&](Exchange& exchange) {
    if (exchange.request().path == "/together") together.arrive_and_wait();
    exchange.answer(200, exchange.request().body);
  });
  const auto transport = connect(server);
  const std::vector<HttpRequest> eight(8, get("/together"));
  for (const auto& answer : transport->send_all(eight, 8, {})) EXPECT_TRUE(answer.ok());
  EXPECT_EQ(server.connections(), 8);
  server.close_idle_connections();
  HttpRequest request = get("/");
  request.method = "POST";
  request.body = std::string(1000, 'b');
  if (const auto first = transport->send(request); !first.ok()) {
    EXPECT_EQ(first.error().reason, kReasonNotConnected);
    EXPECT_TRUE(transport->send(request).ok());
  }
}

// A load balancer that forgets its connections, a machine that is gone: nobody closes them.
TEST(CpprestTransport, where_one_connection_has_fallen_silent_the_others_are_not_tried) {
  std::latch together(4);
  std::atomic<bool> is_silent = false;
  HttpServer server({}, [&](Exchange& exchange) {
    if (exchange.request().path == "/together") together.arrive_and_wait();
    if (is_silent && exchange.request().connection <= 4) {
      exchange.wait_for_client_to_go();
    } else {
      exchange.answer(200, "");
    }
  });
  const auto transport = connect(server);
  const std::vector<HttpRequest> four(4, get("/together"));
  for (const auto& answer : transport->send_all(four, 4, {})) EXPECT_TRUE(answer.ok());
  ASSERT_EQ(server.connections(), 4);
  is_silent = true;
  HttpRequest request = get("/");
  request.timeout = milliseconds(200);
  EXPECT_FALSE(transport->send(request).ok());
  request.timeout = std::chrono::seconds(30);
  EXPECT_TRUE(transport->send(request).ok());
}

TEST(CpprestTransport, one_thread_works_for_all_transports) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  {
    HttpServer server({}, [](Exchange& exchange) { exchange.answer(200, ""); });
    const auto one = connect(server);
    const auto other = connect(server);
    EXPECT_TRUE(one->send(get("/")).ok());
    EXPECT_TRUE(other->send(get("/")).ok());
  }
  // This one, the pool's, the resolver's, and that of a sanitizer; the library's own choice would be 40.
  EXPECT_LE(threads(), 4);
}

// --- many at once ---

TEST(CpprestTransport, two_hundred_requests_in_parallel_keep_their_order_and_their_bound) {
  constexpr int kInFlightMax = 16;
  std::atomic<int> under_way{0};
  std::atomic<int> most{0};
  std::latch all_places_taken(kInFlightMax);
  HttpServer server({}, [&](Exchange& exchange) {
    const int now = ++under_way;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    // The first ones wait for each other, which proves that so many run at a time.
    if (std::stoi(exchange.request().body) < kInFlightMax) all_places_taken.arrive_and_wait();
    --under_way;
    exchange.answer(201, "answer to " + exchange.request().body);
  });
  std::vector<HttpRequest> requests;
  for (int i = 0; i < 200; ++i) {
    requests.push_back({.method = "POST", .path = "/", .body = std::to_string(i), .timeout = kLong});
  }
  const auto answers = connect(server)->send_all(requests, kInFlightMax, {});
  ASSERT_EQ(answers.size(), 200U);
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].ok()) << answers[i].error().message;
    EXPECT_EQ(answers[i]->body, "answer to " + std::to_string(i));
  }
  EXPECT_EQ(most, kInFlightMax);
  EXPECT_EQ(server.requests(), 200);
  EXPECT_LE(server.connections(), kInFlightMax);
}

TEST(CpprestTransport, of_many_those_that_are_not_under_way_are_not_sent_once_it_is_told_to_stop) {
  std::stop_source stop;
  HttpServer server({}, [&](Exchange& exchange) {
    if (exchange.request().path == "/2") stop.request_stop();
    exchange.answer(201, "");
  });
  std::vector<HttpRequest> requests;
  for (int i = 0; i < 100; ++i) requests.push_back(get("/" + std::to_string(i)));
  const auto answers = connect(server)->send_all(requests, 1, stop.get_token());
  for (size_t i = 0; i < answers.size(); ++i) {
    if (i <= 2) {
      EXPECT_TRUE(answers[i].ok()) << i;
    } else {
      EXPECT_EQ(answers[i].error().code, ErrorCode::kCancelled) << i;
    }
  }
  EXPECT_EQ(server.requests(), 3);
}

TEST(CpprestTransport, of_many_one_may_fail_alone) {
  HttpServer server({}, [](Exchange& exchange) {
    if (exchange.request().path == "/3") return exchange.cut();
    if (exchange.request().path == "/4") {
      exchange.wait_for_client_to_go();
      return exchange.cut();
    }
    exchange.answer(200, exchange.request().path);
  });
  std::vector<HttpRequest> requests;
  for (int i = 0; i < 10; ++i) requests.push_back(get("/" + std::to_string(i)));
  requests[4].timeout = milliseconds(300);
  requests[5].path = "/not encoded";
  const auto answers = connect(server)->send_all(requests, 3, {});
  for (size_t i = 0; i < answers.size(); ++i) {
    if (i == 3) {
      EXPECT_EQ(answers[i].error().code, ErrorCode::kUnavailable);
    } else if (i == 4) {
      EXPECT_THAT(answers[i].error().message, HasSubstr("within 0.300 s"));
    } else if (i == 5) {
      EXPECT_EQ(answers[i].error().code, ErrorCode::kInvalid);
    } else {
      EXPECT_EQ(answers[i]->body, "/" + std::to_string(i));
    }
  }
  EXPECT_TRUE(connect(server)->send_all({}, 3, {}).empty());
}

TEST(CpprestTransport, many_threads_may_send_at_once) {
  HttpServer server({}, [](Exchange& exchange) { exchange.answer(200, exchange.request().path); });
  const auto transport = connect(server);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string path = "/" + std::to_string(t) + "/" + std::to_string(i);
        const Result<HttpResponse> answer = transport->send(get(path));
        ASSERT_TRUE(answer.ok()) << answer.error().message;
        EXPECT_EQ(answer->body, path);
      }
    });
  }
}

// --- streams ---

TEST(CpprestTransport, a_stream_hands_over_what_arrives_when_it_arrives) {
  Gate first_seen;
  HttpServer server({}, [&](Exchange& exchange) {
    exchange.begin(200, {{"X-A", "b"}});
    exchange.chunk("first\n");
    // Only sent once the client has the first one in its hands.
    ASSERT_TRUE(first_seen.wait());
    exchange.chunk("sec");
    exchange.chunk("ond\n");
    exchange.end();
  });
  std::string seen;
  const std::thread::id caller = std::this_thread::get_id();
  const Result<HttpResponse> end = connect(server)->stream(get("/"),
                                                           [&](std::string_view bytes) {
                                                             EXPECT_EQ(std::this_thread::get_id(), caller);
                                                             seen.append(bytes);
                                                             if (seen == "first\n") first_seen.open();
                                                             return true;
                                                           },
                                                           {});
  ASSERT_TRUE(end.ok()) << end.error().message;
  EXPECT_EQ(end->status, 200);
  EXPECT_EQ(end->headers.at("x-a"), "b");
  EXPECT_EQ(end->body, "");
  EXPECT_EQ(seen, "first\nsecond\n");
}

TEST(CpprestTransport, a_stream_that_is_cut_ends_like_any_other) {
  HttpServer server({}, [&](Exchange& exchange) {
    exchange.begin(200);
    exchange.chunk("one\n");
    if (exchange.request().path == "/in-a-chunk") exchange.raw("64\r\ntwo");
    exchange.cut();
  });
  for (const char* path : {"/between", "/in-a-chunk"}) {
    std::string seen;
    const auto end =
        connect(server)->stream(get(path), [&](std::string_view bytes) { return seen.append(bytes), true; }, {});
    ASSERT_TRUE(end.ok()) << end.error().message;
    EXPECT_THAT(seen, StartsWith("one\n")) << path;
  }
}

TEST(CpprestTransport, a_stream_that_is_refused_has_its_body_in_the_answer) {
  HttpServer server({}, [&](Exchange& exchange) { exchange.answer(410, "too old", {{"Retry-After", "1"}}); });
  bool called = false;
  const auto end = connect(server)->stream(get("/"), [&](std::string_view) { return called = true; }, {});
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->status, 410);
  EXPECT_EQ(end->body, "too old");
  EXPECT_EQ(end->headers.at("retry-after"), "1");
  EXPECT_FALSE(called);
}

TEST(CpprestTransport, a_stream_is_ended_by_its_reader) {
  Gate gone;
  HttpServer server({}, [&](Exchange& exchange) {
    exchange.begin(200);
    exchange.chunk("enough\n");
    if (exchange.wait_for_client_to_go()) gone.open();
  });
  const auto end = connect(server)->stream(get("/"), [](std::string_view) { return false; }, {});
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->status, 200);
  EXPECT_TRUE(gone.wait()) << "the connection was closed";
}

TEST(CpprestTransport, a_stream_may_be_quiet_up_to_its_time_out_and_no_longer) {
  Gate over;
  HttpServer server({}, [&](Exchange& exchange) {
    exchange.begin(200);
    // In all longer than the time-out, each pause far shorter.
    for (int i = 0; i < 9; ++i) {
      exchange.chunk("beat\n");
      over.wait(milliseconds(400));
    }
    exchange.wait_for_client_to_go();
  });
  HttpRequest request = get("/");
  request.timeout = seconds(3);
  std::string seen;
  const auto begin = std::chrono::steady_clock::now();
  const auto end =
      connect(server)->stream(request, [&](std::string_view bytes) { return seen.append(bytes), true; }, {});
  ASSERT_TRUE(end.ok()) << end.error().message;
  EXPECT_EQ(end->status, 200);
  EXPECT_EQ(seen, "beat\nbeat\nbeat\nbeat\nbeat\nbeat\nbeat\nbeat\nbeat\n");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 8 * milliseconds(400) + request.timeout);
}

TEST(CpprestTransport, a_stream_without_an_answer_meets_its_time_out) {
  HttpServer server({}, [&](Exchange& exchange) { exchange.wait_for_client_to_go(); });
  HttpRequest request = get("/");
  request.timeout = milliseconds(100);
  const auto end = connect(server)->stream(request, [](std::string_view) { return true; }, {});
  EXPECT_THAT(end.error().message, HasSubstr("no answer within 0.100 s"));
}

TEST(CpprestTransport, a_stop_token_ends_an_idle_stream_at_once) {
  Gate idle;
  HttpServer server({}, [&](Exchange& exchange) {
    exchange.begin(200);
    exchange.chunk("x");
    exchange.wait_for_client_to_go();
  });
  const auto transport = connect(server);
  std::stop_source stop;
  auto end = std::async(std::launch::async, [&] {
    return transport->stream(
        get("/"), [&](std::string_view) { return idle.open(), true; }, stop.get_token());
  });
  ASSERT_TRUE(idle.wait());
  const auto begin = std::chrono::steady_clock::now();
  stop.request_stop();
  const Result<HttpResponse> result = end.get();
  EXPECT_EQ(result.error().code, ErrorCode::kCancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong / 3) << seconds_since(begin);
  EXPECT_EQ(transport
                ->stream(
                    get("/"), [](std::string_view) { return true; }, stop.get_token())
                .error()
                .code,
            ErrorCode::kCancelled);
}

TEST(CpprestTransport, a_reader_that_is_busy_stops_the_server) {
  std::atomic<size_t> sent{0};
  constexpr size_t kAll = size_t{64} << 20;
  HttpServer server({}, [&](Exchange& exchange) {
    exchange.begin(200);
    const std::string piece(16'384, 'x');
    while (sent < kAll && exchange.chunk(piece)) sent += piece.size();
    exchange.end();
  });
  size_t received = 0;
  size_t most_ahead = 0;
  const auto end =
      connect(server)->stream(get("/"),
                              [&](std::string_view bytes) {
                                received += bytes.size();
                                // The server stands still once sockets and buffer are full: wait until it does.
                                if (received < size_t{8} << 20) {
                                  for (size_t before = 0, now = sent; before != now; before = now, now = sent) {
                                    ::poll(nullptr, 0, 20);  // a look every 20 ms
                                  }
                                }
                                const size_t sent_by_now = sent;  // counted after it was sent: it may be behind
                                if (sent_by_now > received) most_ahead = std::max(most_ahead, sent_by_now - received);
                                return true;
                              },
                              {});
  ASSERT_TRUE(end.ok()) << end.error().message;
  EXPECT_EQ(received, kAll);
  EXPECT_LT(most_ahead, size_t{24} << 20) << "the buffer of the transport and those of the sockets";
}

TEST(CpprestTransport, shutting_down_ends_everything_and_refuses_what_comes_after) {
  constexpr int kStreams = 8;
  std::latch idle(kStreams + 2);
  HttpServer server({}, [&](Exchange& exchange) {
    if (exchange.request().path == "/stream") {
      exchange.begin(200);
      exchange.chunk("x");
    }
    idle.count_down();
    exchange.wait_for_client_to_go();
  });
  const auto transport = connect(server);
  std::vector<std::future<ErrorCode>> ends;
  for (int i = 0; i < kStreams; ++i) {
    ends.push_back(std::async(std::launch::async, [&] {
      return transport->stream(get("/stream"), [](std::string_view) { return true; }, {}).error().code;
    }));
  }
  ends.push_back(std::async(std::launch::async, [&] { return transport->send(get("/send")).error().code; }));
  ends.push_back(std::async(std::launch::async, [&] {
    const std::vector<HttpRequest> requests(3, get("/all"));
    const auto answers = transport->send_all(requests, 1, {});
    for (const auto& answer : answers) EXPECT_EQ(answer.error().code, ErrorCode::kCancelled);
    return answers.back().error().code;
  }));
  idle.wait();
  const auto begin = std::chrono::steady_clock::now();
  transport->shut_down();
  for (auto& end : ends) EXPECT_EQ(end.get(), ErrorCode::kCancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong / 3) << seconds_since(begin);
  EXPECT_EQ(transport->send(get("/")).error().code, ErrorCode::kCancelled);
  transport->shut_down();
}

TEST(CpprestTransport, streams_opened_and_cancelled_leave_nothing_behind) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const CertificateAuthority authority("ca");
  HttpServer server({.certificate = authority.issue({.addresses = {"127.0.0.1"}})}, [&](Exchange& exchange) {
    exchange.begin(200);
    exchange.chunk("x");
    exchange.wait_for_client_to_go();
  });
  const auto transport = connect({.url = server.url(), .tls = {.authority = {"", authority.certificate_pem()}}});
  const auto open_and_cancel = [&] {
    std::stop_source stop;
    const auto end = transport->stream(
        get("/"), [&](std::string_view) { return stop.request_stop(), true; }, stop.get_token());
    EXPECT_EQ(end.error().code, ErrorCode::kCancelled);
  };
  open_and_cancel();
  const auto before = descriptors();
  for (int i = 0; i < 100; ++i) open_and_cancel();
  // The fake server keeps its side until its end: one descriptor per connection. Ours must be gone, in a while.
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  while (descriptors() > before + 100 + 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_LE(descriptors(), before + 100 + 2);
}

// --- TLS ---

class TransportOverTls : public ::testing::Test {
 protected:
  std::unique_ptr<HttpServer> serve(HttpServer::Options options) {
    return std::make_unique<HttpServer>(std::move(options), [](Exchange& exchange) {
      exchange.answer(200, exchange.request().client_name + "|" + exchange.request().server_name);
    });
  }
  std::unique_ptr<HttpServer> serve(const fake::CertificateSpec& spec) {
    return serve({.certificate = authority_.issue(spec)});
  }
  [[nodiscard]] TlsOptions trusting() const { return {.authority = {"", authority_.certificate_pem()}}; }

  static std::string failure(const std::string& url, const TlsOptions& tls) {
    const Result<HttpResponse> answer = connect({.url = url, .tls = tls})->send(get("/"));
    if (answer.ok()) return "accepted";
    EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(answer.error().reason, kReasonTlsRefused);
    EXPECT_THAT(answer.error().message, StartsWith(url + ": TLS: "));
    return answer.error().message.substr(url.size() + 2);
  }

  const CertificateAuthority authority_{"the authority"};
  const fake::CertificateSpec local_{.dns_names = {"localhost", "*.example.com"}, .addresses = {"127.0.0.1"}};
};

TEST_F(TransportOverTls, a_certificate_of_the_authority_is_accepted_for_its_names) {
  const auto server = serve(local_);
  EXPECT_EQ(connect({.url = server->url(), .tls = trusting()})->send(get("/"))->body, "|");
  const auto by_name = connect({.url = server->url("localhost"), .tls = trusting()})->send(get("/"));
  ASSERT_TRUE(by_name.ok()) << by_name.error().message;
  EXPECT_EQ(by_name->body, "|localhost") << "a name is sent along, an address is not";
}

TEST_F(TransportOverTls, an_authority_in_between_is_followed_and_may_be_trusted_itself) {
  const CertificateAuthority between = authority_.issue_authority("between");
  const auto server = serve({.certificate = between.issue(local_)});
  EXPECT_EQ(failure(server->url(), trusting()), "accepted");
  EXPECT_EQ(failure(server->url(), {.authority = {"", between.certificate_pem()}}), "accepted");
}

TEST_F(TransportOverTls, an_unknown_authority_is_named) {
  const CertificateAuthority other("somebody else");
  const auto server = serve({.certificate = other.issue(local_)});
  EXPECT_EQ(
      failure(server->url(), trusting()),
      "TLS: the server's certificate (CN=server) is signed by an unknown authority (CN=somebody else); trusted is "
      "certificate-authority-data");
  EXPECT_THAT(failure(server->url(), {}), HasSubstr("trusted is what this system trusts"));
}

TEST_F(TransportOverTls, the_systems_authorities_are_not_trusted_beside_ours) {
  // OpenSSL takes SSL_CERT_FILE for the system's bundle.
  const CertificateAuthority other("of the system");
  const TemporaryFolder folder;
  const std::string bundle = folder.write("bundle.pem", other.certificate_pem());
  const auto server = serve({.certificate = other.issue(local_)});
  ::setenv("SSL_CERT_FILE", bundle.c_str(), 1);
  EXPECT_EQ(failure(server->url(), {}), "accepted") << "the bundle is read";
  EXPECT_THAT(failure(server->url(), trusting()), HasSubstr("unknown authority"));
  ::unsetenv("SSL_CERT_FILE");
}

TEST_F(TransportOverTls, expired_and_future_certificates_are_dated) {
  fake::CertificateSpec expired = local_;
  expired.valid_from = std::chrono::hours(-48);
  expired.valid_until = std::chrono::hours(-24);
  const auto old_server = serve(expired);
  EXPECT_THAT(failure(old_server->url(), trusting()),
              AllOf(StartsWith("TLS: the server's certificate (CN=server) has expired, on "), HasSubstr("GMT")));
  fake::CertificateSpec future = local_;
  future.valid_from = std::chrono::hours(24);
  future.valid_until = std::chrono::hours(48);
  const auto early_server = serve(future);
  EXPECT_THAT(failure(early_server->url(), trusting()), HasSubstr("is not valid before"));
}

TEST_F(TransportOverTls, a_wrong_name_is_told_with_the_right_ones) {
  const auto server = serve({.dns_names = {"api.example.com"}, .addresses = {"10.0.0.1", "fd00::1"}});
  EXPECT_EQ(
      failure(server->url(), trusting()),
      "TLS: the server's certificate (CN=server) is for api.example.com, 10.0.0.1, fd00::1, not for 127.0.0.1; use "
      "one of these names in the server's address, or as tls-server-name");
  EXPECT_THAT(failure(server->url("localhost"), trusting()), HasSubstr("not for localhost"));
}

TEST_F(TransportOverTls, a_common_name_is_no_name) {
  const auto server = serve({.common_name = "localhost"});
  EXPECT_THAT(failure(server->url("localhost"), trusting()), HasSubstr("is for no name at all, not for localhost"));
}

TEST_F(TransportOverTls, another_name_can_be_asked_for) {
  const auto server = serve(fake::CertificateSpec{.dns_names = {"kubernetes", "*.example.com"}});
  TlsOptions tls = trusting();
  tls.server_name = "kubernetes";
  EXPECT_EQ(connect({.url = server->url(), .tls = tls})->send(get("/"))->body, "|kubernetes");
  tls.server_name = "api.example.com";
  EXPECT_EQ(failure(server->url(), tls), "accepted");
  tls.server_name = "a.b.example.com";
  EXPECT_THAT(failure(server->url(), tls), HasSubstr("not for a.b.example.com"));
}

TEST_F(TransportOverTls, verification_can_be_turned_off) {
  const CertificateAuthority other("somebody else");
  const auto server = serve({.certificate = other.issue({.dns_names = {"elsewhere"}})});
  EXPECT_EQ(failure(server->url(), {.skip_verify = true}), "accepted");
}

TEST_F(TransportOverTls, a_client_certificate_is_shown) {
  const auto server =
      serve({.certificate = authority_.issue(local_), .client_authority_pem = authority_.certificate_pem()});
  const fake::CertificateAndKey client = authority_.issue({.common_name = "operator"});
  TlsOptions tls = trusting();
  tls.client_certificate.text = client.certificate_pem;
  tls.client_key.text = client.key_pem;
  EXPECT_EQ(connect({.url = server->url(), .tls = tls})->send(get("/"))->body, "operator|");
}

TEST_F(TransportOverTls, a_client_certificate_that_is_missing_or_refused_is_told_apart) {
  const CertificateAuthority other("somebody else");
  const fake::CertificateAndKey foreign = other.issue({.common_name = "stranger"});
  for (const bool tls12 : {true, false}) {
    const auto server = serve({.certificate = authority_.issue(local_),
                               .client_authority_pem = authority_.certificate_pem(),
                               .tls12_only = tls12});
    TlsOptions tls = trusting();
    // TLS 1.2 has no word of its own for a certificate that is missing.
    EXPECT_THAT(failure(server->url(), tls),
                HasSubstr(tls12 ? "the server ended the handshake: handshake failure"
                                : "the server wants a client certificate, and we have none"));
    tls.client_certificate.text = foreign.certificate_pem;
    tls.client_key.text = foreign.key_pem;
    EXPECT_THAT(failure(server->url(), tls), HasSubstr("the server refuses our client certificate: unknown CA"));
  }
}

TEST_F(TransportOverTls, a_server_without_tls_is_no_refusal) {
  HttpServer server({}, [](Exchange& exchange) { exchange.answer(200, ""); });
  const std::string url = "https://127.0.0.1:" + std::to_string(server.port());
  HttpRequest request = get("/");
  request.timeout = milliseconds(500);  // a server that waits for a line of HTTP may wait for long
  const Result<HttpResponse> answer = connect({.url = url, .tls = trusting()})->send(request);
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable);
}

TEST_F(TransportOverTls, certificates_that_cannot_be_used_are_refused_at_the_beginning) {
  const TemporaryFolder folder;
  const fake::CertificateAndKey one = authority_.issue(local_);
  const fake::CertificateAndKey other = authority_.issue(local_);
  const std::string cut = one.certificate_pem.substr(0, one.certificate_pem.size() / 2);
  struct Case {
    TlsOptions tls;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {{.authority = {folder.path() + "/nothing", ""}}, "certificate-authority: open " + folder.path() + "/nothing"},
      {{.authority = {"", "rubbish"}}, "certificate-authority: holds no certificate; expected PEM"},
      {{.authority = {folder.write("ca", one.key_pem), ""}}, "/ca: holds no certificate"},
      {{.authority = {"", one.certificate_pem + cut}},
       "certificate-authority: holds a certificate that cannot be read"},
      {{.client_certificate = {"", one.certificate_pem}, .client_key = {"", other.key_pem}},
       "client-certificate and client-key do not belong together"},
      {{.client_certificate = {"", one.certificate_pem}, .client_key = {"", "rubbish"}},
       "client-key: holds no private key"},
      {{.client_certificate = {"", one.certificate_pem},
        .client_key = {"", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGb\n-----END ENCRYPTED PRIVATE KEY-----\n"}},
       "client-key: is encrypted; expected a key without a password"},
  };
  for (const Case& one_case : cases) {
    const auto transport = make_cpprest_transport({.url = "https://127.0.0.1:1", .tls = one_case.tls});
    ASSERT_FALSE(transport.ok()) << one_case.expected;
    EXPECT_THAT(transport.error().message, HasSubstr(one_case.expected));
  }
  EXPECT_EQ(make_cpprest_transport({.url = "127.0.0.1"}).error().code, ErrorCode::kInvalid);
}

TEST_F(TransportOverTls, rotated_files_are_used_for_new_connections_and_old_ones_are_dropped) {
  const TemporaryFolder folder;
  const auto server =
      serve({.certificate = authority_.issue(local_), .client_authority_pem = authority_.certificate_pem()});
  const fake::CertificateAndKey first = authority_.issue({.common_name = "first"});
  TlsOptions tls;
  tls.authority.file = folder.write("ca.crt", authority_.certificate_pem());
  tls.client_certificate.file = folder.write("tls.crt", first.certificate_pem);
  tls.client_key.file = folder.write("tls.key", first.key_pem);
  const auto transport = connect({.url = server->url(), .tls = tls, .poll_files_every = milliseconds(0)});
  EXPECT_EQ(transport->send(get("/"))->body, "first|");
  EXPECT_EQ(transport->send(get("/"))->body, "first|");
  EXPECT_EQ(server->connections(), 1);

  // Half of a rotation does not fit together: the old pair is used until both are there.
  const fake::CertificateAndKey second = authority_.issue({.common_name = "second"});
  folder.write("tls.key", second.key_pem);
  EXPECT_EQ(transport->send(get("/"))->body, "first|");
  folder.write("tls.crt", second.certificate_pem);
  EXPECT_EQ(transport->send(get("/"))->body, "second|");
  EXPECT_EQ(server->connections(), 2);

  // A new authority, too; broken files are passed over.
  const CertificateAuthority fresh("a new authority");
  server->set_certificate(fresh.issue(local_));
  folder.write("ca.crt", authority_.certificate_pem() + fresh.certificate_pem());
  EXPECT_EQ(transport->send(get("/"))->body, "second|");
  EXPECT_EQ(server->connections(), 3);
  folder.write("ca.crt", "");
  EXPECT_EQ(transport->send(get("/"))->body, "second|");
  EXPECT_EQ(server->connections(), 3);
}

TEST_F(TransportOverTls, requests_in_parallel_each_get_their_own_answer) {
  HttpServer server({.certificate = authority_.issue(local_)},
                    [](Exchange& exchange) { exchange.answer(201, exchange.request().body); });
  std::vector<HttpRequest> requests;
  for (int i = 0; i < 200; ++i) {
    requests.push_back(
        {.method = "POST", .path = "/", .body = std::string(5000, 'x') + std::to_string(i), .timeout = kLong});
  }
  const auto transport = connect({.url = server.url(), .tls = trusting()});
  const auto answers = transport->send_all(requests, 64, {});
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].ok()) << answers[i].error().message;
    EXPECT_EQ(answers[i]->body, requests[i].body);
  }
  EXPECT_LE(server.connections(), 64);
}

}  // namespace
}  // namespace lockstep::kube
