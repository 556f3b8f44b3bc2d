// The write protocol under death, failure and damage, with the reader's rules as the judge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <utility>

#include "runner/contract/checkpoint_layout.h"
#include "runner/formats/checkpoint_dir.h"
#include "runner/formats/checkpoint_write.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using Fault = FaultFileSystem::Fault;

constexpr int kCallsMax = 500;  // a protocol of more calls than this does not end

const RunIdentity kIdentity{{}, "hash", "sasrec", 1};

CheckpointStamp stamp(uint64_t generation, uint64_t run = 0) { return {.run = run, .generation = generation}; }

CheckpointState state_of(int64_t step, uint64_t generation = 1) {
  CheckpointState state;
  state.workload = "sasrec";
  state.workload_version = 1;
  state.config = {{"lr", "0.001"}};
  state.config_hash = "hash";
  state.step = step;
  state.generation = generation;
  state.lineage = generation;
  state.global_batch = 128;
  state.seed = 42;
  state.build = "0.1.0";
  state.progress = {{"epoch", step / 100}, {"best_metric", 0.1 + 0.2}};
  return state;
}

// Weights that tell the step, so that a mix of two checkpoints is seen.
CheckpointWrite write_of(const std::string& folder, const std::vector<int64_t>& weights, CheckpointState state) {
  CheckpointWrite write;
  write.folder = folder;
  write.state = std::move(state);
  const TensorView view{"w", DType::kI64, {static_cast<int64_t>(weights.size())}, weights.data(), weights.size() * 8};
  write.tensors = {{std::string(kModelFile), {view}}, {std::string(kOptimizerFile), {view}}};
  write.retention = {.keep_last = 2};
  return write;
}

Result<WrittenCheckpoint> write(FileSystem& fs, const std::string& folder, int64_t step, uint64_t generation = 1) {
  const std::vector<int64_t> weights(16, step);
  return write_checkpoint(fs, write_of(folder, weights, state_of(step, generation)));
}

// The step of the newest complete checkpoint, whose weights must be its own; -1 when there is none.
int64_t newest_step(const std::string& folder) {
  PosixFileSystem fs;
  Result<NewestComplete> newest = newest_complete(fs, folder, kIdentity);
  EXPECT_TRUE(newest.ok()) << newest.error().message;
  if (!newest.ok() || !newest->entry) return -1;
  const Result<std::string> bytes = read_checkpoint_file(fs, *newest->entry, std::string(kModelFile));
  EXPECT_TRUE(bytes.ok());
  const int64_t step = newest->entry->step;
  EXPECT_EQ(static_cast<unsigned char>(bytes->back()), 0);
  EXPECT_EQ(static_cast<unsigned char>((*bytes)[bytes->size() - 8]), static_cast<unsigned char>(step & 0xFF));
  return step;
}

class CheckpointProtocol : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = join_path(temporary_.path(), "run");
    ASSERT_TRUE(prepare_checkpoint_folder(posix_, folder_, stamp(1)).ok());
  }
  // Two whole checkpoints, so that the third one's write prunes too.
  void write_two() {
    ASSERT_TRUE(write(posix_, folder_, 10).ok());
    ASSERT_TRUE(write(posix_, folder_, 20).ok());
  }
  std::vector<std::string> names() {
    std::vector<std::string> found;
    const std::vector<DirectoryEntry> entries = *posix_.list(folder_);
    for (const DirectoryEntry& entry : entries) found.push_back(entry.name);
    return found;
  }
  void spoil(const std::string& path, const std::function<void(std::string&)>& change) {
    std::string bytes = *read_file(posix_, path, 1 << 20);
    change(bytes);
    ASSERT_TRUE(write_file(posix_, path, [&](const ByteSink& sink) { return sink(bytes.data(), bytes.size()); }).ok());
  }

  PosixFileSystem posix_;
  TemporaryFolder temporary_;
  std::string folder_;
};

TEST_F(CheckpointProtocol, makes_each_file_durable_before_the_name_and_the_name_before_latest) {
  FaultFileSystem fs(posix_, Fault::kNone, 0);
  ASSERT_TRUE(write(fs, folder_, 10).ok());
  const std::vector<std::string> expected = {"mkdir .tmp-r0-g1-step-00000010",
                                             "open model.safetensors",
                                             "write",
                                             "write",
                                             "fsync",
                                             "close",
                                             "open optimizer.safetensors",
                                             "write",
                                             "write",
                                             "fsync",
                                             "close",
                                             "open state.json",
                                             "write",
                                             "fsync",
                                             "close",
                                             "fsync_directory .tmp-r0-g1-step-00000010",
                                             "rename step-00000010",
                                             "fsync_directory run",
                                             "open .tmp-r0-g1-latest",
                                             "write",
                                             "fsync",
                                             "close",
                                             "rename latest",
                                             "fsync_directory run"};
  EXPECT_EQ(fs.log(), expected);
  EXPECT_EQ(*read_file(posix_, join_path(folder_, "latest"), 100), "step-00000010\n");
}

TEST_F(CheckpointProtocol, survives_writes_that_are_short) {
  FaultFileSystem fs(posix_, Fault::kNone, 0);
  fs.write_short(7);
  ASSERT_TRUE(write(fs, folder_, 10).ok());
  EXPECT_EQ(newest_step(folder_), 10);
}

class DeathAtEveryCall : public ::testing::TestWithParam<Fault> {};

TEST_P(DeathAtEveryCall, leaves_the_newest_complete_one_loadable) {
  PosixFileSystem posix;
  bool ended = false;
  for (int n = 1; n < kCallsMax && !ended; ++n) {
    SCOPED_TRACE(n);
    const TemporaryFolder temporary;
    const std::string& folder = temporary.path();
    ASSERT_TRUE(write(posix, folder, 10).ok());
    ASSERT_TRUE(write(posix, folder, 20).ok());
    FaultFileSystem fs(posix, GetParam(), n);
    bool returned = false;
    try {
      returned = write(fs, folder, 30).ok();
    } catch (const Died&) {
    }
    ended = returned;
    const int64_t newest = newest_step(folder);
    ASSERT_TRUE(newest == 30 || (!returned && newest == 20)) << newest;
    const Result<std::vector<CheckpointEntry>> entries = list_checkpoints(posix, folder);
    ASSERT_TRUE(entries.ok());
    for (const CheckpointEntry& entry : *entries) {
      ASSERT_TRUE(verify_checkpoint(posix, entry.path).ok()) << entry.path << " stands under its name and is not whole";
    }
    // The next generation cleans up, goes on, and nothing temporary is left.
    ASSERT_TRUE(prepare_checkpoint_folder(posix, folder, stamp(2)).ok());
    ASSERT_TRUE(write(posix, folder, 40, 2).ok());
    ASSERT_EQ(newest_step(folder), 40);
    const std::vector<DirectoryEntry> left = *posix.list(folder);
    for (const DirectoryEntry& entry : left) ASSERT_FALSE(entry.name.starts_with(".tmp-")) << entry.name;
  }
  EXPECT_TRUE(ended);
}

INSTANTIATE_TEST_SUITE_P(BeforeAndAfter, DeathAtEveryCall, ::testing::Values(Fault::kDie, Fault::kDieAfter));

TEST(CheckpointDeath, while_a_step_is_redone_leaves_a_whole_one) {
  PosixFileSystem posix;
  bool ended = false;
  for (int n = 1; n < kCallsMax && !ended; ++n) {
    SCOPED_TRACE(n);
    const TemporaryFolder temporary;
    ASSERT_TRUE(write(posix, temporary.path(), 10).ok());
    ASSERT_TRUE(write(posix, temporary.path(), 20).ok());
    FaultFileSystem fs(posix, Fault::kDie, n);
    try {
      ended = write(fs, temporary.path(), 20, 2).ok();  // another lineage: moved aside
    } catch (const Died&) {
    }
    const int64_t newest = newest_step(temporary.path());
    ASSERT_TRUE(newest == 20 || newest == 10) << newest;
  }
  EXPECT_TRUE(ended);
}

struct VolumeFault {
  const char* name;
  Fault fault;
  int errno_value;
};

class VolumeFaultAtEveryCall : public ::testing::TestWithParam<VolumeFault> {};

TEST_P(VolumeFaultAtEveryCall, is_reported_and_leaves_the_older_ones) {
  PosixFileSystem posix;
  bool ended = false;
  for (int n = 1; n < kCallsMax && !ended; ++n) {
    SCOPED_TRACE(n);
    const TemporaryFolder temporary;
    const std::string& folder = temporary.path();
    ASSERT_TRUE(write(posix, folder, 10).ok());
    ASSERT_TRUE(write(posix, folder, 20).ok());
    FaultFileSystem fs(posix, GetParam().fault, n, GetParam().errno_value);
    const Result<WrittenCheckpoint> written = write(fs, folder, 30);
    ended = fs.calls() < n;
    const int64_t newest = newest_step(folder);
    if (written.ok()) {
      ASSERT_EQ(newest, 30);
      // `latest` is written a second time when pruning has made room.
      const bool is_mended = GetParam().fault == Fault::kFailOnce && written->housekeeping_error.empty();
      ASSERT_TRUE(is_mended || (fs.failures() > 0) == !written->housekeeping_error.empty());
      if (is_mended) {
        ASSERT_EQ(*read_file(posix, join_path(folder, "latest"), 100), "step-00000030\n");
      }
    } else {
      ASSERT_EQ(written.error().code, ErrorCode::kUnavailable);
      ASSERT_THAT(written.error().message, HasSubstr("step 30"));
      // Only a parent that cannot be fsynced fails after the rename.
      ASSERT_TRUE(newest == 20 || fs.log().back() == "fsync_directory " + base_name(folder)) << newest;
      ASSERT_TRUE(verify_checkpoint(posix, join_path(folder, "step-00000020")).ok());
    }
    if (!written.ok() && GetParam().errno_value == ENOSPC) {
      ASSERT_FALSE(posix.stat(join_path(folder, ".tmp-r0-g1-step-00000030")).ok()) << "keeps room on a full disk";
    }
  }
  EXPECT_TRUE(ended);
}

INSTANTIATE_TEST_SUITE_P(Volume, VolumeFaultAtEveryCall,
                         ::testing::Values(VolumeFault{"full", Fault::kFailForever, ENOSPC},
                                           VolumeFault{"full_once", Fault::kFailOnce, ENOSPC},
                                           VolumeFault{"read_only", Fault::kFailForever, EROFS},
                                           VolumeFault{"broken", Fault::kFailForever, EIO}),
                         [](const auto& info) { return info.param.name; });

class FullVolume : public CheckpointProtocol {
 protected:
  void SetUp() override {
    CheckpointProtocol::SetUp();
    ASSERT_TRUE(write(posix_, folder_, 10).ok());
    bytes_ = SmallVolume::bytes_in(join_path(folder_, "step-00000010"));
  }
  // A volume with room for so many checkpoints, and for less than a half of one.
  SmallVolume volume_for(uint64_t checkpoints) { return {posix_, folder_, checkpoints * bytes_ + bytes_ / 2}; }
  static Result<WrittenCheckpoint> write_keeping(FileSystem& fs, const std::string& folder, int64_t step,
                                                 const Retention& retention, uint64_t generation = 1) {
    const std::vector<int64_t> weights(16, step);
    CheckpointWrite write = write_of(folder, weights, state_of(step, generation));
    write.retention = retention;
    return write_checkpoint(fs, write);
  }

  uint64_t bytes_ = 0;
};

TEST_F(FullVolume, removes_the_oldest_first_where_it_has_room_for_keep_last_and_no_more) {
  for (const int errno_value : {ENOSPC, EDQUOT}) {
    SmallVolume volume = volume_for(3);
    volume.errno_value = errno_value;
    for (const int64_t step : {20, 30}) {
      ASSERT_EQ(write_keeping(volume, folder_, step, {.keep_last = 3})->housekeeping_error, "");
    }
    const Result<WrittenCheckpoint> written = write_keeping(volume, folder_, 40, {.keep_last = 3});
    ASSERT_TRUE(written.ok()) << written.error().message;
    EXPECT_THAT(written->housekeeping_error,
                HasSubstr("the volume is full: step-00000010 had to be removed before the checkpoint of step 40"));
    EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000020", "step-00000030", "step-00000040"}));
    EXPECT_EQ(*read_file(posix_, join_path(folder_, "latest"), 100), "step-00000040\n");
    for (const int64_t step : {20, 30, 40}) {
      ASSERT_TRUE(remove_tree(posix_, join_path(folder_, step_folder_name(step))).ok());
    }
    ASSERT_TRUE(write(posix_, folder_, 10).ok());
  }
}

TEST_F(FullVolume, never_removes_the_newest_one) {
  for (const int64_t keep_last : {1, 2}) {
    SmallVolume volume = volume_for(1);
    const Result<WrittenCheckpoint> written = write_keeping(volume, folder_, 20, {.keep_last = keep_last});
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000010"}));
    EXPECT_EQ(newest_step(folder_), 10);
  }
}

TEST_F(FullVolume, never_removes_what_retention_keeps_for_good) {
  SmallVolume volume = volume_for(2);
  const Retention retention{.keep_last = 2, .keep_every = 10};
  ASSERT_TRUE(write_keeping(volume, folder_, 25, retention).ok());
  EXPECT_FALSE(write_keeping(volume, folder_, 35, retention).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000010", "step-00000025"}));
}

TEST_F(FullVolume, is_not_cleared_by_an_old_rank_0_that_was_cut_off) {
  SmallVolume volume = volume_for(2);
  ASSERT_TRUE(write_keeping(volume, folder_, 20, {.keep_last = 2}, 2).ok());
  EXPECT_FALSE(write_keeping(volume, folder_, 30, {.keep_last = 2}, 1).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000010", "step-00000020"}));
}

// `latest` is small, but pruning must not wait for it.
TEST_F(FullVolume, has_room_for_latest_once_it_is_pruned) {
  ASSERT_TRUE(write(posix_, folder_, 20).ok());
  class NoRoomOnce final : public ForwardingFileSystem {
   public:
    using ForwardingFileSystem::ForwardingFileSystem;
    Result<FileHandle> open_for_write(const std::string& path) override {
      if (path.ends_with("latest") && !std::exchange(has_failed, true)) return error_of_errno(ENOSPC, "open", path);
      return ForwardingFileSystem::open_for_write(path);
    }
    bool has_failed = false;
  };
  NoRoomOnce fs(posix_);
  EXPECT_EQ(write(fs, folder_, 30)->housekeeping_error, "");
  EXPECT_TRUE(fs.has_failed);
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000020", "step-00000030"}));
  EXPECT_EQ(*read_file(posix_, join_path(folder_, "latest"), 100), "step-00000030\n");
}

TEST_F(CheckpointProtocol, refuses_at_the_start_a_volume_whose_folders_cannot_be_renamed) {
  class ObjectStore final : public ForwardingFileSystem {
   public:
    using ForwardingFileSystem::ForwardingFileSystem;
    Status rename(const std::string& from, const std::string& to) override {
      if (stat(from)->kind == FileKind::kDirectory) return error_of_errno(ENOSYS, "rename", from + " to " + to);
      return ForwardingFileSystem::rename(from, to);
    }
  };
  ObjectStore fs(posix_);
  const Status status = prepare_checkpoint_folder(fs, folder_, stamp(1));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(status.error().message, HasSubstr("which mounts of object stores cannot do"));
  EXPECT_EQ(names(), (std::vector<std::string>{}));
}

TEST_F(CheckpointProtocol, writes_no_state_that_no_reader_would_read) {
  ASSERT_TRUE(write(posix_, folder_, 10).ok());
  CheckpointState state = state_of(20);
  state.progress = {{"workload", std::string(kCheckpointStateBytesMax, 'x')}};
  const std::vector<int64_t> weights(16, 20);
  const Result<WrittenCheckpoint> written = write_checkpoint(posix_, write_of(folder_, weights, state));
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(written.error().message, HasSubstr("workload sasrec must keep less in progress_state()"));
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000010"}));
}

TEST_F(CheckpointProtocol, tells_a_volume_that_cannot_be_written_at_the_start) {
  bool ended = false;
  for (int n = 1; n < kCallsMax && !ended; ++n) {
    FaultFileSystem fs(posix_, Fault::kFailForever, n, EROFS);
    const Status status = prepare_checkpoint_folder(fs, folder_, stamp(1));
    ended = fs.calls() < n;
    EXPECT_EQ(status.ok(), ended);
    if (!status.ok()) {
      EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
      EXPECT_THAT(status.error().message, HasSubstr("not writable"));
      EXPECT_THAT(status.error().message, HasSubstr("Read-only file system"));
    }
  }
}

TEST_F(CheckpointProtocol, passes_over_a_truncated_checkpoint_and_says_so) {
  write_two();
  for (const std::string_view file : {kModelFile, kOptimizerFile, kStateFile}) {
    const std::string path = join_path(join_path(folder_, "step-00000020"), file);
    const std::string whole = *read_file(posix_, path, 1 << 20);
    for (size_t size = 0; size < whole.size(); size += 1 + whole.size() / 40) {
      spoil(path, [&](std::string& bytes) { bytes.resize(size); });
      Result<NewestComplete> newest = newest_complete(posix_, folder_, kIdentity);
      ASSERT_TRUE(newest.ok());
      ASSERT_EQ(newest->entry->step, 10) << file << " " << size;
      ASSERT_EQ(newest->passed_over.size(), 1U);
      ASSERT_THAT(newest->passed_over[0].reason, HasSubstr("step-00000020"));
    }
    spoil(path, [&](std::string& bytes) { bytes = whole; });
  }
  EXPECT_EQ(newest_step(folder_), 20);
}

TEST_F(CheckpointProtocol, never_takes_a_flipped_bit_for_the_content) {
  write_two();
  const Result<CheckpointState> before = *inspect_checkpoint(posix_, join_path(folder_, "step-00000020")).state;
  for (const std::string_view file : {kModelFile, kOptimizerFile, kStateFile}) {
    const std::string path = join_path(join_path(folder_, "step-00000020"), file);
    const std::string whole = *read_file(posix_, path, 1 << 20);
    for (size_t bit = 0; bit < whole.size() * 8; bit += file == kStateFile ? 1 : 13) {
      spoil(path, [&](std::string& bytes) {
        bytes = whole;
        bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      });
      Result<NewestComplete> newest = newest_complete(posix_, folder_, kIdentity);
      ASSERT_TRUE(newest.ok()) << newest.error().message;
      // A flipped space of state.json's layout may be another space: then the content is the same.
      const bool same = file == kStateFile && newest->entry->step == 20 &&
                        dump_checkpoint_state(*newest->entry->state) == dump_checkpoint_state(*before);
      ASSERT_TRUE(newest->entry->step == 10 || same) << file << " bit " << bit;
    }
    spoil(path, [&](std::string& bytes) { bytes = whole; });
  }
}

TEST_F(CheckpointProtocol, says_that_all_are_damaged_instead_of_starting_anew) {
  ASSERT_TRUE(write(posix_, folder_, 10).ok());
  spoil(join_path(folder_, "step-00000010/model.safetensors"), [](std::string& bytes) { bytes.back() = 1; });
  const Result<NewestComplete> newest = newest_complete(posix_, folder_, kIdentity);
  ASSERT_FALSE(newest.ok());
  EXPECT_EQ(newest.error().code, ErrorCode::kCorrupt);
}

TEST_F(CheckpointProtocol, refuses_another_runs_checkpoint_and_names_the_ways_out) {
  write_two();
  const Result<NewestComplete> other =
      newest_complete(posix_, folder_, RunIdentity{{}, "0123456789abcdef", "sasrec", 1});
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::kConflict);
  EXPECT_THAT(other.error().message, HasSubstr("--resume " + folder_ + "/step-00000020"));
  EXPECT_THAT(other.error().message, HasSubstr("another folder"));
  EXPECT_THAT(other.error().message, HasSubstr("this is 01234567)"));
}

TEST_F(CheckpointProtocol, refuses_a_checkpoint_of_another_version_of_the_workload) {
  write_two();
  const Result<NewestComplete> other = newest_complete(posix_, folder_, RunIdentity{{}, "hash", "sasrec", 2});
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::kConflict);
  EXPECT_THAT(other.error().message,
              HasSubstr("(version 1 of sasrec wrote it, this is version 2, whose maths differ); to continue from it "
                        "give --resume " +
                        folder_ + "/step-00000020"));
}

TEST_F(CheckpointProtocol, refuses_a_newer_format_and_says_which_is_read) {
  write_two();
  CheckpointState state = *inspect_checkpoint(posix_, join_path(folder_, "step-00000020")).state;
  state.format_version = kCheckpointFormatVersion + 1;
  spoil(join_path(folder_, "step-00000020/state.json"),
        [&](std::string& bytes) { bytes = dump_checkpoint_state(state); });
  const Result<NewestComplete> newest = newest_complete(posix_, folder_, kIdentity);
  ASSERT_FALSE(newest.ok());
  EXPECT_EQ(newest.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(newest.error().message, HasSubstr("format 2, this one reads up to 1"));
}

TEST_F(CheckpointProtocol, orders_by_generation_before_step) {
  ASSERT_TRUE(write(posix_, folder_, 30, 1).ok());
  ASSERT_TRUE(write(posix_, folder_, 20, 2).ok());
  EXPECT_EQ(newest_step(folder_), 20);
}

TEST_F(CheckpointProtocol, keeps_a_step_of_the_same_lineage_and_moves_any_other_aside) {
  ASSERT_TRUE(write(posix_, folder_, 10).ok());
  EXPECT_EQ(write(posix_, folder_, 10)->bytes, 0U);
  const Result<WrittenCheckpoint> redone = write(posix_, folder_, 10, 2);
  ASSERT_TRUE(redone.ok());
  EXPECT_EQ(base_name(redone->moved_aside), ".stale-step-00000010-r0-g2");
  spoil(join_path(folder_, "step-00000010/model.safetensors"), [](std::string& bytes) { bytes.back() = 1; });
  EXPECT_EQ(base_name(write(posix_, folder_, 10, 2)->moved_aside), ".stale-step-00000010-r0-g2-1");
  EXPECT_EQ(newest_step(folder_), 10);
}

// A step was written before its evaluation, because all were to leave during it; the next group evaluates the step.
TEST_F(CheckpointProtocol, writes_a_step_again_that_was_evaluated_since_and_keeps_the_mark_of_the_best) {
  const std::vector<int64_t> weights(16, 10);
  const auto is_kept = [&](int64_t evaluated_step, bool is_best) {
    CheckpointState state = state_of(10);
    state.progress = {{"counters", {{"evaluated_step", evaluated_step}}}};
    state.is_best = is_best;
    const Result<WrittenCheckpoint> written = write_checkpoint(posix_, write_of(folder_, weights, state));
    EXPECT_TRUE(written.ok()) << written.error().message;
    return written->bytes == 0;
  };
  EXPECT_FALSE(is_kept(5, false));
  EXPECT_TRUE(is_kept(5, false));
  EXPECT_FALSE(is_kept(10, false));
  EXPECT_FALSE(is_kept(10, true));
  // A later write of the same step knows no more.
  EXPECT_TRUE(is_kept(10, false));
  EXPECT_TRUE(is_kept(5, false));
  EXPECT_TRUE(inspect_checkpoint(posix_, join_path(folder_, "step-00000010")).state->is_best);
}

// A node 0 that was cut off writes on after its successor has written: neither over the same step, nor a later one.
TEST_F(CheckpointProtocol, publishes_nothing_once_a_newer_generation_has) {
  ASSERT_TRUE(write(posix_, folder_, 10, 1).ok());
  ASSERT_TRUE(write(posix_, folder_, 20, 2).ok());
  for (const int64_t step : {20, 30}) {
    const Result<WrittenCheckpoint> written = write(posix_, folder_, step, 1);
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, ErrorCode::kConflict);
    EXPECT_THAT(written.error().message, HasSubstr("step-00000020 is of generation 2, newer than this one's 1"));
    EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000010", "step-00000020"}));
  }
  EXPECT_EQ(inspect_checkpoint(posix_, join_path(folder_, "step-00000020")).state->generation, 2U);
}

// The volume answered the listing from a cache, or the successor has published since.
TEST_F(CheckpointProtocol, puts_a_newer_generations_checkpoint_back_that_it_has_moved_aside) {
  class BeforeRename final : public ForwardingFileSystem {
   public:
    BeforeRename(FileSystem& below, std::function<void()> then) : ForwardingFileSystem(below), then_(std::move(then)) {}
    Status rename(const std::string& from, const std::string& to) override {
      if (then_) std::exchange(then_, nullptr)();
      return ForwardingFileSystem::rename(from, to);
    }

   private:
    std::function<void()> then_;
  };
  ASSERT_TRUE(write(posix_, folder_, 20, 1).ok());
  BeforeRename fs(posix_, [&] { ASSERT_TRUE(write(posix_, folder_, 20, 3).ok()); });
  const Result<WrittenCheckpoint> written = write(fs, folder_, 20, 2);
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, ErrorCode::kConflict);
  EXPECT_EQ(inspect_checkpoint(posix_, join_path(folder_, "step-00000020")).state->generation, 3U);
  EXPECT_EQ(names(), (std::vector<std::string>{".stale-step-00000020-r0-g3", "latest", "step-00000020"}));
}

TEST_F(CheckpointProtocol, is_ours_until_a_newer_generation_of_the_same_run_has_written) {
  EXPECT_TRUE(check_none_is_newer(posix_, join_path(folder_, "missing"), kIdentity, stamp(1)).ok());
  ASSERT_TRUE(write(posix_, folder_, 10, 1).ok());
  EXPECT_TRUE(check_none_is_newer(posix_, folder_, kIdentity, stamp(1)).ok());
  const std::vector<int64_t> weights(16, 30);
  CheckpointState other = state_of(30, 9);
  other.config_hash = "another run";
  ASSERT_TRUE(write_checkpoint(posix_, write_of(folder_, weights, other)).ok());
  EXPECT_TRUE(check_none_is_newer(posix_, folder_, kIdentity, stamp(1)).ok());

  ASSERT_TRUE(write(posix_, folder_, 5, 2).ok());  // a lower step: the generation decides
  const Status newer = check_none_is_newer(posix_, folder_, kIdentity, stamp(1));
  ASSERT_FALSE(newer.ok());
  EXPECT_EQ(newer.error().code, ErrorCode::kConflict);
  EXPECT_THAT(newer.error().message, HasSubstr("step-00000005 is of generation 2, newer than this one's 1"));
  EXPECT_TRUE(check_none_is_newer(posix_, folder_, kIdentity, stamp(2)).ok());
}

TEST_F(CheckpointProtocol, cannot_be_said_to_be_ours_while_the_folder_cannot_be_listed) {
  FaultFileSystem fs(posix_, Fault::kNone, 0);
  fs.hold_back("run");
  const Status unknown = check_none_is_newer(fs, folder_, kIdentity, stamp(1));
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kUnavailable);
}

TEST_F(CheckpointProtocol, leaves_temporary_things_of_a_newer_generation_alone) {
  for (const char* name : {".tmp-r0-g1-step-00000030", ".tmp-r0-g2-step-00000030", ".tmp-r0-g3-step-00000030",
                           ".tmp-r0-g1-leftover", ".tmp-r0-g2-leftover"}) {
    ASSERT_TRUE(make_directories(posix_, join_path(join_path(folder_, name), "not empty")).ok());
  }
  ASSERT_TRUE(prepare_checkpoint_folder(posix_, folder_, stamp(2)).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{".tmp-r0-g3-step-00000030"}));
}

// Calls `then` once, when the first file has been removed: what another process does in the middle of a removal.
class InterruptedRemoval final : public ForwardingFileSystem {
 public:
  InterruptedRemoval(FileSystem& below, std::function<void()> then)
      : ForwardingFileSystem(below), then_(std::move(then)) {}
  Status remove_file(const std::string& path) override {
    const Status removed = ForwardingFileSystem::remove_file(path);
    if (then_) std::exchange(then_, nullptr)();
    return removed;
  }

 private:
  std::function<void()> then_;
};

// An old rank 0 that was cut off still writes to its temporary folder while the new one removes it.
TEST_F(CheckpointProtocol, takes_a_temporary_folder_away_from_an_old_rank_0_before_it_removes_it) {
  const std::string temporary = join_path(folder_, ".tmp-r0-g1-step-00000030");
  const std::string final = join_path(folder_, "step-00000030");
  const auto put = [&](const char* name) {
    return write_file(posix_, join_path(temporary, name), [](const ByteSink& sink) { return sink("x", 1); });
  };
  const std::vector<std::function<Status()>> old_does = {[&] { return put("optimizer.safetensors"); },
                                                         [&] { return posix_.rename(temporary, final); }};
  for (const std::function<Status()>& does : old_does) {
    ASSERT_TRUE(posix_.make_directory(temporary).ok());
    ASSERT_TRUE(put("model.safetensors").ok() && put("state.json").ok());
    ErrorCode met = ErrorCode::kInvalid;
    InterruptedRemoval fs(posix_, [&] {
      const Status done = does();
      if (!done.ok()) met = done.error().code;
    });
    const Status prepared = prepare_checkpoint_folder(fs, folder_, stamp(2));
    EXPECT_TRUE(prepared.ok()) << prepared.error().message;
    EXPECT_EQ(met, ErrorCode::kNotFound);
    EXPECT_EQ(names(), (std::vector<std::string>{}));
  }
}

TEST_F(CheckpointProtocol, is_writable_although_a_leftover_cannot_be_removed) {
  ASSERT_TRUE(make_directories(posix_, join_path(folder_, ".tmp-r0-g1-step-00000030")).ok());
  FaultFileSystem fs(posix_, Fault::kFailOnce, 2, EIO);
  EXPECT_TRUE(prepare_checkpoint_folder(fs, folder_, stamp(2)).ok());
  EXPECT_EQ(fs.failures(), 1);
  EXPECT_EQ(names(), (std::vector<std::string>{".tmp-r0-g2-leftover"}));
  EXPECT_TRUE(prepare_checkpoint_folder(posix_, folder_, stamp(2)).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{}));
}

TEST_F(CheckpointProtocol, prunes_only_the_same_runs) {
  CheckpointState other = state_of(5);
  other.config_hash = "other-hash";
  const std::vector<int64_t> weights(16, 5);
  ASSERT_TRUE(write_checkpoint(posix_, write_of(folder_, weights, other)).ok());
  write_two();
  ASSERT_TRUE(write(posix_, folder_, 30).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000005", "step-00000020", "step-00000030"}));
}

TEST_F(CheckpointProtocol, takes_nothing_from_a_folder_that_is_not_there) {
  const Result<NewestComplete> newest = newest_complete(posix_, join_path(folder_, "missing"), kIdentity);
  ASSERT_TRUE(newest.ok());
  EXPECT_FALSE(newest->entry.has_value());
}

// ---- a TrainJob that was made again ----

RunIdentity identity_of(const JobIdentity& job, const std::string& config_hash = "hash") {
  return {job, config_hash, "sasrec", 1};
}

// The same name, one after the other: the second one's generations begin again where the first one's began.
class MadeAgain : public CheckpointProtocol {
 protected:
  Result<WrittenCheckpoint> write_as(const JobIdentity& job, int64_t step, uint64_t generation,
                                     const std::string& config_hash = "hash") {
    CheckpointState state = state_of(step, generation);
    state.job = job.name;
    state.job_uid = job.uid;
    state.run = job.run;
    state.config_hash = config_hash;
    const std::vector<int64_t> weights(16, step);
    CheckpointWrite write = write_of(folder_, weights, state);
    write.resume = job.resume;
    return write_checkpoint(posix_, write);
  }
  Result<NewestComplete> newest(const RunIdentity& identity) { return newest_complete(posix_, folder_, identity); }

  JobIdentity first_{.name = "team-a/sasrec", .uid = "uid-1", .run = 100};
  JobIdentity second_{.name = "team-a/sasrec", .uid = "uid-2", .run = 200};
};

TEST_F(MadeAgain, goes_on_from_the_checkpoints_of_the_one_before) {
  ASSERT_TRUE(write_as(first_, 20, 9).ok());
  const Result<NewestComplete> found = newest(identity_of(second_));
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(found->entry->step, 20);
}

TEST_F(MadeAgain, writes_what_counts_for_newer_although_its_generations_are_lower) {
  ASSERT_TRUE(write_as(first_, 20, 9).ok());
  ASSERT_TRUE(write_as(first_, 30, 9).ok());
  const Result<WrittenCheckpoint> written = write_as(second_, 21, 1);
  ASSERT_TRUE(written.ok()) << written.error().message;
  EXPECT_EQ(newest(identity_of(second_))->entry->step, 21);
  // Retention keeps two: the newest of the first one, and this one's.
  ASSERT_TRUE(write_as(second_, 22, 1).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000021", "step-00000022"}));
}

TEST_F(MadeAgain, makes_a_step_of_the_one_before_anew_even_in_a_lineage_of_the_same_number) {
  ASSERT_TRUE(write_as(first_, 20, 1).ok());
  const Result<WrittenCheckpoint> written = write_as(second_, 20, 1);
  ASSERT_TRUE(written.ok()) << written.error().message;
  EXPECT_EQ(base_name(written->moved_aside), ".stale-step-00000020-r200-g1");
  EXPECT_EQ(inspect_checkpoint(posix_, written->path).state->job_uid, "uid-2");
}

TEST_F(MadeAgain, is_not_overtaken_by_a_node_0_of_the_one_before_whatever_its_flags) {
  ASSERT_TRUE(write_as(second_, 21, 1, "other flags").ok());
  const Result<WrittenCheckpoint> late = write_as(first_, 30, 9);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, ErrorCode::kConflict);
  EXPECT_THAT(late.error().message, HasSubstr("step-00000021 is of run 200, newer than this one's 100"));
}

TEST_F(MadeAgain, removes_what_a_death_of_the_one_before_left_and_spares_a_later_one) {
  for (const char* name : {".tmp-r100-g9-step-00000030", ".tmp-r200-g1-step-00000030", ".tmp-r300-g1-step-00000030"}) {
    ASSERT_TRUE(posix_.make_directory(join_path(folder_, name)).ok());
  }
  ASSERT_TRUE(prepare_checkpoint_folder(posix_, folder_, stamp(1, 200)).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{".tmp-r300-g1-step-00000030"}));
}

TEST_F(MadeAgain, is_refused_with_other_flags_by_the_word_that_the_operator_knows) {
  ASSERT_TRUE(write_as(first_, 20, 9).ok());
  // The same UID as well: its flags may have changed while it was suspended.
  for (const JobIdentity& job : {first_, second_}) {
    const Result<NewestComplete> refused = newest(identity_of(job, "changed"));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
    EXPECT_EQ(refused.error().reason, "ConfigurationChanged");
    EXPECT_THAT(refused.error().message, HasSubstr("--resume " + folder_ + "/step-00000020"));
  }
  EXPECT_THAT(newest(identity_of(second_, "changed")).error().message,
              HasSubstr("to start anew give spec.checkpoint.resume: Never"));
  EXPECT_THAT(newest(identity_of(first_, "changed")).error().message,
              HasSubstr("to start anew give the TrainJob another name"));
}

// With --resume it has gone on under other flags, and then they were put back: an older one would lose that work.
TEST_F(MadeAgain, does_not_fall_back_to_an_older_checkpoint_of_the_flags_given_now) {
  ASSERT_TRUE(write_as(first_, 20, 1).ok());
  ASSERT_TRUE(write_as(first_, 30, 2, "changed").ok());
  EXPECT_EQ(newest(identity_of(first_)).error().reason, "ConfigurationChanged");
  EXPECT_EQ(newest(identity_of(first_, "changed"))->entry->step, 30);
}

TEST_F(MadeAgain, is_another_job_in_another_namespace) {
  ASSERT_TRUE(write_as(first_, 20, 9).ok());
  second_.name = "team-b/sasrec";
  const Result<NewestComplete> refused = newest(identity_of(second_));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_EQ(refused.error().reason, "");
  EXPECT_THAT(refused.error().message, HasSubstr("TrainJob team-a/sasrec wrote it, this is team-b/sasrec"));
}

TEST_F(MadeAgain, with_same_job_takes_its_own_alone_and_prunes_no_others) {
  second_.resume = ResumePolicy::kSameJob;
  ASSERT_TRUE(write_as(first_, 20, 9).ok());
  const Result<NewestComplete> refused = newest(identity_of(second_));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().reason, "");
  EXPECT_THAT(refused.error().message, HasSubstr("UID \"uid-1\" wrote it"));
  for (const int64_t step : {21, 22, 23}) ASSERT_TRUE(write_as(second_, step, 1).ok());  // it was begun with --resume
  EXPECT_EQ(newest(identity_of(second_))->entry->step, 23);
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000020", "step-00000022", "step-00000023"}));
}

TEST_F(MadeAgain, with_never_moves_the_others_aside_and_keeps_its_own) {
  second_.resume = ResumePolicy::kNever;
  ASSERT_TRUE(write(posix_, folder_, 5).ok());  // made outside a cluster
  ASSERT_TRUE(write_as(first_, 10, 9).ok());
  const JobIdentity elsewhere{.name = "team-b/sasrec", .uid = "uid-9", .run = 150};
  ASSERT_TRUE(write_as(elsewhere, 15, 1).ok());
  ASSERT_TRUE(write_as(second_, 20, 1).ok());
  const Result<std::vector<std::string>> moved =
      move_others_aside(posix_, folder_, identity_of(second_), stamp(2, 200));
  ASSERT_TRUE(moved.ok()) << moved.error().message;
  EXPECT_EQ(moved->size(), 2U);
  EXPECT_EQ(names(), (std::vector<std::string>{".stale-step-00000005-r200-g2", ".stale-step-00000010-r200-g2", "latest",
                                               "step-00000015", "step-00000020"}));
  EXPECT_EQ(newest(identity_of(second_))->entry->step, 20);
  EXPECT_TRUE(inspect_checkpoint(posix_, join_path(folder_, "step-00000020")).state.has_value());
}

TEST_F(MadeAgain, with_never_leaves_what_cannot_be_read_where_it_is_and_does_not_begin_anew) {
  second_.resume = ResumePolicy::kNever;
  ASSERT_TRUE(write_as(first_, 10, 9).ok());
  FaultFileSystem fs(posix_, Fault::kNone, 0);
  fs.hold_back("step-00000010/state.json");
  // Whose it is cannot be told.
  EXPECT_TRUE(move_others_aside(fs, folder_, identity_of(second_), stamp(1, 200))->empty());
  EXPECT_EQ(newest_complete(fs, folder_, identity_of(second_)).error().code, ErrorCode::kUnavailable);
}

TEST_F(MadeAgain, outside_a_cluster_the_flags_alone_decide) {
  ASSERT_TRUE(write_as(first_, 20, 9).ok());
  EXPECT_EQ(newest(kIdentity)->entry->step, 20);
}

Environment pod_environment() {
  return {{"LOCKSTEP_NAMESPACE", "team-a"},
          {"LOCKSTEP_JOB", "sasrec"},
          {"LOCKSTEP_JOB_UID", "uid-1"},
          {"LOCKSTEP_RUN", "1882453312307200"},
          {"LOCKSTEP_RESUME", "Never"}};
}

TEST(JobIdentity, is_what_the_operator_wrote) {
  const Result<JobIdentity> job = job_identity(pod_environment());
  ASSERT_TRUE(job.ok()) << job.error().message;
  EXPECT_EQ(job->name, "team-a/sasrec");
  EXPECT_EQ(job->uid, "uid-1");
  EXPECT_EQ(job->run, 1'882'453'312'307'200U);
  EXPECT_EQ(job->resume, ResumePolicy::kNever);
}

TEST(JobIdentity, is_none_without_a_uid) {
  Environment environment = pod_environment();
  environment.erase("LOCKSTEP_JOB_UID");
  const Result<JobIdentity> job = job_identity(environment);
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->name, "");
  EXPECT_EQ(job->run, 0U);
  EXPECT_EQ(job->resume, ResumePolicy::kSameConfig);
}

TEST(JobIdentity, names_the_variable_that_cannot_be_read) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"LOCKSTEP_RUN", "-1"}, {"LOCKSTEP_RUN", "99999999999999999999"}, {"LOCKSTEP_RESUME", "Always"}};
  for (const auto& [name, value] : bad) {
    Environment environment = pod_environment();
    environment[name] = value;
    const Result<JobIdentity> job = job_identity(environment);
    ASSERT_FALSE(job.ok());
    EXPECT_EQ(job.error().code, ErrorCode::kInvalid);
    EXPECT_THAT(job.error().message, HasSubstr(name + " is \"" + value + "\", expected"));
  }
}

TEST(CheckpointLayout, names_steps_and_reads_them_back) {
  EXPECT_EQ(step_folder_name(1200), "step-00001200");
  EXPECT_EQ(parse_step_folder_name("step-00001200"), 1200);
  EXPECT_EQ(parse_step_folder_name(step_folder_name(12345678901)), 12345678901);
  for (const char* bad : {"step-1200", "step-0000120x", "step-", ".step-00001200", "step--0001200", "latest"}) {
    EXPECT_FALSE(parse_step_folder_name(bad).has_value()) << bad;
  }
  EXPECT_EQ(parse_temporary_stamp(temporary_name(stamp(7, 1'795'255'200), "step-00000001")), stamp(7, 1'795'255'200));
  for (const char* bad : {".tmp-step", ".tmp-r1-step", ".tmp-r1-gx-step", ".tmp-rx-g1-step", ".tmp-g1-step"}) {
    EXPECT_FALSE(parse_temporary_stamp(bad).has_value()) << bad;
  }
  EXPECT_EQ(ema_file_name(""), "ema.safetensors");
  EXPECT_EQ(parse_ema_file_name(ema_file_name("0.9999")), "0.9999");
  EXPECT_FALSE(parse_ema_file_name("model.safetensors").has_value());
}

TEST(CheckpointState, refuses_a_file_name_that_leaves_the_folder) {
  CheckpointState state = state_of(1);
  state.files["../evil"] = {"00", 1};
  EXPECT_EQ(parse_checkpoint_state(dump_checkpoint_state(state)).error().code, ErrorCode::kCorrupt);
}

TEST(CheckpointState, says_everything_it_was_given) {
  CheckpointState state = state_of(1200, (uint64_t{1'800'000'000} << 32U) | 5);
  state.job = "team-a/sasrec";
  state.job_uid = "uid";
  state.run = 1'795'255'200;
  state.files["model.safetensors"] = {"ab", 12};
  const Result<CheckpointState> back = parse_checkpoint_state(dump_checkpoint_state(state));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(dump_checkpoint_state(*back), dump_checkpoint_state(state));
  EXPECT_EQ(back->stamp(), state.stamp());
  EXPECT_EQ(back->job, "team-a/sasrec");
  EXPECT_EQ(back->job_uid, "uid");
  EXPECT_EQ(back->progress, state.progress);
  EXPECT_EQ(back->files, state.files);
}

}  // namespace
}  // namespace lockstep
