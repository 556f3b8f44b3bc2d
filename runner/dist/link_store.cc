#include "runner/dist/link_store.h"

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "runner/dist/fault.h"

namespace lockstep {
namespace {

std::string to_bytes(const std::vector<uint8_t>& value) { return {value.begin(), value.end()}; }
std::vector<uint8_t> from_bytes(const std::string& value) { return {value.begin(), value.end()}; }

class LinkStore final : public c10d::Store {
 public:
  LinkStore(StoreTransport& transport, uint64_t generation, std::chrono::milliseconds timeout)
      : Store(timeout), transport_(transport), generation_(generation) {}

  using c10d::Store::compareSet;
  using c10d::Store::set;

  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<LinkStore>(transport_, generation_, getTimeout());
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    call({.op = StoreOp::kSet, .keys = {key}, .values = {to_bytes(value)}});
  }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    return single_value(
        call({.op = StoreOp::kCompareSet, .keys = {key}, .values = {to_bytes(expected), to_bytes(desired)}}));
  }
  std::vector<uint8_t> get(const std::string& key) override {
    return single_value(call({.op = StoreOp::kGet, .keys = {key}, .timeout = getTimeout()}));
  }
  bool hasExtendedApi() const override { return true; }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    if (keys.empty()) return {};
    const StoreReply reply = call({.op = StoreOp::kGet, .keys = keys, .timeout = getTimeout()});
    if (reply.values.size() != keys.size()) {
      C10_THROW_ERROR(DistStoreError, "the agent's store answered " + std::to_string(keys.size()) + " keys with " +
                                          std::to_string(reply.values.size()) + " values");
    }
    std::vector<std::vector<uint8_t>> values;
    values.reserve(keys.size());
    for (const std::string& value : reply.values) values.push_back(from_bytes(value));
    return values;
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override {
    if (keys.empty()) return;
    StoreRequest request{.op = StoreOp::kSet, .keys = keys};
    for (const std::vector<uint8_t>& value : values) request.values.push_back(to_bytes(value));
    call(std::move(request));
  }
  void append(const std::string& key, const std::vector<uint8_t>& value) override {
    call({.op = StoreOp::kAppend, .keys = {key}, .values = {to_bytes(value)}});
  }
  int64_t add(const std::string& key, int64_t value) override {
    return call({.op = StoreOp::kAdd, .keys = {key}, .amount = value}).number;
  }
  bool deleteKey(const std::string& key) override { return call({.op = StoreOp::kDelete, .keys = {key}}).number != 0; }
  bool check(const std::vector<std::string>& keys) override {
    return call({.op = StoreOp::kCheck, .keys = keys}).number != 0;
  }
  int64_t getNumKeys() override { return call({.op = StoreOp::kNumKeys}).number; }
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    call({.op = StoreOp::kWait, .keys = keys, .timeout = timeout});
  }

 private:
  StoreReply call(StoreRequest request) {
    request.generation = generation_;
    // A longer line would close the connection to the coordinator, in every group again.
    for (const std::string& value : request.values) {
      if (value.size() <= kStoreValueBytesMax) continue;
      throw RunFault(ExitCode::kUsage, "the value of \"" + request.keys.front() + "\" for the other ranks has " +
                                           std::to_string(value.size()) + " bytes, the store takes " +
                                           std::to_string(kStoreValueBytesMax));
    }
    Result<StoreReply> reply = transport_.call(std::move(request));
    if (!reply.ok()) C10_THROW_ERROR(DistNetworkError, reply.error().message);
    if (reply->status == StoreStatus::kTimeout) C10_THROW_ERROR(DistStoreError, "wait timeout: " + reply->message);
    if (reply->status != StoreStatus::kOk) C10_THROW_ERROR(DistStoreError, reply->message);
    return std::move(*reply);
  }
  static std::vector<uint8_t> single_value(const StoreReply& reply) {
    if (reply.values.size() != 1) C10_THROW_ERROR(DistStoreError, "the agent's store answered without a value");
    return from_bytes(reply.values[0]);
  }

  StoreTransport& transport_;
  const uint64_t generation_;
};

}  // namespace

StoreHandle make_link_store(StoreTransport& transport, uint64_t generation, std::chrono::milliseconds timeout) {
  return StoreHandle(c10::make_intrusive<LinkStore>(transport, generation, timeout));
}

}  // namespace lockstep
