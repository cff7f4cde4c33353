// A new run directory, which is removed with the object, and a region in it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "observe/reader.h"
#include "observe/region.h"

namespace bypass::observe {

class RunDir {
 public:
  RunDir() {
    char path[] = "/tmp/bypass-observe-XXXXXX";
    root_ = mkdtemp(path);
  }
  ~RunDir() { std::filesystem::remove_all(root_); }
  RunDir(const RunDir&) = delete;
  RunDir& operator=(const RunDir&) = delete;

  [[nodiscard]] std::string root() const { return root_; }
  [[nodiscard]] std::string path() const { return root_ + "/run"; }
  [[nodiscard]] std::string own_file() const {
    for (const auto& entry : std::filesystem::directory_iterator(path())) return entry.path();
    return "";
  }

 private:
  std::string root_;
};

inline constexpr CounterInfo kTestCounters[] = {{"rx_frames", "frames", ""}, {"tx_frames", "frames", ""}};

inline void start(Region& region, const RunDir& dir) {
  std::string problem;
  ASSERT_TRUE(region.create({dir.path(), "1.2.3", "latency", kTestCounters}, problem)) << problem;
}

inline Snapshot snapshot(const RunDir& dir) {
  Listing listing = read_run_dir(dir.path(), getpid());
  EXPECT_TRUE(listing.problems.empty()) << listing.problems.at(0);
  EXPECT_EQ(listing.processes.size(), 1U);
  return listing.processes.empty() ? Snapshot{} : listing.processes[0];
}

}  // namespace bypass::observe
