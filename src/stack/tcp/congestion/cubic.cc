#include "stack/tcp/congestion/cubic.h"

#include <algorithm>

namespace bypass::tcp {
namespace {

constexpr std::uint64_t kTicksPerSecond = 1024;
// Beyond this distance from the plateau (256 s) the cube would not fit; the window is at its bound by then.
constexpr std::int64_t kFarthest = std::int64_t{1} << 18;

std::int64_t ticks(Duration d) {
  // In two steps, as a day's nanoseconds times 1024 do not fit.
  const std::int64_t us = d.count() / 1000;
  return us / 1'000'000 * 1024 + us % 1'000'000 * 1024 / 1'000'000;
}

}  // namespace

std::uint32_t cube_root(std::uint64_t n) {
  std::uint64_t root = 0;
  for (int shift = 63; shift >= 0; shift -= 3) {  // one binary digit of the root a step
    root *= 2;
    const std::uint64_t step = 3 * root * (root + 1) + 1;  // (root + 1)^3 - root^3
    if (n >> shift < step) continue;
    n -= step << shift;
    root++;
  }
  return static_cast<std::uint32_t>(root);
}

// §4.2: K = cbrt((W_max - cwnd_epoch) / C) seconds with windows in segments and C = 0.4.
void Cubic::begin_epoch(const Window& window, const AckEvent& ack) {
  epoch_start = last_ack = ack.now;
  w_est = window.cwnd;
  est_counted = 0;
  k = 0;
  if (window.cwnd >= w_max) {
    w_max = window.cwnd;
    return;
  }
  constexpr std::uint64_t kCubed = kTicksPerSecond * kTicksPerSecond * kTicksPerSecond;
  k = cube_root((w_max - window.cwnd) * (kCubed / 2 * 5) / window.mss);
}

/// W_cubic(t) = C (t - K)^3 + W_max in bytes.
std::uint32_t Cubic::w_cubic(Duration t, std::uint32_t mss) const {
  const std::int64_t from_plateau = ticks(t) - k;
  const auto d = static_cast<std::uint64_t>(std::min(from_plateau < 0 ? -from_plateau : from_plateau, kFarthest));
  const std::uint64_t bytes = ((d * d * d >> 10) * 2 * mss / 5) >> 20;
  if (from_plateau < 0) return bytes < w_max ? static_cast<std::uint32_t>(w_max - bytes) : 0;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(w_max + bytes, kMaxCwnd));
}

// §4.3: alpha = 3 (1 - beta) / (1 + beta) = 9/17, which makes AIMD with beta = 0.7 as fast as Reno on the
// average, and 1 once the window from before the loss is reached.
void Cubic::grow_estimate(const Window& window, std::uint32_t acked) {
  const std::uint32_t counts = std::min(acked, window.cwnd);
  est_counted += w_est < cwnd_prior ? static_cast<std::uint32_t>(std::uint64_t{counts} * 9 / 17) : counts;
  if (est_counted < window.cwnd) return;
  est_counted -= window.cwnd;
  w_est = std::min(w_est + window.mss, kMaxCwnd);
}

void Cubic::on_ack(Window& window, const AckEvent& ack) {
  if (!in_epoch()) begin_epoch(window, ack);
  if (ack.app_limited) epoch_start += ack.now - last_ack;
  last_ack = ack.now;
  if (ack.app_limited) return;

  grow_estimate(window, ack.acked);
  const Duration t = ack.now - epoch_start;
  if (w_cubic(t, window.mss) < w_est) {
    window.cwnd = std::max(window.cwnd, w_est);
    return;
  }
  const std::uint32_t target =
      std::clamp(w_cubic(t + ack.srtt, window.mss), window.cwnd, window.cwnd + window.cwnd / 2);
  // (target - cwnd) / cwnd of what was acknowledged (§4.4); fractions of a byte are kept for later.
  window.counted = std::min(window.counted + std::min(ack.acked, kMaxCwnd), kMaxCwnd);
  const std::uint64_t growth = std::uint64_t{target - window.cwnd} * window.counted / window.cwnd;
  if (growth == 0) return;
  window.cwnd = static_cast<std::uint32_t>(std::min<std::uint64_t>(window.cwnd + growth, target));
  window.counted = 0;
}

std::uint32_t Cubic::reduced(const Window& window, std::uint32_t flight) {
  prior_w_max = w_max;
  // §4.7: below the last plateau another flow wants a share; 0.85 = (1 + beta) / 2.
  w_max = window.cwnd < w_max ? static_cast<std::uint32_t>(std::uint64_t{window.cwnd} * 17 / 20) : window.cwnd;
  cwnd_prior = window.cwnd;
  epoch_start = kNever;
  const std::uint64_t seven_tenths = std::uint64_t{std::min(flight, window.cwnd)} * 7 / 10;
  return std::max(static_cast<std::uint32_t>(seven_tenths), 2 * window.mss);
}

void Cubic::on_idle(Duration idle) {
  if (!in_epoch()) return;
  epoch_start += idle;
  last_ack += idle;
}

void Cubic::undo() {
  w_max = prior_w_max;
  epoch_start = kNever;
}

}  // namespace bypass::tcp
