#include "runner/loop/upload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runner/loop/toy_workload.h"
#include "tests/runner/support/written_down_device.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Its tensors stay on the CPU, whatever the device.
struct StayingToy final : ToyWorkload {
  [[nodiscard]] NamedTensors upload(const HostBatch& batch, at::Device /*device*/) const override {
    ++uploads;
    return ToyWorkload::upload(batch, at::kCPU);
  }
  mutable int uploads = 0;
};

const BatchShare kTwoSentences{.seed = 1, .step = 0, .samples = {3, 4}};
const BatchShare kOneSentence{.seed = 1, .step = 1, .samples = {5}};

TEST(Upload, runs_on_a_stream_of_its_own_which_the_step_that_takes_it_waits_for) {
  WrittenDownDevice& device = WrittenDownDevice::only();
  StayingToy workload;
  Upload upload(workload, c10::Device(WrittenDownDevice::kType, 3));
  static_cast<void>(device.written_down());
  upload.begin(*workload.fetch(kTwoSentences), kTwoSentences);
  EXPECT_THAT(device.written_down(), ElementsAre("record on 7")) << "it waits for nothing that is computed";
  const DeviceBatch batch = upload.take(*workload.fetch(kTwoSentences), kTwoSentences);
  EXPECT_THAT(device.written_down(), ElementsAre("block 0", "lend to 0", "lend to 0"));
  EXPECT_EQ(batch["words_NT"].size(0), 2);
  EXPECT_EQ(batch.share, kTwoSentences);
}

TEST(Upload, of_another_share_is_dropped) {
  StayingToy workload;
  Upload upload(workload, at::kCPU);
  upload.begin(*workload.fetch(kTwoSentences), kTwoSentences);
  EXPECT_EQ(upload.take(*workload.fetch(kOneSentence), kOneSentence)["words_NT"].size(0), 1);
  EXPECT_EQ(workload.uploads, 2);
  upload.begin(*workload.fetch(kTwoSentences), kTwoSentences);
  EXPECT_EQ(upload.take(*workload.fetch(kTwoSentences), kTwoSentences)["words_NT"].size(0), 2);
  EXPECT_EQ(workload.uploads, 3) << "it was begun";
  upload.begin(*workload.fetch(kTwoSentences), kTwoSentences);
  upload.drop();
  EXPECT_EQ(upload.take(*workload.fetch(kTwoSentences), kTwoSentences)["words_NT"].size(0), 2);
  EXPECT_EQ(workload.uploads, 5) << "a new group begins anew, also with an equal share";
}

}  // namespace
}  // namespace lockstep
