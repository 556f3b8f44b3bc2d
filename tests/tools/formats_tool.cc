// Lets Python look at our file formats: `write-safetensors FILE`, `write-pt FILE` write the same sample tensors;
// `dump FILE` prints one JSON line for each tensor of a .safetensors, .pt or .pth file.
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>

#include "runner/base/atomic_file.h"
#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/base/sha256.h"
#include "runner/formats/pickle_zip.h"
#include "runner/formats/safetensors.h"

namespace lockstep {
namespace {

constexpr uint64_t kFileBytesMax = uint64_t{1} << 30;

// Ten elements of each dtype, counting 0..9 in the integer types and halves in F32 and F64.
struct Sample {
  std::vector<float> f32;
  std::vector<double> f64;
  std::vector<int64_t> i64;
  std::vector<uint8_t> u8;
  std::vector<uint16_t> bf16;
  std::vector<uint8_t> flags;

  Sample() {
    for (int i = 0; i < 10; ++i) {
      f32.push_back(static_cast<float>(i) * 0.5F);
      f64.push_back(i * 0.5);
      i64.push_back(i);
      u8.push_back(static_cast<uint8_t>(i));
      const float value = static_cast<float>(i);
      uint32_t bits = 0;
      std::memcpy(&bits, &value, 4);
      bf16.push_back(static_cast<uint16_t>(bits >> 16));
      flags.push_back(static_cast<uint8_t>(i % 2));
    }
  }
  [[nodiscard]] std::vector<TensorView> views() const {
    return {{"layer.f32", DType::kF32, {2, 5}, f32.data(), 40},
            {"f64", DType::kF64, {5, 2}, f64.data(), 80},
            {"i64", DType::kI64, {10}, i64.data(), 80},
            {"u8", DType::kU8, {10}, u8.data(), 10},
            {"bf16", DType::kBF16, {10}, bf16.data(), 20},
            {"flags", DType::kBool, {10}, flags.data(), 10},
            {"scalar", DType::kF32, {}, &f32[3], 4},
            {"empty", DType::kF32, {0, 3}, nullptr, 0}};
  }
};

Status write_sample(FileSystem& fs, const std::string& command, const std::string& path) {
  const Sample sample;
  const std::vector<TensorView> views = sample.views();
  return write_file_atomically(fs, path, [&](const ByteSink& sink) -> Status {
    if (command == "write-safetensors") return write_safetensors(views, {{"format", "pt"}}, sink);
    PickleDict model;
    for (const TensorView& view : views) model.emplace_back(view.name, PickleValue{view});
    if (command == "write-pt") return write_torch_zip(model, sink);
    PickleDict root;
    root.emplace_back("epoch", PickleValue{int64_t{5'000'000'000}});
    root.emplace_back("loss", PickleValue{-0.25});
    root.emplace_back("done", PickleValue{true});
    root.emplace_back("nothing", PickleValue{});
    root.emplace_back("name", PickleValue{std::string("Sätze")});
    root.emplace_back("history", PickleValue{PickleList{PickleValue{int64_t{-1}}, PickleValue{0.5}}});
    root.emplace_back("model", PickleValue{model});
    return write_torch_zip(root, sink, {.zip64_from = command == "write-nested-zip64" ? 1U : 0xFFFFFFFFU});
  });
}

Status dump(FileSystem& fs, const std::string& path) {
  TRY_ASSIGN(std::string text, read_file(fs, path, kFileBytesMax));
  const auto bytes = std::make_shared<const std::string>(std::move(text));
  TensorFile file;
  if (path.ends_with(".safetensors")) {
    TRY_ASSIGN(file, read_safetensors(bytes, path));
  } else {
    TRY_ASSIGN(const TorchFile torch_file, read_torch_zip(bytes, path));
    TRY_ASSIGN(file, state_dict_of(torch_file, path));
  }
  for (const TensorView& view : file.tensors) {
    OrderedJson line;
    line["name"] = view.name;
    line["dtype"] = safetensors_name(view.dtype);
    line["shape"] = view.shape;
    line["sha256"] = sha256_hex({static_cast<const char*>(view.data), view.bytes});
    std::cout << dump_line(line) << "\n";
  }
  return {};
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: formats_tool dump|write-safetensors|write-pt|write-nested|write-nested-zip64 FILE\n";
    return 2;
  }
  const std::string command = argv[1];
  lockstep::PosixFileSystem fs;
  const lockstep::Status status =
      command == "dump" ? lockstep::dump(fs, argv[2]) : lockstep::write_sample(fs, command, argv[2]);
  if (status.ok()) return 0;
  std::cerr << status.error().message << "\n";
  return 1;
}
