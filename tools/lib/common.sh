# Shared by the scripts in tools/: packages, builds, messages. Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

packages_build="g++ cmake ninja-build pkg-config dpdk-dev libdpdk-dev libxdp-dev libbpf-dev libelf-dev zlib1g-dev
  libnuma-dev libbsd-dev libboost-dev libunwind-dev libcli11-dev libfmt-dev libtomlplusplus-dev nlohmann-json3-dev"
packages_demo="redis-server redis-tools python3"
packages_test="libgtest-dev libgmock-dev libbenchmark-dev ccache clang-format clang-tidy strace iproute2 procps psmisc
  util-linux binutils libc-bin memcached curl wget iperf3 sockperf wrk socat git tar perl gdb netcat-openbsd"

say() { printf '%s\n' "$*" >&2; }
die() { say "$(basename "$0"): $*"; exit 1; }

# missing_packages NAME...: those that dpkg does not know as installed.
missing_packages() {
  local name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$name"
  done
}

# install_packages NAME...: installs what is missing; starts no service that a package brings along.
install_packages() {
  local missing sudo=""
  missing=$(missing_packages "$@")
  [ -z "$missing" ] && return 0
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing, and only root can install them: $missing"
    sudo="sudo"
  fi
  say "installing: $missing"
  local policy=/usr/sbin/policy-rc.d made_policy=""
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null && $sudo chmod +x "$policy" && made_policy=1
  fi
  local log failed=0
  log=$(mktemp)
  $sudo apt-get update -qq >"$log" 2>&1 || say "apt-get update failed; trying with the lists there are"
  # shellcheck disable=SC2086
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing >"$log" 2>&1 || failed=1
  [ -n "$made_policy" ] && $sudo rm -f "$policy"
  if [ "$failed" = 1 ]; then tail -20 "$log" >&2; rm -f "$log"; die "apt-get could not install: $missing"; fi
  rm -f "$log"
}

jobs() { nproc 2>/dev/null || echo 2; }

# build PRESET [TARGET...]: configures and builds; shows the compiler's words only when it fails.
build() {
  local preset=$1 log; shift
  log=$(mktemp)
  local targets=(); [ $# -gt 0 ] && targets=(--target "$@")
  say "building ($preset) …"
  if ! { cmake -S "$root" --preset "$preset" ${BYPASS_CMAKE_ARGS:-} && cmake --build "$root/build$([ "$preset" = release ] || echo "-$preset")" -j "$(jobs)" "${targets[@]}"; } >"$log" 2>&1; then
    grep -E 'error|Error|FAILED' -A5 "$log" | head -60 >&2; tail -15 "$log" >&2; rm -f "$log"; die "the $preset build failed"
  fi
  rm -f "$log"
}
