#include "stack/tcp/congestion/newreno.h"

#include <algorithm>

namespace bypass::tcp {

void NewReno::on_ack(Window& window, const AckEvent& ack) {
  window.counted += std::min(ack.acked, window.cwnd);
  if (window.counted < window.cwnd) return;
  window.counted -= window.cwnd;
  window.cwnd = std::min(window.cwnd + window.mss, kMaxCwnd);
}

std::uint32_t NewReno::reduced(const Window& window, std::uint32_t flight) const {
  return std::max(std::min(flight, window.cwnd) / 2, 2 * window.mss);
}

}  // namespace bypass::tcp
