#include "runner/agent/progress_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <thread>

#include "runner/agent/terminal.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

ProgressView view() {
  ProgressView v;
  v.workload = "sasrec";
  v.phase = "training";
  v.progress = Progress{.step = 250,
                        .total_steps = 1000,
                        .epoch = 1,
                        .num_epochs = 4,
                        .loss = 0.41239,
                        .lr = 1e-3,
                        .grad_norm = 1.0,
                        .samples_per_second = 12345,
                        .eta_seconds = 151,
                        .data_wait_ratio = 0.034};
  v.gpus = {GpuUse{.index = 0,
                   .memory_used_bytes = int64_t{4} << 30,
                   .memory_total_bytes = int64_t{80} << 30,
                   .utilisation_percent = 97}};
  return v;
}

TEST(ProgressLine, shows_everything_when_there_is_room) {
  EXPECT_EQ(render_progress_line(view(), {.columns = 160}),
            "sasrec  ########----------------------  25%  step 250/1000  epoch 2/4  loss 0.4124  12.3k samples/s  "
            "ETA 2:31  data wait 3%  GPU0 4.0/80.0 GiB 97%");
}

TEST(ProgressLine, leaves_out_the_least_important_first_and_never_wraps) {
  std::string shorter = render_progress_line(view(), {.columns = 100});
  EXPECT_THAT(shorter, Not(HasSubstr("GPU0")));
  EXPECT_THAT(shorter, HasSubstr("loss"));
  for (int columns = 1; columns < 200; ++columns) {
    EXPECT_LE(render_progress_line(view(), {.columns = columns}).size(), static_cast<size_t>(columns));
  }
  EXPECT_THAT(render_progress_line(view(), {.columns = 40}), HasSubstr("step 250/1000"));
}

TEST(ProgressLine, colours_and_draws_only_when_asked) {
  EXPECT_THAT(render_progress_line(view(), {.columns = 160}), Not(HasSubstr("\033")));
  EXPECT_THAT(render_progress_line(view(), {.columns = 160, .color = true, .unicode = true}), HasSubstr("\033[36m━"));
}

TEST(ProgressLine, leaves_out_what_is_not_known) {
  ProgressView v = view();
  v.gpus.clear();
  v.progress->loss = std::numeric_limits<double>::quiet_NaN();
  v.progress->eta_seconds = -1;
  v.progress->samples_per_second = 0;
  v.progress->num_epochs = 0;
  EXPECT_EQ(render_plain_line(v), "sasrec: 25%  step 250/1000  data wait 3%");
}

TEST(ProgressLine, names_the_phase_before_the_first_step) {
  ProgressView v = view();
  v.progress.reset();
  EXPECT_EQ(render_plain_line(v), "sasrec: training");
  EXPECT_EQ(render_progress_line(v, {.columns = 80}), "sasrec  training");
}

TEST(ProgressLine, shows_full_only_at_the_end) {
  ProgressView v = view();
  v.progress->step = 999;
  EXPECT_THAT(render_plain_line(v), HasSubstr(" 99%"));
  v.progress->step = 1000;
  EXPECT_THAT(render_plain_line(v), HasSubstr(" 100%"));
}

TEST(ProgressLine, formats_durations_and_rates) {
  EXPECT_EQ(format_duration(7), "0:07");
  EXPECT_EQ(format_duration(754), "12:34");
  EXPECT_EQ(format_duration(10921), "3:02:01");
  EXPECT_EQ(format_duration(2 * 86400 + 4 * 3600), "2d 4:00:00");
  EXPECT_EQ(format_rate(12.34), "12.3");
  EXPECT_EQ(format_rate(950), "950");
  EXPECT_EQ(format_rate(12345), "12.3k");
  EXPECT_EQ(format_rate(4'560'000), "4.56M");
}

TEST(TerminalOptions, are_live_only_on_a_capable_terminal) {
  const TerminalEnvironment good{.stdout_is_a_tty = true, .term = "xterm-256color", .locale = "C.UTF-8"};
  EXPECT_TRUE(terminal_options(good).live);
  EXPECT_TRUE(terminal_options(good).unicode);
  for (const auto& change : std::vector<std::function<void(TerminalEnvironment&)>>{
           [](auto& e) { e.stdout_is_a_tty = false; }, [](auto& e) { e.no_color = true; }, [](auto& e) { e.ci = true; },
           [](auto& e) { e.term = "dumb"; }, [](auto& e) { e.term = ""; }}) {
    TerminalEnvironment bad = good;
    change(bad);
    EXPECT_FALSE(terminal_options(bad).live);
  }
}

// What a Terminal writes into a pipe.
class TerminalOutput : public testing::Test {
 protected:
  TerminalOutput() { EXPECT_EQ(::pipe(fds_), 0); }
  ~TerminalOutput() override { ::close(fds_[0]); }
  std::string written() {
    ::close(fds_[1]);
    std::string all(65536, '\0');
    all.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(fds_[0], all.data(), all.size()))));
    return all;
  }
  int fds_[2] = {-1, -1};
};

TEST_F(TerminalOutput, takes_the_live_line_away_before_other_lines) {
  Terminal terminal({.live = true}, fds_[1], fds_[1]);
  terminal.show_progress(view(), TimePoint());
  terminal.show_progress(view(), TimePoint() + kRedrawInterval / 2);
  terminal.out_line("relayed");
  const std::string all = written();
  EXPECT_THAT(all, testing::EndsWith("\r\033[Krelayed\n"));
  EXPECT_EQ(all.find("sasrec"), all.rfind("sasrec"));
}

TEST_F(TerminalOutput, hides_the_live_line_and_adds_nothing) {
  Terminal terminal({.live = true}, fds_[1], fds_[1]);
  terminal.show_progress(view(), TimePoint());
  terminal.hide_progress();
  terminal.hide_progress();
  const std::string all = written();
  EXPECT_THAT(all, testing::EndsWith("\r\033[K"));
  EXPECT_THAT(all, Not(HasSubstr("\n")));
  EXPECT_EQ(all.find("sasrec"), all.rfind("sasrec"));
}

TEST_F(TerminalOutput, is_plain_and_rare_elsewhere) {
  Terminal terminal({.live = false}, fds_[1], fds_[1]);
  terminal.show_progress(view(), TimePoint());
  terminal.show_progress(view(), TimePoint() + kPlainInterval / 2);
  terminal.show_progress(view(), TimePoint() + kPlainInterval);
  terminal.show_progress(view(), TimePoint() + 2 * kPlainInterval);  // nothing new
  terminal.hide_progress();
  EXPECT_EQ(written(), render_plain_line(view()) + "\n");
}

TEST_F(TerminalOutput, gives_the_live_line_to_a_program_that_draws_one) {
  Terminal terminal({.live = true}, fds_[1], fds_[1]);
  auto show = [&, at = TimePoint()]() mutable { terminal.show_progress(view(), at += kRedrawInterval); };
  terminal.set_unfinished(0, " 10%|█");
  terminal.set_unfinished(2, "[rank 1] another one's");
  show();
  terminal.set_unfinished(0, std::string(70, 'x') + "ääääääääääääää");  // longer than the terminal
  show();
  terminal.set_unfinished(0, "");
  show();
  const std::string clear = "\r\033[K";
  EXPECT_THAT(written(),
              testing::StartsWith(clear + " 10%|█" + clear + std::string(70, 'x') + "äääääääää" + clear + "sasrec"));
}

TEST_F(TerminalOutput, prints_an_unfinished_line_now_and_then_elsewhere) {
  Terminal terminal({.live = false}, fds_[1], fds_[1]);
  terminal.set_unfinished(0, "loading …");
  for (int i = 0; i < 3; ++i) terminal.show_progress(std::nullopt, TimePoint() + i * kPlainInterval);
  terminal.set_unfinished(0, "");
  terminal.show_progress(std::nullopt, TimePoint() + 3 * kPlainInterval);
  EXPECT_EQ(written(), "loading …\n");
}

// Ctrl-S blocks the output of node 0's terminal. Its agent must go on all the same: the other nodes depend on it.
TEST_F(TerminalOutput, waits_for_nobody_and_says_what_it_left_out) {
  Terminal terminal({.live = false}, fds_[1], fds_[1]);
  const std::string line(999, 'x');
  for (int i = 0; i < 2000; ++i) terminal.out_line(line + std::to_string(i % 10));  // returns although nobody reads
  terminal.out_line("the last line");
  terminal.flush(std::chrono::milliseconds(1));
  std::string all;
  std::thread reader([&] {
    std::string piece(65536, '\0');
    for (ssize_t n = 0; (n = ::read(fds_[0], piece.data(), piece.size())) > 0;) {
      all.append(piece, 0, static_cast<size_t>(n));
    }
  });
  terminal.flush(std::chrono::seconds(60));
  ::close(fds_[1]);
  reader.join();
  EXPECT_THAT(all, testing::StartsWith(line + "0\n" + line + "1\n"));
  EXPECT_THAT(all, testing::EndsWith("the last line\n"));
  EXPECT_THAT(all, HasSubstr(" lines were left out: nobody read the output\n"));
  EXPECT_GT(all.size(), kUnreadBytesMax);
  EXPECT_LT(all.size(), kUnreadBytesMax + 200'000);
}

}  // namespace
}  // namespace lockstep
