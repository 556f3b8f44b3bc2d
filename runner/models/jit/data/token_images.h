// Texts as images: each pixel is a token, row by row. Its red, green and blue are the token's number in base 256, the
// highest digit first. Pixels after the token that ends the text are white, which is not a token. (As in the guide.)
//
// Threads: pure; a source as ImageSource.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/text/byte_pair_encoding.h"
#include "runner/models/jit/data/image_source.h"

namespace lockstep {

// White pixels (255, 255, 255) are padding; no token has that colour.
inline constexpr uint8_t kPaddingByte = 255;

// [side, side, 3]. At most side² tokens, each in [0, 2²⁴ − 1).
std::vector<uint8_t> token_image(std::span<const int32_t> tokens, int64_t side);

// The first tokens_max of a text's tokens and the token that ends it. tokens_max: at least 1.
std::vector<int32_t> tokens_with_end(const BytePairEncoding& tokenizer, const std::string& text, int64_t tokens_max);

// The texts of a folder or a file (text_files.h), each an image; no classes. tokens_max in [1, side²].
// `fs` outlives the source. Errors: those of TextFiles::find.
Result<std::unique_ptr<ImageSource>> find_token_images(FileSystem& fs, const std::string& path, int64_t side,
                                                       int64_t tokens_max, BytePairEncoding tokenizer,
                                                       const std::function<void()>& on_progress);

}  // namespace lockstep
