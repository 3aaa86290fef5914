# Sourced by scripts/test-package and scripts/test-image: root folders with Debian in them, which take root and mmdebstrap.
# shellcheck shell=bash

say() { printf '%s\n' "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }
skip() { say "$0: skipped, $*"; exit 0; }

# need_tools NAME...: installs the packages of those names where they are missing. Skips the script where that cannot be done.
need_tools() {
  local tool missing=()
  [ "$(id -u)" -eq 0 ] || skip "it needs root"
  for tool in "$@"; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null || skip "${missing[*]} missing"
  { apt-get install -y --no-install-recommends "${missing[@]}" ||
    { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; }; } >/dev/null 2>&1 ||
    skip "${missing[*]} could not be installed"
}

# debian ROOT [PACKAGE,...]: this machine's release of Debian, from the mirror that apt is configured with.
debian() {
  local suite mirror
  # shellcheck disable=SC1091
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  # shellcheck disable=SC2016 # $(SITE) is for apt-get.
  mirror=$(apt-get indextargets --format '$(SITE)' | grep -v security | sort -u | head -1)
  mmdebstrap --quiet --variant=minbase ${2:+--include="$2"} "$suite" "$1" "$mirror" || skip "no Debian from $mirror"
}
