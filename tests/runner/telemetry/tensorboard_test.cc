#include "runner/telemetry/tensorboard.h"

#include <gtest/gtest.h>

#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

EventWriterOptions options(const std::string& folder) {
  return {.folder = folder, .host = "host", .pid = 7, .unix_time = 1700000000.9, .resume_step = 0};
}

TEST(Tensorboard, crc32c_is_that_of_rfc_3720) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
}

TEST(Tensorboard, a_file_is_named_by_time_host_and_process) {
  const TemporaryFolder folder;
  const auto writer = EventWriter::create(disk(), options(folder.file("runs/a")));
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  EXPECT_EQ(writer->path(), folder.file("runs/a/events.out.tfevents.1700000000.host.7"));
}

TEST(Tensorboard, a_new_file_sorts_behind_those_that_are_there) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("events.out.tfevents.1800000000.zzz.9")) << "";
  const auto writer = EventWriter::create(disk(), options(folder.path()));
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(writer->path(), folder.file("events.out.tfevents.1800000001.host.7"));
  const auto next = EventWriter::create(disk(), options(folder.path()));
  ASSERT_TRUE(next.ok());
  EXPECT_GT(next->path(), writer->path());
}

TEST(Tensorboard, a_record_is_framed_by_length_and_masked_checksums) {
  const TemporaryFolder folder;
  const auto writer = EventWriter::create(disk(), options(folder.path()));
  ASSERT_TRUE(writer.ok());
  const std::string bytes = contents(writer->path());
  // The first record: Event{wall_time, step 0, file_version "brain.Event:2"} = 9 + 2 + 15 bytes.
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x1a\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(bytes.substr(8 + 4 + 9, 17), std::string("\x10\x00\x1a\x0d"
                                                     "brain.Event:2",
                                                     17));
}

TEST(Tensorboard, a_folder_that_cannot_be_made_is_named) {
  const auto writer = EventWriter::create(disk(), options("/dev/null/runs"));
  ASSERT_FALSE(writer.ok());
  EXPECT_NE(writer.error().message.find("/dev/null"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
