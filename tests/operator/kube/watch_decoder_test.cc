#include "operator/kube/watch_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/api/object_meta.h"

namespace lockstep::kube {
namespace {

using ::testing::HasSubstr;
using Type = WatchEvent::Type;

std::string event(const std::string& type, const std::string& name, const std::string& version) {
  const Json object = {{"apiVersion", "v1"},
                       {"kind", "Pod"},
                       {"metadata", {{"name", name}, {"namespace", "a"}, {"resourceVersion", version}}}};
  return Json({{"type", type}, {"object", object}}).dump() + "\n";
}

struct Decoded {
  std::vector<std::pair<Type, std::string>> events;  // type, name@version
  Status status;
};

Decoded decode(const std::vector<std::string>& pieces, size_t line_bytes_max = kWatchLineBytesMax) {
  Decoded decoded;
  WatchDecoder decoder(line_bytes_max);
  for (const std::string& piece : pieces) {
    decoded.status = decoder.decode(piece, [&](WatchEvent e) {
      const api::ObjectMeta meta = api::meta_of(e.object);
      decoded.events.emplace_back(e.type, meta.name + "@" + meta.resource_version);
    });
    if (!decoded.status.ok()) break;
  }
  return decoded;
}

const std::vector<std::pair<Type, std::string>> kFour = {
    {Type::kAdded, "x@1"}, {Type::kModified, "x@2"}, {Type::kDeleted, "x@3"}, {Type::kBookmark, "@4"}};

std::string four_events() {
  return event("ADDED", "x", "1") + event("MODIFIED", "x", "2") + "\n" + event("DELETED", "x", "3") +
         R"({"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"4"}}})" + "\r\n";
}

TEST(WatchDecoder, every_split_of_a_stream_gives_the_same_events) {
  const std::string stream = four_events();
  for (size_t first = 0; first <= stream.size(); ++first) {
    for (size_t second = first; second <= stream.size(); second += 7) {
      const Decoded decoded =
          decode({stream.substr(0, first), stream.substr(first, second - first), stream.substr(second)});
      ASSERT_TRUE(decoded.status.ok()) << decoded.status.error().message;
      ASSERT_EQ(decoded.events, kFour) << first << " " << second;
    }
  }
  std::vector<std::string> bytes;
  for (const char c : stream) bytes.emplace_back(1, c);
  EXPECT_EQ(decode(bytes).events, kFour);
}

TEST(WatchDecoder, a_truncated_event_is_not_delivered) {
  const std::string stream = event("ADDED", "x", "1") + event("MODIFIED", "x", "2");
  const Decoded decoded = decode({stream.substr(0, stream.size() - 1)});
  EXPECT_TRUE(decoded.status.ok());
  EXPECT_EQ(decoded.events.size(), 1U);
}

TEST(WatchDecoder, a_version_that_is_too_old_is_gone) {
  const std::string error =
      R"x({"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",)x"
      R"x("message":"too old resource version: 1 (5)","reason":"Expired","code":410}})x";
  const Decoded decoded = decode({event("ADDED", "x", "1"), error + "\n", event("ADDED", "y", "2")});
  ASSERT_FALSE(decoded.status.ok());
  EXPECT_EQ(decoded.status.error().code, ErrorCode::kGone);
  EXPECT_EQ(decoded.status.error().reason, "Expired");
  EXPECT_THAT(decoded.status.error().message, HasSubstr("410 too old resource version: 1 (5)"));
  EXPECT_EQ(decoded.events.size(), 1U);
}

TEST(WatchDecoder, other_errors_keep_their_code) {
  const auto code_of = [](const std::string& status) {
    return decode({R"({"type":"ERROR","object":)" + status + "}\n"}).status.error().code;
  };
  EXPECT_EQ(code_of(R"({"kind":"Status","code":500,"reason":"InternalError","message":"etcd event received"})"),
            ErrorCode::kRetry);
  EXPECT_EQ(code_of(R"({"kind":"Status","code":429})"), ErrorCode::kRetry);
  EXPECT_EQ(code_of(R"({"kind":"Status","code":403,"reason":"Forbidden"})"), ErrorCode::kForbidden);
}

TEST(WatchDecoder, what_is_no_event_is_corrupt) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"not json", "is not JSON: \"not json\""},
      {R"({"type":"ADDED")", "is not JSON"},
      {"[]", "is not an event with type and object"},
      {"null", "is not an event"},
      {R"({"type":"ADDED"})", "is not an event"},
      {R"({"type":1,"object":{}})", "is not an event"},
      {R"({"type":"ADDED","object":[]})", "is not an event"},
      {R"({"type":"SHOUTED","object":{}})", "has a type that is unknown"},
      {R"({"type":"ADDED","object":{"kind":"Pod"}})", "holds an object without metadata"},
      {"\xff\xfe", "is not JSON"},
      {std::string(100'000, '['), "(100000 bytes)"},
  };
  for (const auto& [line, expected] : cases) {
    const Decoded decoded = decode({line + "\n"});
    ASSERT_FALSE(decoded.status.ok()) << line;
    EXPECT_EQ(decoded.status.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(decoded.status.error().message, HasSubstr(expected));
    EXPECT_LT(decoded.status.error().message.size(), 2000U);
  }
}

// A poisoned object must not end the watch for all others.
TEST(WatchDecoder, an_object_that_is_too_deep_is_an_event_without_that_part) {
  const std::string deep = R"({"type":"ADDED","object":{"metadata":{"name":"x","resourceVersion":"1"},"spec":{"a":)" +
                           std::string(9'900, '[') + std::string(9'900, ']') + "}}}\n";
  const Decoded decoded = decode({deep, event("ADDED", "y", "2")});
  ASSERT_TRUE(decoded.status.ok()) << decoded.status.error().message;
  EXPECT_EQ(decoded.events, (std::vector<std::pair<Type, std::string>>{{Type::kAdded, "x@1"}, {Type::kAdded, "y@2"}}));
}

TEST(WatchDecoder, a_line_without_end_is_refused_at_its_limit) {
  const std::string line = event("ADDED", "x", "1");
  EXPECT_TRUE(decode({line}, line.size() - 1).status.ok());
  EXPECT_EQ(decode({line}, line.size() - 2).status.error().code, ErrorCode::kCorrupt);
  // Also when it never ends, and comes in pieces.
  std::vector<std::string> pieces(20, std::string(10, 'x'));
  EXPECT_EQ(decode(pieces, 100).status.error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace lockstep::kube
