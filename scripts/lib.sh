# shellcheck shell=bash
# What the scripts beside this file share. Sourced after `set -euo pipefail`; changes nothing by itself but PATH.

# Whoever is at the keyboard, also when a script was started with sudo.
caller=${SUDO_USER:-$(id -un)}
caller_home=$(getent passwd "$caller" | cut -d: -f6)

# Where downloads and built tools are kept between runs. Everything in it can be deleted at any time.
if [ "$caller" = "$(id -un)" ]; then
  VSCALED_CACHE=${VSCALED_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vscaled}
else
  VSCALED_CACHE=${VSCALED_CACHE:-$caller_home/.cache/vscaled}
fi

# rustup adds its directory to login shells only, and sudo drops it. Debian keeps runc and debootstrap where only root's
# PATH leads.
PATH=$VSCALED_CACHE/tools/bin:$PATH:${CARGO_HOME:-$caller_home/.cargo}/bin:/usr/local/sbin:/usr/sbin:/sbin

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
    sudo -- env PATH="$PATH" VSCALED_CACHE="$VSCALED_CACHE" "$@"
  else
    die "this needs root, and there is no sudo here; as root, run: $*"
  fi
}

# Whether as_root would succeed. May ask for a password.
can_be_root() { [ "$EUID" -eq 0 ] || { have sudo && sudo --validate; }; }

# Runs a command as the caller: what is built must belong to them, and come from their toolchain.
as_caller() {
  if [ "$EUID" -eq 0 ] && [ "$caller" != root ]; then
    sudo -u "$caller" --set-home -- env PATH="$PATH" VSCALED_CACHE="$VSCALED_CACHE" "$@"
  else
    "$@"
  fi
}
