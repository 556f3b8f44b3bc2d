#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runner/base/atomic_file.h"
#include "runner/base/forwarding_file_system.h"
#include "runner/checkpoint/reader.h"
#include "runner/checkpoint/weights.h"
#include "runner/checkpoint/writer.h"
#include "runner/formats/pickle_zip.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/runner/support/written_down_device.h"
#include "tests/support/save_weights.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

const RunIdentity kIdentity{{}, "hash", "sasrec"};

CheckpointContent content_of(int64_t step) {
  const float value = static_cast<float>(step);
  CheckpointContent content;
  content.state.workload = "sasrec";
  content.state.config_hash = "hash";
  content.state.step = step;
  content.state.generation = 1;
  content.state.lineage = 1;
  content.model = {{"item_emb.weight", at::full({5, 3}, value)},
                   {"pos_emb.weight", at::arange(6, at::kFloat).view({2, 3}).t()},  // not contiguous
                   {"half", at::full({3}, value, at::kBFloat16)}};
  content.optimizer = {{"step", at::full({}, step, at::kLong)}, {"exp_avg.item_emb.weight", at::full({5, 3}, 0.5)}};
  content.ema = {{"", {{"item_emb.weight", at::full({5, 3}, value + 1)}}},
                 {"0.999", {{"item_emb.weight", at::full({5, 3}, value + 2)}}}};
  return content;
}

void expect_equal(const NamedTensors& found, const NamedTensors& expected) {
  NamedTensors copy;
  for (const NamedTensor& tensor : expected) copy.push_back({tensor.name, at::zeros_like(tensor.tensor)});
  const Status copied = copy_tensors(found, copy, "found");
  ASSERT_TRUE(copied.ok()) << copied.error().message;
  for (size_t i = 0; i < copy.size(); ++i) EXPECT_TRUE(at::equal(copy[i].tensor, expected[i].tensor)) << copy[i].name;
}

class Checkpoints : public ::testing::Test {
 protected:
  CheckpointWriterOptions options() { return {.folder = folder(), .run = kIdentity, .retention = {.keep_last = 2}}; }
  [[nodiscard]] const std::string& folder() const { return temporary_.path(); }
  void write(int64_t step) {
    CheckpointWriter writer(posix_, options());
    writer.stage(content_of(step));
    writer.wait_durable();
    const std::vector<WriteReport> reports = writer.poll_reports();
    ASSERT_EQ(reports.size(), 1U);
    ASSERT_FALSE(reports[0].error) << reports[0].error->message;
  }
  void spoil(const std::string& name) {
    std::string bytes = *read_file(posix_, join_path(folder(), name), 1 << 20);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    ASSERT_TRUE(write_file(posix_, join_path(folder(), name), [&](const ByteSink& sink) {
                  return sink(bytes.data(), bytes.size());
                }).ok());
  }

  PosixFileSystem posix_;
  TemporaryFolder temporary_;
};

TEST_F(Checkpoints, come_back_with_every_tensor_and_figure) {
  write(10);
  Result<ResumeResult> loaded = load_newest_checkpoint(posix_, folder(), kIdentity);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const LoadedCheckpoint& checkpoint = *loaded->checkpoint;
  const CheckpointContent expected = content_of(10);
  EXPECT_EQ(checkpoint.state.step, 10);
  expect_equal(checkpoint.model, expected.model);
  expect_equal(checkpoint.optimizer, expected.optimizer);
  ASSERT_EQ(checkpoint.ema.size(), 2U);
  for (const auto& [name, tensors] : checkpoint.ema) expect_equal(tensors, expected.ema[name.empty() ? 0 : 1].second);
}

TEST_F(Checkpoints, hold_what_the_tensors_were_when_staged) {
  CheckpointWriter writer(posix_, options());
  CheckpointContent content = content_of(10);
  writer.stage(content);
  for (NamedTensor& tensor : content.model) tensor.tensor.zero_();
  writer.stage(content_of(20));
  writer.wait_durable();
  EXPECT_EQ(writer.poll_reports().size(), 2U);
  EXPECT_TRUE(writer.poll_reports().empty());
  Result<ResumeResult> first = load_checkpoint(posix_, join_path(folder(), "step-00000010"));
  ASSERT_TRUE(first.ok());
  expect_equal(first->checkpoint->model, content_of(10).model);
}

// While it lives, counts what its thread takes from the CPU allocator.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() { c10::SetCPUAllocator(this); }
  ~CountingAllocator() override { c10::SetCPUAllocator(below_); }
  CountingAllocator(const CountingAllocator&) = delete;
  CountingAllocator& operator=(const CountingAllocator&) = delete;
  c10::DataPtr allocate(size_t bytes) override {
    if (std::this_thread::get_id() == thread_) bytes_ += bytes;
    return below_->allocate(bytes);
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return below_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { below_->copy_data(to, from, bytes); }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  c10::Allocator* const below_ = c10::GetCPUAllocator();
  const std::thread::id thread_ = std::this_thread::get_id();
  size_t bytes_ = 0;
};

// To allocate pinned memory of a state's size takes seconds, in which no rank would train.
TEST_F(Checkpoints, take_no_memory_when_it_was_made_before_the_first) {
  CheckpointWriter writer(posix_, options());
  CheckpointContent content = content_of(10);
  content.model = {{"w", at::ones({1 << 18})}};
  writer.make_buffers(content);
  const CountingAllocator allocator;
  writer.stage(content);
  EXPECT_LT(allocator.bytes(), size_t{1} << 18);
  writer.wait_durable();
}

TEST_F(Checkpoints, are_copied_on_a_stream_of_their_own_which_the_next_change_waits_for) {
  WrittenDownDevice& device = WrittenDownDevice::only();
  CheckpointWriterOptions on_device = options();
  on_device.device = c10::Device(WrittenDownDevice::kType, 3);
  CheckpointWriter writer(posix_, on_device);
  writer.before_change();
  EXPECT_THAT(device.written_down(), testing::IsEmpty());
  writer.stage(content_of(10));
  writer.wait_durable();
  EXPECT_THAT(device.written_down(),
              testing::ElementsAre("record on 0", "block 7", "record on 7", "device 3, by another thread",
                                   "synchronize, by another thread"));
  EXPECT_EQ(device.getStream(on_device.device).id(), WrittenDownDevice::kTraining);
  writer.before_change();
  writer.before_change();  // it waits already
  EXPECT_THAT(device.written_down(), testing::ElementsAre("block 0"));
  const std::vector<WriteReport> reports = writer.poll_reports();
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_FALSE(reports[0].error);
}

// Blocks every fsync until it is released.
class SlowFileSystem final : public ForwardingFileSystem {
 public:
  SlowFileSystem(FileSystem& below, std::shared_future<void> go) : ForwardingFileSystem(below), go_(std::move(go)) {}
  Status fsync(FileHandle file) override {
    go_.wait();
    return ForwardingFileSystem::fsync(file);
  }

 private:
  std::shared_future<void> go_;
};

TEST_F(Checkpoints, are_written_while_the_caller_goes_on_and_one_at_a_time) {
  std::promise<void> go;
  SlowFileSystem slow(posix_, go.get_future().share());
  CheckpointWriter writer(slow, options());
  writer.stage(content_of(10));  // returns although no fsync does
  EXPECT_TRUE(writer.poll_reports().empty());
  EXPECT_FALSE(posix_.stat(join_path(folder(), "step-00000010")).ok());
  std::future<StageCost> second = std::async(std::launch::async, [&] { return writer.stage(content_of(20)); });
  go.set_value();
  EXPECT_GE(second.get().stall_seconds, 0.0);
  writer.wait_durable();
  const std::vector<WriteReport> reports = writer.poll_reports();
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_EQ(reports[0].step, 10);
  EXPECT_EQ(reports[1].step, 20);
}

// A group that is cut does not wait for a slow volume; its checkpoint is written all the same.
TEST_F(Checkpoints, are_waited_for_until_the_caller_gives_up_and_are_written_all_the_same) {
  std::promise<void> go;
  SlowFileSystem slow(posix_, go.get_future().share());
  CheckpointWriter writer(slow, options());
  writer.stage(content_of(10));
  int looks = 0;
  EXPECT_FALSE(writer.wait_durable([&] { return ++looks == 2; }));
  EXPECT_EQ(looks, 2);
  EXPECT_TRUE(writer.poll_reports().empty());
  go.set_value();
  EXPECT_TRUE(writer.wait_durable());
  ASSERT_EQ(writer.poll_reports().size(), 1U);
  EXPECT_TRUE(posix_.stat(join_path(folder(), "step-00000010")).ok());
}

// After its first write it goes on only once the waiting caller has been told of that write.
class PatientFileSystem final : public ForwardingFileSystem {
 public:
  PatientFileSystem(FileSystem& below, std::shared_future<void> told) : ForwardingFileSystem(below), told_(told) {}
  Result<size_t> write(FileHandle file, const void* data, size_t bytes) override {
    if (std::exchange(has_written_, true)) told_.wait();
    return ForwardingFileSystem::write(file, data, bytes);
  }

 private:
  std::shared_future<void> told_;
  bool has_written_ = false;
};

TEST_F(Checkpoints, that_take_long_are_no_hang_while_the_volume_answers) {
  std::promise<void> told;
  PatientFileSystem slow(posix_, told.get_future().share());
  CheckpointWriterOptions patient = options();
  const std::thread::id caller = std::this_thread::get_id();
  bool was_told = false;
  patient.on_progress = [&] {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    if (!std::exchange(was_told, true)) told.set_value();
  };
  CheckpointWriter writer(slow, patient);
  writer.stage(content_of(10));
  writer.wait_durable();  // would wait for ever if no write were reported
  EXPECT_TRUE(was_told);
  ASSERT_EQ(writer.poll_reports().size(), 1U);
}

// ---- the workload's files ----

OutputContent weights_output(float value) {
  TorchTree tree;
  tree.root.emplace_back("w", tree.value(at::full({2}, value)));
  return tree;
}

TEST_F(Checkpoints, are_written_after_the_files_that_were_staged_before_them_while_the_caller_goes_on) {
  std::promise<void> go;
  SlowFileSystem slow(posix_, go.get_future().share());
  CheckpointWriter writer(slow, options());
  writer.stage_output("outputs/step-00000010/said.txt", std::string("hello"), {});
  writer.stage(content_of(10));  // neither has been written
  EXPECT_TRUE(writer.poll_output_reports().empty());
  EXPECT_FALSE(writer.wait_durable([] { return true; }, CheckpointWriter::Writes::kOutput));
  go.set_value();
  EXPECT_TRUE(writer.wait_durable([] { return false; }, CheckpointWriter::Writes::kCheckpoint));
  const std::vector<OutputReport> reports = writer.poll_output_reports();
  ASSERT_EQ(reports.size(), 1U) << "the checkpoint is there, and the file that came before it is not";
  EXPECT_EQ(reports[0].name, "outputs/step-00000010/said.txt");
  EXPECT_FALSE(reports[0].error);
  EXPECT_EQ(*read_file(posix_, join_path(folder(), reports[0].name), 100), "hello");
}

TEST_F(Checkpoints, of_a_newer_generation_end_the_writing_of_files_by_an_older_one) {
  CheckpointWriter old(posix_, options());
  CheckpointWriter now(posix_, options());
  const auto error_of = [](CheckpointWriter& writer, float value, uint64_t generation) {
    writer.stage_output("best.pt", weights_output(value), {.generation = generation});
    writer.wait_durable();
    const std::vector<OutputReport> reports = writer.poll_output_reports();
    return reports.empty() ? std::optional<Error>(Error{ErrorCode::kUnavailable, "no report"}) : reports[0].error;
  };
  const auto value_now = [&] {
    return load_weights(posix_, join_path(folder(), "best.pt"))->front().tensor[0].item<float>();
  };
  EXPECT_FALSE(error_of(old, 1.0F, 1));
  CheckpointContent content = content_of(12);
  content.state.generation = 2;
  now.stage(content);
  EXPECT_FALSE(error_of(now, 2.0F, 2));

  const std::optional<Error> refused = error_of(old, 3.0F, 1);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, ErrorCode::kConflict);
  EXPECT_THAT(refused->message, HasSubstr("step-00000012 is of generation 2, newer than this one's 1"));
  EXPECT_EQ(value_now(), 2.0F);
  EXPECT_FALSE(error_of(old, 4.0F, 3));  // it is rank 0 again
  EXPECT_EQ(value_now(), 4.0F);
}

TEST_F(Checkpoints, let_no_file_be_written_while_nobody_can_tell_whose_the_folder_is) {
  FaultFileSystem fs(posix_, FaultFileSystem::Fault::kNone, 0);
  CheckpointWriter writer(fs, options());
  fs.hold_back(base_name(folder()));
  writer.stage_output("best.pt", weights_output(1.0F), {});
  writer.wait_durable();
  const std::vector<OutputReport> reports = writer.poll_output_reports();
  ASSERT_EQ(reports.size(), 1U);
  ASSERT_TRUE(reports[0].error);
  EXPECT_THAT(reports[0].error->message, HasSubstr("list "));
  EXPECT_FALSE(std::filesystem::exists(join_path(folder(), "best.pt")));
}

TEST_F(Checkpoints, are_written_although_a_file_before_them_cannot_be) {
  std::filesystem::create_directory(join_path(folder(), "best.pt"));
  CheckpointWriter writer(posix_, options());
  writer.stage_output("best.pt", weights_output(1.0F), {});
  writer.stage(content_of(10));
  writer.wait_durable();
  const std::vector<OutputReport> files = writer.poll_output_reports();
  ASSERT_EQ(files.size(), 1U);
  ASSERT_TRUE(files[0].error);
  EXPECT_THAT(files[0].error->message, HasSubstr("best.pt"));
  const std::vector<WriteReport> reports = writer.poll_reports();
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_FALSE(reports[0].error);
}

TEST_F(Checkpoints, that_cannot_be_written_are_reported_and_the_older_stay) {
  write(10);
  FaultFileSystem full(posix_, FaultFileSystem::Fault::kFailForever, 5, ENOSPC);
  CheckpointWriter writer(full, options());
  writer.stage(content_of(20));
  writer.wait_durable();
  const std::vector<WriteReport> reports = writer.poll_reports();
  ASSERT_EQ(reports.size(), 1U);
  ASSERT_TRUE(reports[0].error);
  EXPECT_EQ(reports[0].error->code, ErrorCode::kUnavailable);
  EXPECT_THAT(reports[0].error->message, HasSubstr("No space left on device"));
  EXPECT_EQ(load_newest_checkpoint(posix_, folder(), kIdentity)->checkpoint->state.step, 10);
}

TEST(Tensors, lie_in_their_file_unless_they_are_not_aligned_there) {
  const auto file = std::make_shared<std::string>(32, '\0');
  const float value = 1.5F;
  for (const size_t at : {size_t{8}, size_t{17}}) std::memcpy(file->data() + at, &value, sizeof value);
  NamedTensors tensors = tensors_in(file, {{"aligned", DType::kF32, {1}, file->data() + 8, 4},
                                           {"not", DType::kF32, {1}, file->data() + 17, 4},
                                           {"empty", DType::kF32, {0}, nullptr, 0}});
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors[0].tensor.data_ptr(), file->data() + 8);
  EXPECT_EQ(file.use_count(), 2);
  EXPECT_EQ(tensors[0].tensor.item<float>(), 1.5F);
  EXPECT_EQ(tensors[1].tensor.item<float>(), 1.5F);
  EXPECT_EQ(tensors[2].tensor.numel(), 0);
  tensors.clear();
  EXPECT_EQ(file.use_count(), 1);
}

TEST_F(Checkpoints, that_are_damaged_are_passed_over_and_named) {
  write(10);
  write(20);
  spoil("step-00000020/optimizer.safetensors");
  const Result<ResumeResult> loaded = load_newest_checkpoint(posix_, folder(), kIdentity);
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->checkpoint->state.step, 10);
  ASSERT_EQ(loaded->passed_over.size(), 1U);
  EXPECT_THAT(loaded->passed_over[0].reason, HasSubstr("optimizer.safetensors is damaged"));
  spoil("step-00000010/model.safetensors");
  EXPECT_EQ(load_newest_checkpoint(posix_, folder(), kIdentity).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(load_checkpoint(posix_, join_path(folder(), "step-00000020")).error().code, ErrorCode::kCorrupt);
}

TEST_F(Checkpoints, that_the_volume_holds_back_are_not_passed_over_for_older_ones) {
  write(10);
  write(20);
  for (const char* file : {"state.json", "model.safetensors", "optimizer.safetensors"}) {
    FaultFileSystem lost(posix_, FaultFileSystem::Fault::kNone, 0);
    lost.hold_back(std::string("step-00000020/") + file);
    const Result<ResumeResult> loaded = load_newest_checkpoint(lost, folder(), kIdentity);
    ASSERT_FALSE(loaded.ok()) << file;
    EXPECT_EQ(loaded.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(loaded.error().message, HasSubstr("Input/output error"));
  }
}

TEST_F(Checkpoints, of_another_run_are_refused_unless_named) {
  write(10);
  const RunIdentity other{{}, "other", "sasrec"};
  const Result<ResumeResult> refused = load_newest_checkpoint(posix_, folder(), other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_THAT(refused.error().message, HasSubstr("--resume"));
  EXPECT_EQ(load_checkpoint(posix_, folder())->checkpoint->state.step, 10);
}

TEST_F(Checkpoints, are_none_in_a_new_folder) {
  const Result<ResumeResult> none = load_newest_checkpoint(posix_, join_path(folder(), "new"), kIdentity);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->checkpoint.has_value());
  EXPECT_EQ(load_checkpoint(posix_, folder()).error().code, ErrorCode::kNotFound);
}

TEST_F(Checkpoints, give_their_weights_from_a_folder) {
  write(10);
  const Result<NamedTensors> weights = load_weights(posix_, folder());
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  expect_equal(*weights, content_of(10).model);
}

TEST_F(Checkpoints, weights_go_through_every_file_format) {
  for (const char* name : {"w.pt", "w.pth", "w.safetensors"}) {
    const std::string path = join_path(folder(), name);
    ASSERT_TRUE(save_weights(posix_, path, content_of(10).model).ok());
    const Result<NamedTensors> weights = load_weights(posix_, path);
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    expect_equal(*weights, content_of(10).model);
  }
}

TEST_F(Checkpoints, weights_may_be_links_to_where_downloads_are_kept) {
  const std::string path = join_path(folder(), "blob");
  ASSERT_TRUE(save_weights(posix_, path + ".safetensors", content_of(10).model).ok());
  const std::string link = join_path(folder(), "model.safetensors");
  std::filesystem::create_symlink("blob.safetensors", link);
  const Result<NamedTensors> weights = load_weights(posix_, link);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  expect_equal(*weights, content_of(10).model);
  EXPECT_EQ(load_weights(posix_, join_path(folder(), "nowhere")).error().code, ErrorCode::kNotFound);
}

TEST_F(Checkpoints, weights_lose_a_module_prefix_that_all_have) {
  const std::string path = join_path(folder(), "w.pth");
  ASSERT_TRUE(save_weights(posix_, path, {{"module.a", at::ones({2})}, {"module.module.b", at::ones({1})}}).ok());
  expect_equal(*load_weights(posix_, path), {{"a", at::ones({2})}, {"module.b", at::ones({1})}});
  ASSERT_TRUE(save_weights(posix_, path, {{"module.a", at::ones({2})}, {"b", at::ones({1})}}).ok());
  expect_equal(*load_weights(posix_, path), {{"module.a", at::ones({2})}, {"b", at::ones({1})}});
}

TEST_F(Checkpoints, weights_lose_what_torch_compile_and_lightning_put_before_all_names) {
  for (const std::string prefix :
       {"_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model.", "model._orig_mod.", "_orig_mod.model."}) {
    const std::string path = join_path(folder(), "w.safetensors");
    ASSERT_TRUE(save_weights(posix_, path, {{prefix + "a", at::ones({2})}, {prefix + "net.b", at::ones({1})}}).ok());
    expect_equal(*load_weights(posix_, path), {{"a", at::ones({2})}, {"net.b", at::ones({1})}});
  }
}

TEST_F(Checkpoints, a_file_in_the_place_of_weights_is_named) {
  for (const char* name : {"w.pth", "w.safetensors"}) {
    const std::string path = join_path(folder(), name);
    ASSERT_TRUE(
        write_file_atomically(posix_, path, std::string("version https://git-lfs.github.com/spec/v1\noid x\n")).ok());
    EXPECT_THAT(load_weights(posix_, path).error().message, HasSubstr(path + " is a Git LFS pointer"));
    ASSERT_TRUE(write_file_atomically(posix_, path, std::string("<!DOCTYPE html><html>Sign in</html>")).ok());
    EXPECT_THAT(load_weights(posix_, path).error().message, HasSubstr(path + " is a web page"));
  }
}

TEST(CopyTensors, fits_names_that_begin_with_what_was_removed) {
  const NamedTensors destination = {{"model.a", at::zeros({2})}, {"model.b", at::zeros({1})}};
  ASSERT_TRUE(copy_tensors({{"a", at::ones({2})}, {"b", at::ones({1})}}, destination, "x").ok());
  EXPECT_EQ(destination[0].tensor.sum().item<float>(), 2.0F);
}

TEST(CopyTensors, names_the_prefix_that_all_names_have) {
  const NamedTensors source = {{"student.a", at::ones({2})}, {"student.b", at::ones({1})}};
  const Status status = copy_tensors(source, {{"a", at::zeros({2})}, {"b", at::zeros({1})}}, "x");
  EXPECT_THAT(status.error().message, HasSubstr("all its names begin with \"student.\""));
}

TEST(CopyTensors, names_what_is_missing_unexpected_and_mismatched_and_copies_nothing) {
  const NamedTensors source = {{"a", at::ones({2})}, {"b", at::ones({3})}, {"extra", at::ones({1})}};
  const NamedTensors destination = {{"a", at::zeros({2})}, {"b", at::zeros({3}, at::kDouble)}, {"c", at::zeros({1})}};
  const Status status = copy_tensors(source, destination, "model.safetensors");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalid);
  for (const char* part : {"another model", "1 missing, the first is \"c\"", "1 unexpected, the first is \"extra\"",
                           "\"b\": Float [3], Double [3] was expected"}) {
    EXPECT_THAT(status.error().message, HasSubstr(part));
  }
  EXPECT_EQ(destination[0].tensor.sum().item<float>(), 0.0F);
}

TEST(CopyTensors, writes_into_leaves_that_need_a_gradient) {
  const at::Tensor leaf = at::zeros({2}).requires_grad_();
  ASSERT_TRUE(copy_tensors({{"a", at::ones({2})}}, {{"a", leaf}}, "x").ok());
  EXPECT_EQ(leaf.sum().item<float>(), 2.0F);
  EXPECT_TRUE(leaf.is_leaf());
}

}  // namespace
}  // namespace lockstep
