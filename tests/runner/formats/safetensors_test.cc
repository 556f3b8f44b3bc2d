#include "runner/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

const std::vector<float> kFloats = {1.0F, -2.5F, 3.25F, 4.0F, 5.0F, 6.0F};
const std::vector<int64_t> kInts = {-1, 1LL << 40};
const std::vector<uint8_t> kBytes = {1, 0, 1};

std::vector<TensorView> sample() {
  return {{"flags", DType::kBool, {3}, kBytes.data(), 3},
          {"layer.weight", DType::kF32, {2, 3}, kFloats.data(), 24},
          {"step", DType::kI64, {2}, kInts.data(), 16},
          {"scalar", DType::kF32, {}, kFloats.data(), 4},
          {"empty", DType::kF32, {0, 4}, nullptr, 0}};
}

std::string serialise(const std::vector<TensorView>& tensors) {
  std::string out;
  const Status status = write_safetensors(tensors, {{"format", "pt"}}, [&](const void* data, size_t bytes) -> Status {
    out.append(static_cast<const char*>(data), bytes);
    return {};
  });
  EXPECT_TRUE(status.ok());
  return out;
}

Result<TensorFile> read(const std::string& bytes) {
  return read_safetensors(std::make_shared<const std::string>(bytes), "model.safetensors");
}

std::string with_header(const std::string& header, const std::string& data) {
  std::string out(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(out.data(), &size, 8);
  return out + header + data;
}

TEST(Safetensors, gives_back_names_types_shapes_and_bytes) {
  const std::string bytes = serialise(sample());
  Result<TensorFile> file = read(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->metadata.at("format"), "pt");
  ASSERT_EQ(file->tensors.size(), 5U);
  for (const TensorView& expected : sample()) {
    const auto found = std::find_if(file->tensors.begin(), file->tensors.end(),
                                    [&](const TensorView& view) { return view.name == expected.name; });
    ASSERT_NE(found, file->tensors.end()) << expected.name;
    EXPECT_EQ(found->dtype, expected.dtype);
    EXPECT_EQ(found->shape, expected.shape);
    ASSERT_EQ(found->bytes, expected.bytes);
    if (expected.bytes > 0) {
      EXPECT_EQ(std::memcmp(found->data, expected.data, expected.bytes), 0);
    }
  }
}

TEST(Safetensors, aligns_the_header_and_every_tensor) {
  const std::string bytes = serialise(sample());
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  EXPECT_EQ(header % 8, 0U);
  Result<TensorFile> file = read(bytes);
  ASSERT_TRUE(file.ok());
  const char* base = file->memory.front()->data();
  for (const TensorView& view : file->tensors) {
    EXPECT_EQ(static_cast<size_t>(static_cast<const char*>(view.data) - base) % size_of(view.dtype), 0U) << view.name;
  }
}

TEST(Safetensors, refuses_every_truncation) {
  const std::string bytes = serialise(sample());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Result<TensorFile> file = read(bytes.substr(0, size));
    ASSERT_FALSE(file.ok()) << size;
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(file.error().message, HasSubstr("model.safetensors"));
  }
}

struct BadHeader {
  std::string header;
  std::string data;
  std::string expected;  // part of the message
};

TEST(Safetensors, refuses_a_header_that_does_not_fit_its_data) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::vector<BadHeader> cases = {
      {"[]", "", "no JSON object"},
      {"{", "", "not valid JSON"},
      {"{" + a + "," + a + "}", "12345678", "two tensors are named \"a\""},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "12345678", "\"a\""},
      {R"({"a":{"dtype":"F9","shape":[2],"data_offsets":[0,8]}})", "12345678", "dtype \"F9\""},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "12345678", "shape"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "", "does not fit"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "12345678", "does not fit"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", "1234567812345678", "begins at 8"},
      {"{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", "123456781234", "begins at 4"},
      {"{" + a + "}", "123456789", "9 bytes follow"},
      {"{" + a + "}", "1234", "truncated"},
      {R"({"a":{"dtype":"F32","shape":[[[[2]]]],"data_offsets":[0,8]}})", "12345678", "too deeply"},
      {R"({"__metadata__":{"k":1}})", "", "no text"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", "", "not exactly"},
  };
  for (const BadHeader& bad : cases) {
    const Result<TensorFile> file = read(with_header(bad.header, bad.data));
    ASSERT_FALSE(file.ok()) << bad.header;
    EXPECT_THAT(file.error().message, HasSubstr(bad.expected)) << bad.header;
  }
}

TEST(Safetensors, refuses_a_header_longer_than_the_file_or_the_bound) {
  EXPECT_FALSE(read(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)).ok());
  EXPECT_FALSE(read(std::string("\x03\0\0\0\0\0\0\0{}", 10)).ok());
}

TEST(Safetensors, refuses_to_write_two_tensors_of_one_name) {
  const TensorView one{"a", DType::kBool, {1}, kBytes.data(), 1};
  const Status status = write_safetensors({one, one}, {}, [](const void*, size_t) -> Status { return {}; });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalid);
}

}  // namespace
}  // namespace lockstep
