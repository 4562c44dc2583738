# shellcheck shell=bash
# Functions for the other scripts. Source it after `set -euo pipefail`; it changes only PATH by itself.

# The user who started the script, also through sudo.
caller=${SUDO_USER:-$(id -un)}
caller_home=$(getent passwd "$caller" | cut -d: -f6)

# The directory of downloads and built tools. You can delete its content at any time.
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

is_debian() { grep -qx 'ID=debian' /etc/os-release; }

have() { command -v "$1" >/dev/null 2>&1; }

boots_cgroup_v2() { [ "$(stat --file-system --format %T /sys/fs/cgroup)" = cgroup2fs ]; }

# Sets the array `variables` to assignments of what sudo would drop: PATH, the cache and all other variables of this project.
own_variables() {
  local name
  variables=("PATH=$PATH" "VSCALED_CACHE=$VSCALED_CACHE")
  for name in $(compgen -e VSCALED_) INSTA_WORKSPACE_ROOT; do
    if [ -n "${!name+set}" ]; then variables+=("$name=${!name}"); fi
  done
}

# Runs a command as root: directly, or through sudo.
as_root() {
  local variables
  if [ "$EUID" -eq 0 ]; then
    "$@"
  elif have sudo; then
    own_variables
    sudo -- env "${variables[@]}" "$@"
  else
    die "this needs root, and there is no sudo here; as root, run: $*"
  fi
}

# Whether as_root would succeed. May ask for a password.
can_be_root() { [ "$EUID" -eq 0 ] || { have sudo && sudo --validate; }; }

# Runs a command as the caller: what is built must belong to them, and come from their toolchain.
as_caller() {
  local variables
  if [ "$EUID" -eq 0 ] && [ "$caller" != root ]; then
    own_variables
    sudo -u "$caller" --set-home -- env "${variables[@]}" "$@"
  else
    "$@"
  fi
}

# Prints the Debian mirror that apt on this machine uses: the first source of packages for a whole release. What the
# release calls itself is known only where apt-get update has run.
mirror() {
  if [ -n "${VSCALED_DEBIAN_MIRROR:-}" ]; then
    echo "$VSCALED_DEBIAN_MIRROR"
    return
  fi
  local found
  # shellcheck disable=SC2016 # apt fills these in
  found=$(apt-get indextargets --format '$(SITE)|$(COMPONENT)|$(RELEASE)|$(ORIGIN)' 'Created-By: Packages' |
    awk -F'|' '$2 == "main" && $3 !~ /[-\/]/ && ($4 == "Debian" || $4 == "") { print $1; exit }')
  [ -n "$found" ] || die "apt knows no Debian mirror here; set VSCALED_DEBIAN_MIRROR to the address of one"
  echo "$found"
}

# Sets the array `apt` to an apt-get that knows one release of Debian and nothing of this machine: it fetches packages
# (type deb) or their sources (deb-src) of that release, needs no root, and keeps everything in a directory. Signatures are
# checked against the machine's own Debian keys. Never call it in a condition, where bash would go on after an error.
private_apt() {
  local directory=$1 release=$2 types=$3 keys=/usr/share/keyrings/debian-archive-keyring.gpg type
  have apt-get || die "apt-get is missing: this fetches Debian packages"
  [ -r "$keys" ] || die "$keys is missing; install debian-archive-keyring"
  mkdir -p "$directory/lists/partial" "$directory/archives/partial"
  for type in $types; do
    echo "$type [signed-by=$keys] $(mirror) $release main"
  done >"$directory/sources.list"
  apt=(apt-get -qq -o "Dir::Etc::SourceList=$directory/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$directory/lists" -o "Dir::Cache=$directory" -o Acquire::Languages=none
    -o Acquire::Check-Valid-Until=false) # a mirror that lags behind serves as well
  [ "$EUID" -ne 0 ] || apt+=(-o APT::Sandbox::User=root)
  "${apt[@]}" -o APT::Update::Error-Mode=any update || die "apt cannot read $(mirror); see above"
}
