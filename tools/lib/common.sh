# Shared by the scripts in tools/: packages, builds, messages, cleaning up. Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# What the release preset's configure step and build need; README's list for building by hand is this one.
packages_build="g++ cmake ninja-build pkg-config dpdk-dev libdpdk-dev libibverbs-dev libxdp-dev libbpf-dev libelf-dev zlib1g-dev
  libnuma-dev libbsd-dev libboost-dev libunwind-dev libcli11-dev libfmt-dev libtomlplusplus-dev nlohmann-json3-dev
  libgtest-dev libgmock-dev python3"
packages_demo="redis-server redis-tools"
packages_test="libbenchmark-dev ccache clang-format clang-tidy clang libclang-rt-14-dev strace iproute2 procps psmisc
  util-linux binutils libc-bin memcached nginx postgresql-15 haproxy nsd lighttpd apache2-bin nodejs default-jdk-headless openssl rsync
  curl wget iputils-ping iperf3 sockperf wrk socat git tar perl gdb netcat-openbsd ethtool tshark
  ibverbs-utils rdmacm-utils python3-pyverbs perftest ucx-utils libfabric-bin systemd libpython3.11-testsuite openssh-server openssh-client
  vsftpd libgrpc++-dev caddy nats-server hey"

packages_vm="qemu-system-x86 busybox-static redis-server redis-tools iperf3 nginx iproute2 dpdk pciutils kmod zstd
  ibverbs-utils ibverbs-providers perftest rdmacm-utils tshark"

say() { printf '%s\n' "$*" >&2; }
die() { say "$(basename "$0"): $*"; exit 1; }

# at_exit COMMAND: runs at the script's end, however it ends; the last one registered runs first.
at_exit_commands=()
at_exit() { at_exit_commands+=("$1"); }
run_at_exit() {
  local i
  trap '' INT TERM HUP  # what is half cleaned up stays lying
  for ((i = ${#at_exit_commands[@]} - 1; i >= 0; i--)); do eval "${at_exit_commands[i]}"; done
}
trap run_at_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# One file for what a step says, shown only when the step fails.
step_log=$(mktemp)
at_exit 'rm -f "$step_log"'

# progress PATTERN: copies its input to the log; the words that PATTERN finds in a line are shown as they come, on a
# terminal in one line that changes, elsewhere one in 20.
progress() {
  local line shown=0 end=$'\n'
  [ -t 2 ] && end=$'\e[K\r'
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$step_log"
    [[ $line =~ $1 ]] || continue
    [ -t 2 ] || ((shown++ % 20 == 0)) && printf '  %s%s' "${BASH_REMATCH[0]:0:70}" "$end" >&2
  done
  [ -t 2 ] && printf '\e[K' >&2
  return 0
}

# missing_packages NAME...: those that dpkg does not know as installed.
missing_packages() {
  local name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$name"
  done
}

# No service that a package brings along starts: this is the file that Debian asks. One that is there stays.
policy=/usr/sbin/policy-rc.d
forbid_services() {
  [ -e "$policy" ] && return 0
  at_exit allow_services
  made_policy=1
  printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null && $sudo chmod +x "$policy"
}
allow_services() {
  [ -n "${made_policy:-}" ] && $sudo rm -f "$policy"
  made_policy=""
}

# install_packages NAME...: installs what is missing.
install_packages() {
  local missing
  missing=$(missing_packages "$@")
  [ -z "$missing" ] && return 0
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing, and only root can install them: $missing"
    sudo="sudo"
  fi
  say "installing: $missing"
  forbid_services
  $sudo apt-get update -qq >"$step_log" 2>&1 || say "apt-get update failed; trying with the lists there are"
  : >"$step_log"
  # shellcheck disable=SC2086
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing 2>&1 </dev/null |
    progress '^(Get:[0-9]+|Unpacking|Setting up) .*' || { tail -20 "$step_log" >&2; die "apt-get could not install: $missing"; }
  allow_services
}

jobs() { nproc 2>/dev/null || echo 2; }

# build PRESET [TARGET...]: configures and builds; shows the compiler's words only when it fails.
build() {
  local preset=$1; shift
  local targets=() options=() folder=$root/build
  [ "$preset" = release ] || folder+="-$preset"
  # A folder that is new here is not one that somebody works in: its sources are compiled a few at a time.
  [ "$preset" = release ] && [ ! -e "$folder/CMakeCache.txt" ] && options=(-DBYPASS_UNITY=ON)
  [ $# -gt 0 ] && targets=(--target "$@")
  say "building ($preset) …"
  { cmake -S "$root" --preset "$preset" "${options[@]}" >"$step_log" 2>&1 &&
    cmake --build "$folder" -j "$(jobs)" "${targets[@]}" 2>&1 | progress '^\[[0-9]+/[0-9]+\].*'; } && return 0
  grep -E 'error|Error|FAILED' -A5 "$step_log" | head -60 >&2
  tail -15 "$step_log" >&2
  die "the $preset build failed"
}

# No setting of the caller's reaches the programs that a script starts from here on.
forget_settings() {
  local name
  for name in "${!BYPASS_@}"; do unset "$name"; done
}
