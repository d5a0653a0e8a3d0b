// SPDX-License-Identifier: Apache-2.0 - what a capture of stderr keeps and what not.
#include "src/pjrt/stderr_capture.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace torch_tpu::pjrt {
namespace {

void print(const std::string& text) {
  ASSERT_EQ(write(STDERR_FILENO, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

TEST(StderrCapture, DropsLogLinesAndReplaysTheRest) {
  ::testing::internal::CaptureStderr();
  {
    const StderrCapture outer(true);
    print("W1130 17:54:15.2 1 compiler.cc:12] spilled\n50%|#####     |");
    {
      const StderrCapture inner(true);
      print("\nE0000 00:00:1764525255.2 9 x.cc:1] second\n");
      EXPECT_EQ(inner.text().find("spilled"), std::string::npos);
      EXPECT_NE(inner.text().find("second"), std::string::npos);
    }
    EXPECT_NE(outer.text().find("spilled"), std::string::npos);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "50%|#####     |\n");
}

TEST(StderrCapture, DoesNothingWhenDisabled) {
  ::testing::internal::CaptureStderr();
  {
    const StderrCapture capture(false);
    print("W1130 17:54:15.2 1 compiler.cc:12] spilled\n");
    EXPECT_EQ(capture.text(), "");
  }
  EXPECT_NE(::testing::internal::GetCapturedStderr(), "");
}

TEST(StderrCapture, TellsLogLinesFromOthers) {
  EXPECT_TRUE(
      is_log_line("I0000 00:00:1764525255.227 4242 cpu_client.cc:320] TfrtCpuClient created.\n"));
  EXPECT_TRUE(is_log_line("2026-11-30 17:54:15.1: I external/xla/service.cc:1] hello\n"));
  EXPECT_TRUE(is_log_line("WARNING: Logging before InitGoogle() is written to STDERR\n"));
  EXPECT_TRUE(is_log_line("learning/45eac/tfrc/runtime/libtpu_init_utils.cc:370\n"));
  EXPECT_FALSE(is_log_line("Epoch 3: 50%|#####     |\n"));
  EXPECT_FALSE(is_log_line("E2E test failed\n"));
  EXPECT_FALSE(is_log_line("main.cc:12: error: expected ';'\n"));
  EXPECT_FALSE(is_log_line("\n"));
}

}  // namespace
}  // namespace torch_tpu::pjrt
