#include "runner/contract/run_folder_layout.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(RunFolderLayout, an_output_s_path_leads_back_to_it) {
  const OutputFile output{.step = 120, .name = "samples_0-1.png"};
  EXPECT_EQ(output_path(output), "outputs/step-00000120/samples_0-1.png");
  EXPECT_EQ(parse_output_path(output_path(output)), output);
  const OutputFile late{.step = 1'234'567'890, .name = "a.md"};
  EXPECT_EQ(parse_output_path(output_path(late)), late);
}

TEST(RunFolderLayout, nothing_else_is_an_output_s_path) {
  for (const char* path : {"",
                           "outputs",
                           "outputs/",
                           "outputs/a.png",
                           "outputs/step-00000120",
                           "outputs/step-00000120/",
                           "outputs/step-120/a.png",
                           "outputs/step--0000120/a.png",
                           "outputs/step-00000120/../a.png",
                           "outputs/step-00000120/..",
                           "outputs/../step-00000120/a.png",
                           "outputs//step-00000120/a.png",
                           "outputs/step-00000120//a.png",
                           "outputs/step-00000120/a/b.png",
                           "outputs/step-00000120/.a.png",
                           "outputs/step-00000120/.png",
                           "outputs/step-00000120/%2e%2e%2fa.png",
                           "outputs/step-00000120/a b.png",
                           "outputs/step-00000120/a.png?x",
                           "outputs/step-00000120/a.html",
                           "outputs/step-00000120/a.js",
                           "outputs/step-00000120/model.safetensors",
                           "outputs/step-00000120/a.PNG",
                           "outputs/step-00000120/\xc3\xa4.png",
                           "outputs\\step-00000120\\a.png",
                           "/outputs/step-00000120/a.png",
                           "step-00000120/state.json"}) {
    EXPECT_FALSE(parse_output_path(path).has_value()) << path;
  }
  EXPECT_FALSE(is_output_name(std::string("a\0.png", 6)));
  EXPECT_FALSE(is_output_name(std::string(kOutputNameMax, 'a') + ".png"));
}

TEST(RunFolderLayout, browsers_are_told_what_an_output_is) {
  EXPECT_STREQ(output_content_type("a.png"), "image/png");
  EXPECT_STREQ(output_content_type("a.svg"), "image/svg+xml");
  EXPECT_STREQ(output_content_type("a.txt"), "text/plain; charset=utf-8");
  EXPECT_STREQ(output_content_type("a.md"), "text/plain; charset=utf-8");
  EXPECT_EQ(output_content_type("a.html"), nullptr);
}

}  // namespace
}  // namespace lockstep
