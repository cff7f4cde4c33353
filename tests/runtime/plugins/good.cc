// A backend that opens nothing and counts, in static data, how often it was asked for.
#include "backends/backend.h"

namespace {

int g_asked = 0;

class Counting : public bypass::Backend {
 public:
  bool check(const bypass::PortSpec& /*spec*/, std::string& problem) override {
    problem = std::to_string(g_asked);
    return false;
  }
  bypass::Port* open(const bypass::PortSpec& /*spec*/, std::string& /*problem*/) override { return nullptr; }
  void close(bypass::Port* /*port*/) override {}
  void drop_in_child() override {}
};
Counting g_backend;

}  // namespace

extern "C" [[gnu::visibility("default")]] bypass::Backend* bypass_backend(const bypass::Host* host) {
  if (host->abi != bypass::kBackendAbi) return nullptr;
  g_asked++;
  return &g_backend;
}
