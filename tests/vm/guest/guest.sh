# Words of the guest's shell; sourced.

# load MODULE: with what it needs. One that is there is no error.
load() {
  local file
  while read -r file; do insmod "/modules/$file" 2>/dev/null; done <"/modules/$1.order"
  [ -e "/sys/module/$(echo "$1" | tr - _)" ]
}

# cards: the PCI addresses of Ethernet functions.
cards() {
  local each
  for each in /sys/bus/pci/devices/*; do
    case $(cat "$each/class") in 0x0200*) echo "${each##*/}" ;; esac
  done
}

# bind ADDRESS DRIVER: gives a card to a driver, as README's steps do.
bind() {
  local device=/sys/bus/pci/devices/$1
  [ ! -e "$device/driver" ] || echo "$1" >"$device/driver/unbind"
  echo "$2" >"$device/driver_override"
  echo "$1" >/sys/bus/pci/drivers_probe
  [ "$(basename "$(readlink "$device/driver")")" = "$2" ]
}

# huge N: that many huge pages of 2 MiB.
huge() { echo "$1" >/proc/sys/vm/nr_hugepages; }

# back NAME COMMAND...: in the background; what it says is in /tmp/NAME.
back() {
  local name=$1
  shift
  "$@" </dev/null >"/tmp/$name" 2>&1 &
  echo "$!" >"/tmp/$name.pid"
}

# end NAME [SIGNAL]: of one in the background; returns how it ended.
end() {
  kill "-${2:-TERM}" "$(cat "/tmp/$1.pid")"
  wait "$(cat "/tmp/$1.pid")"
}

welcome() {
  export PS1='guest:\w# '
  export ENV=/guest.sh  # of the shell that follows: it has these words, too
  if [ -r /wanted ]; then . /wanted; fi
  echo "A guest of tests/vm. /b has this build, /guest.sh words as: bind, load, on. The end: poweroff -f"
}
