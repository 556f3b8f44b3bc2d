// The store over the link, against a transport that keeps the keys in a map.
#include "runner/dist/link_store.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <map>

#include "runner/dist/fault.h"

namespace lockstep {
namespace {

class MapTransport final : public StoreTransport {
 public:
  Result<StoreReply> call(StoreRequest request) override {
    EXPECT_EQ(request.generation, 5U);
    if (gone) return Error{ErrorCode::kGone, "the link to the agent has ended"};
    StoreReply reply;
    switch (request.op) {
      case StoreOp::kSet:
        for (size_t i = 0; i < request.keys.size(); ++i) keys[request.keys[i]] = request.values.at(i);
        break;
      case StoreOp::kAppend:
        reply.number = std::ssize(keys[request.keys.at(0)].append(request.values.at(0)));
        break;
      case StoreOp::kGet:
      case StoreOp::kWait:
        for (const std::string& key : request.keys) {
          if (!keys.contains(key)) return StoreReply{.status = StoreStatus::kTimeout, .message = "no " + key};
        }
        if (request.op == StoreOp::kGet) {
          for (const std::string& key : request.keys) reply.values.push_back(keys[key]);
        }
        break;
      case StoreOp::kAdd:
        reply.number = counter += request.amount;
        break;
      case StoreOp::kCheck:
        reply.number = keys.contains(request.keys.at(0)) ? 1 : 0;
        break;
      case StoreOp::kDelete:
        reply.number = static_cast<int64_t>(keys.erase(request.keys.at(0)));
        break;
      case StoreOp::kNumKeys:
        reply.number = static_cast<int64_t>(keys.size());
        break;
      case StoreOp::kCompareSet:
        if (keys[request.keys.at(0)] == request.values.at(0)) keys[request.keys.at(0)] = request.values.at(1);
        reply.values = {keys[request.keys.at(0)]};
        break;
    }
    return reply;
  }

  std::map<std::string, std::string> keys;
  int64_t counter = 0;
  bool gone = false;
};

TEST(LinkStore, carries_every_operation) {
  MapTransport transport;
  const StoreHandle handle = make_link_store(transport, 5, std::chrono::milliseconds(10));
  c10d::Store& store = *handle.get();
  const std::string binary("a\0\xff", 3);
  store.set("k", binary);
  EXPECT_EQ(store.get_to_str("k"), binary);
  EXPECT_TRUE(store.check({"k"}));
  EXPECT_EQ(store.add("n", 4), 4);
  EXPECT_EQ(store.add("n", 3), 7);
  EXPECT_EQ(store.getNumKeys(), 1);
  EXPECT_EQ(store.compareSet("k", binary, std::string("b")), "b");
  EXPECT_TRUE(store.deleteKey("k"));
  EXPECT_FALSE(store.check({"k"}));
  EXPECT_TRUE(store.hasExtendedApi());
  store.multiSet({"x", "y"}, {{1, 0}, {}});
  store.append("y", {7});
  EXPECT_EQ(store.multiGet({"y", "x"}), (std::vector<std::vector<uint8_t>>{{7}, {1, 0}}));
  EXPECT_TRUE(store.multiGet({}).empty());
  store.multiSet({}, {});
  EXPECT_NO_THROW(store.clone()->set("other", std::string("v")));
}

TEST(LinkStore, refuses_a_value_that_no_message_could_carry) {
  MapTransport transport;
  const StoreHandle handle = make_link_store(transport, 5, std::chrono::milliseconds(10));
  EXPECT_NO_THROW(handle.get()->set("fits", std::string(kStoreValueBytesMax, 'v')));
  try {
    handle.get()->set("sync", std::string(kStoreValueBytesMax + 1, 'v'));
    FAIL() << "it was sent";
  } catch (const std::exception& e) {
    EXPECT_EQ(classify_fault(e).code, ExitCode::kUsage);
    EXPECT_NE(std::string(e.what()).find("\"sync\""), std::string::npos) << e.what();
  }
  EXPECT_FALSE(transport.keys.contains("sync"));
}

TEST(LinkStore, throws_what_c10d_expects_when_keys_do_not_come_or_the_link_ends) {
  MapTransport transport;
  const StoreHandle handle = make_link_store(transport, 5, std::chrono::milliseconds(10));
  EXPECT_THROW(handle.get()->wait({"never"}), c10::DistStoreError);
  transport.gone = true;
  EXPECT_THROW(handle.get()->add("n", 1), c10::DistNetworkError);
}

}  // namespace
}  // namespace lockstep
