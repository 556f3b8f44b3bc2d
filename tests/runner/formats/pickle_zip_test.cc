#include "runner/formats/pickle_zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "runner/formats/unpickler.h"
#include "runner/formats/zip_archive.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

const std::vector<float> kFloats = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
const std::vector<int64_t> kInts = {7, -8};

PickleDict sample() {
  PickleDict model;
  model.emplace_back("w", PickleValue{TensorView{"w", DType::kF32, {2, 3}, kFloats.data(), 24}});
  model.emplace_back("n", PickleValue{TensorView{"n", DType::kI64, {2}, kInts.data(), 16}});
  PickleDict root;
  root.emplace_back("epoch", PickleValue{int64_t{1} << 40});
  root.emplace_back("loss", PickleValue{0.25});
  root.emplace_back("name", PickleValue{std::string("sasrec")});
  root.emplace_back("model", PickleValue{model});
  return root;
}

std::string serialise(const PickleDict& root, const TorchZipOptions& options = {}) {
  std::string out;
  const Status status = write_torch_zip(
      root,
      [&](const void* data, size_t bytes) -> Status {
        out.append(static_cast<const char*>(data), bytes);
        return {};
      },
      options);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return out;
}

Result<TorchFile> read(const std::string& bytes) {
  return read_torch_zip(std::make_shared<const std::string>(bytes), "model.pt");
}

void expect_sample(const std::string& bytes) {
  Result<TorchFile> file = read(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto& root = std::get<PickleDict>(file->root.value);
  EXPECT_EQ(std::get<int64_t>(root[0].second.value), int64_t{1} << 40);
  EXPECT_EQ(std::get<double>(root[1].second.value), 0.25);
  EXPECT_EQ(std::get<std::string>(root[2].second.value), "sasrec");
  Result<TensorFile> tensors = state_dict_of(*file, "model.pt");
  ASSERT_TRUE(tensors.ok());
  ASSERT_EQ(tensors->tensors.size(), 2U);
  EXPECT_EQ(tensors->tensors[0].name, "w");
  EXPECT_EQ(tensors->tensors[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(tensors->tensors[0].data, kFloats.data(), 24), 0);
  EXPECT_EQ(tensors->tensors[1].dtype, DType::kI64);
  EXPECT_EQ(std::memcmp(tensors->tensors[1].data, kInts.data(), 16), 0);
}

TEST(TorchZip, gives_back_nested_dicts_and_tensors) { expect_sample(serialise(sample())); }

TEST(TorchZip, reads_its_zip64_form) { expect_sample(serialise(sample(), {.zip64_from = 1})); }

TEST(TorchZip, puts_every_storage_at_a_multiple_of_64) {
  const std::string bytes = serialise(sample());
  Result<std::map<std::string, ZipEntry>> entries = read_zip_directory(bytes, "model.pt");
  ASSERT_TRUE(entries.ok());
  EXPECT_EQ(entries->at("archive/data/0").data_offset % 64, 0U);
  EXPECT_EQ(entries->at("archive/data/1").data_offset % 64, 0U);
}

TEST(TorchZip, refuses_every_truncation_and_never_returns_a_flipped_bit) {
  const std::string bytes = serialise(sample());
  for (size_t size = 0; size < bytes.size(); ++size) ASSERT_FALSE(read(bytes.substr(0, size)).ok()) << size;
  const size_t weights = read_zip_directory(bytes, "model.pt")->at("archive/data/0").data_offset;
  for (size_t i = 0; i < 24; ++i) {
    std::string flipped = bytes;
    flipped[weights + i] = static_cast<char>(flipped[weights + i] ^ 4);
    const Result<TorchFile> file = read(flipped);
    ASSERT_FALSE(file.ok());
    EXPECT_THAT(file.error().message, HasSubstr("CRC"));
  }
}

// A file whose data.pkl is given word for word.
std::string with_pickle(const std::string& pickle, const std::string& storage = std::string(16, 'x')) {
  std::string out;
  const ByteSink sink = [&](const void* data, size_t bytes) -> Status {
    out.append(static_cast<const char*>(data), bytes);
    return {};
  };
  ZipWriter zip(sink, 0xFFFFFFFFU);
  EXPECT_TRUE(zip.add("archive/data.pkl", pickle.data(), pickle.size()).ok());
  EXPECT_TRUE(zip.add("archive/data/0", storage.data(), storage.size()).ok());
  EXPECT_TRUE(zip.finish().ok());
  return out;
}

std::string tensor_pickle(const std::string& offset, const std::string& shape, const std::string& strides) {
  const std::string header = "\x80\x02}X\x01";
  const std::string zeros(3, '\0');
  return header + zeros + "actorch._utils\n_rebuild_tensor_v2\n((X\x07" + zeros + "storagectorch\nFloatStorage\nX\x01" +
         zeros + "0X\x03" + zeros + "cpuK\x04tQ" + offset + shape + strides + "\x89}tRs.";
}

TEST(TorchZip, copies_a_transposed_tensor_into_row_order) {
  const std::vector<float> storage = {1, 2, 3, 4};
  const std::string bytes = with_pickle(tensor_pickle(std::string("K\0", 2), "K\x02K\x02\x86", "K\x01K\x02\x86"),
                                        std::string(reinterpret_cast<const char*>(storage.data()), 16));
  Result<TorchFile> file = read(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const Result<TensorFile> tensors = state_dict_of(*file, "model.pt");
  const std::vector<float> expected = {1, 3, 2, 4};
  EXPECT_EQ(std::memcmp(tensors->tensors[0].data, expected.data(), 16), 0);
}

TEST(TorchZip, refuses_a_tensor_that_leaves_its_storage) {
  const Result<TorchFile> far = read(with_pickle(tensor_pickle("K\x03", "K\x02\x85", "K\x01\x85")));
  ASSERT_FALSE(far.ok());
  EXPECT_THAT(far.error().message, HasSubstr("leaves its storage"));
  // 2^31 - 1 elements of one element: 8 GB out of a file of a few hundred bytes.
  const Result<TorchFile> wide =
      read(with_pickle(tensor_pickle(std::string("K\0", 2), "J\xff\xff\xff\x7f\x85", std::string("K\0\x85", 3))));
  ASSERT_FALSE(wide.ok());
  EXPECT_THAT(wide.error().message, HasSubstr("more data"));
}

TEST(TorchZip, names_the_global_that_it_refuses) {
  const Result<TorchFile> file =
      read(with_pickle("\x80\x02"
                       "cposix\nsystem\nX\x02" +
                       std::string(3, '\0') + "ls\x85R."));
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(file.error().message, HasSubstr("posix.system"));
}

TEST(TorchZip, refuses_a_list_in_itself_and_values_without_end) {
  EXPECT_THAT(read(with_pickle("\x80\x02]q\x01h\x01"
                               "a."))
                  .error()
                  .message,
              HasSubstr("in itself"));
  // Ten lists of ten of the list before: 10^10 values.
  std::string pickle = "\x80\x02]q" + std::string(1, '\0');
  for (char i = 0; i < 10; ++i) {
    pickle += "](";
    for (int k = 0; k < 10; ++k) pickle += std::string("h") + i;
    pickle += "eq" + std::string(1, static_cast<char>(i + 1));
  }
  pickle = pickle.substr(0, pickle.size());
  EXPECT_FALSE(unpickle(pickle + ".", "model.pt").ok());  // more than one value on the stack
  std::string nested = "\x80\x02](" + pickle.substr(2) + "e.";
  EXPECT_THAT(read(with_pickle(nested)).error().message, HasSubstr("more data"));
}

// Short opcodes that name one value again and again: a byte or two of the file for each place in memory.
TEST(TorchZip, refuses_a_stack_and_a_memo_without_end) {
  constexpr int kTooMany = 2'000'001;
  std::string stack = "\x80\x02]q" + std::string(1, '\0');
  for (int i = 0; i < kTooMany; ++i) stack += std::string("h\0", 2);
  EXPECT_THAT(unpickle(stack + ".", "model.pt").error().message, HasSubstr("2,000,000"));
  std::string memo = "\x80\x02]";
  for (uint32_t i = 0; i < kTooMany; ++i) {
    memo += "r";
    for (uint32_t byte = 0; byte < 4; ++byte) memo.push_back(static_cast<char>(i >> (8U * byte)));
  }
  EXPECT_THAT(unpickle(memo + ".", "model.pt").error().message, HasSubstr("2,000,000"));
}

TEST(TorchZip, says_how_to_save_a_legacy_file_again) {
  const Result<TorchFile> file = read(std::string("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9", 9));
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message, HasSubstr("torch.save(torch.load(FILE), FILE)"));
  EXPECT_EQ(read("hello").error().code, ErrorCode::kCorrupt);
}

TEST(TorchZip, asks_which_of_several_dicts_is_the_model) {
  const PickleValue tensor{TensorView{"w", DType::kF32, {1}, kFloats.data(), 4}};
  PickleDict root;
  root.emplace_back("encoder", PickleValue{PickleDict{{"w", tensor}}});
  root.emplace_back("decoder", PickleValue{PickleDict{{"w", tensor}}});
  Result<TorchFile> file = read(serialise(root));
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(state_dict_of(*file, "model.pt").error().message, HasSubstr("encoder, decoder"));
}

TEST(TorchZip, joins_the_parts_of_a_model_that_is_saved_in_parts) {
  const PickleValue tensor{TensorView{"w", DType::kF32, {1}, kFloats.data(), 4}};
  PickleDict root;
  root.emplace_back("encoder_state_dict", PickleValue{PickleDict{{"w", tensor}}});
  root.emplace_back("decoder_state_dict", PickleValue{PickleDict{{"w", tensor}}});
  Result<TorchFile> file = read(serialise(root));
  ASSERT_TRUE(file.ok());
  const Result<TensorFile> tensors = state_dict_of(*file, "model.pt");
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  ASSERT_EQ(tensors->tensors.size(), 2U);
  EXPECT_EQ(tensors->tensors[0].name, "encoder.w");
  EXPECT_EQ(tensors->tensors[1].name, "decoder.w");
}

TEST(TorchZip, takes_off_what_distributed_training_puts_before_the_names_of_a_part) {
  const PickleValue tensor{TensorView{"w", DType::kF32, {1}, kFloats.data(), 4}};
  PickleDict root;
  root.emplace_back("encoder_state_dict", PickleValue{PickleDict{{"module.w", tensor}, {"module.module.b", tensor}}});
  root.emplace_back("decoder_state_dict", PickleValue{PickleDict{{"module.w", tensor}, {"b", tensor}}});
  const Result<TorchFile> file = read(serialise(root));
  ASSERT_TRUE(file.ok()) << file.error().message;
  const Result<TensorFile> tensors = state_dict_of(*file, "model.pt");
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  std::vector<std::string> names;
  for (const TensorView& view : tensors->tensors) names.push_back(view.name);
  EXPECT_THAT(names, testing::ElementsAre("encoder.w", "encoder.module.b", "decoder.module.w", "decoder.b"));
}

}  // namespace
}  // namespace lockstep
