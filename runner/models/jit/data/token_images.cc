#include "runner/models/jit/data/token_images.h"

#include <utility>

#include "runner/base/check.h"
#include "runner/models/jit/data/text_files.h"

namespace lockstep {
namespace {

class TokenImages final : public ImageSource {
 public:
  TokenImages(TextFiles texts, int64_t side, int64_t tokens_max, BytePairEncoding tokenizer)
      : texts_(std::move(texts)), side_(side), tokens_max_(tokens_max), tokenizer_(std::move(tokenizer)) {}

  [[nodiscard]] std::string summary() const override { return texts_.summary(); }
  [[nodiscard]] std::vector<SkippedFile> remarks() const override { return texts_.left_out(); }
  [[nodiscard]] int64_t size() const override { return texts_.size(); }
  [[nodiscard]] std::string name(int64_t i) const override { return texts_.name(i); }
  [[nodiscard]] Result<std::vector<LabelledImage>> read(int64_t i) const override {
    TRY_ASSIGN(const std::vector<std::string> texts, texts_.read(i));
    std::vector<LabelledImage> images;
    for (const std::string& text : texts) {
      images.push_back({.rgb = token_image(tokens_with_end(tokenizer_, text, tokens_max_), side_), .label = 0});
    }
    return images;
  }
  [[nodiscard]] std::string fingerprint() const override {
    return "tokens " + tokenizer_.digest() + "\n" + std::to_string(side_) + " pixels, at most " +
           std::to_string(tokens_max_) + "\n" + texts_.fingerprint();
  }
  [[nodiscard]] int64_t image_side() const override { return side_; }
  [[nodiscard]] const std::vector<std::string>& classes() const override { return classes_; }

 private:
  TextFiles texts_;
  int64_t side_;
  int64_t tokens_max_;
  BytePairEncoding tokenizer_;
  std::vector<std::string> classes_;  // always empty
};

}  // namespace

std::vector<uint8_t> token_image(std::span<const int32_t> tokens, int64_t side) {
  LOCKSTEP_CHECK(static_cast<int64_t>(tokens.size()) <= side * side, "a token is a pixel");
  std::vector<uint8_t> pixels(static_cast<size_t>(side * side * 3), kPaddingByte);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<uint32_t>(tokens[i]);
    pixels[3 * i] = static_cast<uint8_t>(token >> 16U);
    pixels[3 * i + 1] = static_cast<uint8_t>(token >> 8U);
    pixels[3 * i + 2] = static_cast<uint8_t>(token);
  }
  return pixels;
}

std::vector<int32_t> tokens_with_end(const BytePairEncoding& tokenizer, const std::string& text, int64_t tokens_max) {
  std::vector<int32_t> tokens = tokenizer.encode(text, static_cast<size_t>(tokens_max) - 1);
  tokens.push_back(tokenizer.end_of_text());
  return tokens;
}

Result<std::unique_ptr<ImageSource>> find_token_images(FileSystem& fs, const std::string& path, int64_t side,
                                                       int64_t tokens_max, BytePairEncoding tokenizer,
                                                       const std::function<void()>& on_progress) {
  TRY_ASSIGN(TextFiles texts, TextFiles::find(fs, path, on_progress));
  return std::unique_ptr<ImageSource>(
      std::make_unique<TokenImages>(std::move(texts), side, tokens_max, std::move(tokenizer)));
}

}  // namespace lockstep
