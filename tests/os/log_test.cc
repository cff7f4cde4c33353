#include "os/log/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace bypass::runtime {
namespace {

// The log's lines go to an anonymous file while the object lives.
class CapturedLog {
 public:
  explicit CapturedLog(LogLevel level) : fd_(memfd_create("log", MFD_CLOEXEC)) { start_log(level, fd_); }
  ~CapturedLog() {
    start_log(LogLevel::kWarn, -1);
    close(fd_);
  }
  [[nodiscard]] std::string text() const {
    std::string out(static_cast<std::size_t>(lseek(fd_, 0, SEEK_END)), 0);
    EXPECT_EQ(pread(fd_, out.data(), out.size(), 0), static_cast<ssize_t>(out.size()));
    return out;
  }

 private:
  int fd_;
};

const std::string kPrefix = "bypass[" + std::to_string(getpid()) + "]: ";

TEST(Log, Line_HasPrefixAndNewline) {
  const CapturedLog log(LogLevel::kInfo);
  BYPASS_LOG_INFO("port %d is %s\n", 3, "up");
  EXPECT_EQ(log.text(), kPrefix + "port 3 is up\n");
}

TEST(Log, LevelOff_EvaluatesNothing) {
  const CapturedLog log(LogLevel::kWarn);
  int evaluated = 0;
  BYPASS_LOG_DEBUG("%d", ++evaluated);
  EXPECT_EQ(evaluated, 0);
  EXPECT_EQ(log.text(), "");
}

TEST(Log, LongLine_IsCutAndStaysOneLine) {
  const CapturedLog log(LogLevel::kInfo);
  log_text(LogLevel::kError, std::string(5000, 'x').c_str());
  const std::string text = log.text();
  EXPECT_LT(text.size(), 1025U);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

TEST(Log, Flood_IsLimitedAndCounted) {
  const CapturedLog log(LogLevel::kInfo);
  for (int i = 0; i < 10'000; i++) BYPASS_LOG_WARN("again");
  const std::string text = log.text();
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 200);
  log_always("crash");  // whatever the rate
  EXPECT_NE(log.text().find("crash\n"), std::string::npos);
}

TEST(Log, Errno_IsThePrograms) {
  const CapturedLog log(LogLevel::kTrace);
  errno = ENOENT;
  BYPASS_LOG_TRACE("x");
  EXPECT_EQ(errno, ENOENT);
}

// A daemon closes descriptor 2. The number then goes to the next thing that it opens.
TEST(Log, StandardErrorThatBecameADataFile_IsLeftAlone) {
  const int saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
  const int data = memfd_create("data", MFD_CLOEXEC);
  start_log(LogLevel::kTrace, -1);
  dup2(data, STDERR_FILENO);
  BYPASS_LOG_TRACE("not here");
  const off_t as_data = lseek(data, 0, SEEK_END);
  fcntl(data, F_SETFL, O_APPEND);  // a log file, opened as logs are
  BYPASS_LOG_TRACE("here");
  const off_t as_log = lseek(data, 0, SEEK_END);
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(data);
  start_log(LogLevel::kWarn, -1);
  EXPECT_EQ(as_data, 0);
  EXPECT_GT(as_log, 0);
}

// A forked child does the same with the log file's descriptor.
TEST(Log, LogFileThatBecameADataFile_IsLeftAlone) {
  const int log = memfd_create("log", MFD_CLOEXEC), data = memfd_create("data", MFD_CLOEXEC);
  start_log(LogLevel::kTrace, log);
  EXPECT_EQ(log_descriptor(), log);
  dup2(data, log);
  BYPASS_LOG_TRACE("not here");
  EXPECT_EQ(lseek(data, 0, SEEK_END), 0);
  start_log(LogLevel::kWarn, -1);
  EXPECT_EQ(log_descriptor(), -1);
  close(log);
  close(data);
}

TEST(Log, File_IsOpenedHighAndAppended) {
  char path[] = "/tmp/bypass-log-test-XXXXXX";
  close(mkstemp(path));
  const int fd = open_log_file(path, [](int low) { return fcntl(low, F_DUPFD_CLOEXEC, 500); });
  EXPECT_GE(fd, 500);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(fcntl(fd, F_GETFL) & O_APPEND, 0);
  close(fd);
  unlink(path);
  EXPECT_EQ(open_log_file("/nonexistent/log", [](int) { return -1; }), -1);
}

}  // namespace
}  // namespace bypass::runtime
