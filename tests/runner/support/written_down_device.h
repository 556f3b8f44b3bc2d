// The streams and events of a device that does not exist.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep {

// Records the calls that it gets, and which of them come from another thread than the first.
class WrittenDownDevice final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
  static constexpr c10::StreamId kTraining = 0;
  static constexpr c10::StreamId kFromPool = 7;
  // Leaked: torch keeps it for ever.
  static WrittenDownDevice& only() {
    static auto* const device = [] {
      auto* const made = new WrittenDownDevice;
      const c10::impl::DeviceGuardImplRegistrar registered(kType, made);
      return made;
    }();
    return *device;
  }

  std::vector<std::string> written_down() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

  [[nodiscard]] c10::DeviceType type() const override { return kType; }
  [[nodiscard]] c10::Device exchangeDevice(c10::Device /*device*/) const override { return {kType, 3}; }
  [[nodiscard]] c10::Device getDevice() const override { return {kType, 3}; }
  void setDevice(c10::Device device) const override { write("device " + std::to_string(device.index())); }
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  [[nodiscard]] c10::Stream getStream(c10::Device device) const override { return stream(current_, device); }
  [[nodiscard]] c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return stream(kFromPool, device);
  }
  [[nodiscard]] c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(std::exchange(current_, to.id()), to.device());
  }
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override { return 4; }
  void record(void** event, const c10::Stream& on, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    *event = &events_;
    write("record on " + std::to_string(on.id()));
  }
  void block(void* /*event*/, const c10::Stream& stream) const override {
    write("block " + std::to_string(stream.id()));
  }
  void synchronizeEvent(void* /*event*/) const override { write("synchronize"); }
  void recordDataPtrOnStream(const c10::DataPtr& /*memory*/, const c10::Stream& stream) const override {
    write("lend to " + std::to_string(stream.id()));
  }

 private:
  static c10::Stream stream(c10::StreamId id, c10::Device device) {
    return c10::Stream(c10::Stream::UNSAFE, {kType, device.index()}, id);
  }
  void write(const std::string& line) const {
    const std::lock_guard lock(mutex_);
    const bool by_owner = std::this_thread::get_id() == owner_;
    lines_.push_back(line + (by_owner ? "" : ", by another thread"));
  }

  const std::thread::id owner_ = std::this_thread::get_id();
  mutable c10::StreamId current_ = kTraining;
  mutable int events_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::string> lines_;
};

}  // namespace lockstep
