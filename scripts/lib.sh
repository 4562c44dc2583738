# shellcheck shell=bash
# What the scripts beside this file share. Sourced after `set -euo pipefail`; prints nothing and changes nothing by itself.

# Where downloads and built tools are kept between runs. Everything in it can be deleted at any time.
VSCALED_CACHE=${VSCALED_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vscaled}

# Progress goes to stderr, so that a script's output is its result.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
  say "$*"
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command as root: directly, or through sudo.
as_root() {
  if [ "$EUID" -eq 0 ]; then
    "$@"
  elif have sudo; then
    sudo -- "$@"
  else
    die "this needs root, and there is no sudo here; as root, run: $*"
  fi
}

# Runs a command as the person at the keyboard, also when the script itself was started with sudo: what is built must
# belong to them, with their toolchain.
as_caller() {
  if [ "$EUID" -eq 0 ] && [ "${SUDO_USER:-root}" != root ]; then
    sudo -u "$SUDO_USER" --set-home -- "$@"
  else
    "$@"
  fi
}
