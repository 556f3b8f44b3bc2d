// A volume that does not answer keeps nobody waiting.
#include "runner/agent/run_folder_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const std::chrono::steady_clock::time_point kNow{std::chrono::hours(1)};
constexpr std::chrono::seconds kLong{60};

// Answers each path with itself. The calls for "/slow" wait until they are let go. What the calls use lives as long as
// they do.
class Volume {
 public:
  [[nodiscard]] RunFolderView::Calls calls() const {
    return {.answer =
                [state = state_](const std::string& path) {
                  if (path == "/slow") state->released.wait();
                  return HttpAnswer{200, "", path == "/large" ? std::string(kFolderAnswersMax + 1, ' ') : path};
                },
            .append_recovery = [state = state_](const std::string& line) -> Status {
              if (line == "bad") return Error{ErrorCode::kUnavailable, "read-only"};
              return {};
            }};
  }
  void release() { state_->release.set_value(); }

 private:
  struct State {
    std::promise<void> release;
    std::shared_future<void> released = release.get_future().share();
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST(RunFolderView, hands_on_what_the_folder_answers) {
  Volume volume;
  RunFolderView view(volume.calls(), kLong);
  EXPECT_EQ(view.answer("/a", kNow).body, "/a");
  EXPECT_EQ(view.answer("/b", kNow).body, "/b");
}

TEST(RunFolderView, refuses_while_the_volume_does_not_answer_and_goes_on_when_it_does) {
  Volume volume;
  RunFolderView view(volume.calls(), std::chrono::milliseconds(200));
  const HttpAnswer late = view.answer("/slow", kNow);
  EXPECT_EQ(late.code, 503);
  EXPECT_THAT(late.body, HasSubstr("does not answer"));
  EXPECT_EQ(view.answer("/a", kNow).code, 503);
  volume.release();
  HttpAnswer answer = view.answer("/a", kNow);
  while (answer.code == 503) answer = view.answer("/a", kNow);
  EXPECT_EQ(answer.body, "/a") << "never the answer to what was asked before";
}

TEST(RunFolderView, ends_without_waiting_for_the_volume) {
  Volume volume;
  {
    RunFolderView view(volume.calls(), std::chrono::milliseconds(1));
    EXPECT_EQ(view.answer("/slow", kNow).code, 503);
  }
  volume.release();
}

TEST(RunFolderView, holds_no_more_answers_in_memory_than_peers_may_cost) {
  Volume volume;
  RunFolderView view(volume.calls(), kLong);
  EXPECT_EQ(view.answer("/large", kNow).code, 200);
  const HttpAnswer refused = view.answer("/a", kNow + kHttpRequestTime);
  EXPECT_EQ(refused.code, 503);
  EXPECT_THAT(refused.body, HasSubstr("try again in 10 s"));
  EXPECT_EQ(view.answer("/a", kNow + 2 * kHttpRequestTime).code, 200);
}

TEST(RunFolderView, tells_once_why_lines_are_not_written) {
  Volume volume;
  RunFolderView view(volume.calls(), kLong);
  view.append_recovery("bad");
  view.append_recovery("bad");
  EXPECT_EQ(view.answer("/a", kNow).code, 200);  // queued after the appended lines
  EXPECT_EQ(view.new_problem(), "read-only");
  EXPECT_THAT(view.new_problem(), IsEmpty());
}

TEST(RunFolderView, reads_and_writes_a_folder) {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n");
  RunFolderView view(folder.path());
  view.append_recovery(R"({"cause":"PeerLost","step":1})");
  const HttpAnswer answer = view.answer("/history", kNow);  // queued after the appended line
  EXPECT_THAT(answer.body, HasSubstr("2.5"));
  EXPECT_THAT(answer.body, HasSubstr("PeerLost"));
}

TEST(RunFolderView, without_a_folder_keeps_figures_and_recoveries_and_touches_no_file) {
  RunFolderView view("");
  view.add_figures({.step = 3, .values = {{"loss", 2.5}}});
  view.append_recovery(R"({"cause":"SignalKILL","step":4})");
  view.add_figures({.step = 5, .values = {{"loss", 1.5}}});
  const std::string history = view.answer("/history", kNow).body;  // queued after what was added
  EXPECT_THAT(history, HasSubstr(R"({"name":"loss","evaluation":false,"points":[[3,2.5],[5,1.5]]})"));
  EXPECT_THAT(history, HasSubstr(R"({"step":4,"cause":"SignalKILL")"));
  EXPECT_THAT(history, HasSubstr(R"("badLines":0,"complete":true})"));
  EXPECT_EQ(view.answer("/outputs", kNow).body, "{\"outputs\":[]}\n");
  EXPECT_EQ(view.answer("/outputs/step-00000010/a.txt", kNow).code, 404);
  EXPECT_THAT(view.new_problem(), IsEmpty());
}

}  // namespace
}  // namespace lockstep
