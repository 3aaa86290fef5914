# Sourced by scripts/test and scripts/demo: sees to it that PostgreSQL and RabbitMQ are installed.
#
# Nothing is started here: tests and demo start private servers of their own from the installed programs. The
# packages would start services on the standard ports; a policy-rc.d (see invoke-rc.d(8)) forbids that meanwhile.
# shellcheck shell=bash

policy=/usr/sbin/policy-rc.d

# ensure_servers [--yes]: installs what is missing, after asking once on a terminal unless --yes is given. With
# with_faketime=yes that includes the library by which a test lets the clock jump.
ensure_servers() {
  local packages=() answer
  have_postgres || packages+=(postgresql)
  have_rabbitmq || packages+=(rabbitmq-server)
  [ -z "${with_faketime:-}" ] || have_faketime || packages+=(faketime)
  # Rust links with it, and the TLS library has some C.
  command -v cc >/dev/null || packages+=(gcc libc6-dev)
  [ ${#packages[@]} -eq 0 ] && return 0

  if ! command -v apt-get >/dev/null; then
    say "Missing: ${packages[*]} (the names of Debian's packages; this system has no apt-get)."
    say "Install PostgreSQL 14 or newer and RabbitMQ 3.10 or newer, and name the folders of their programs in"
    say "WALRELAY_TEST_PG_BIN (initdb, postgres) and WALRELAY_TEST_RABBITMQ_BIN (rabbitmq-server, rabbitmqctl)."
    return 1
  fi
  say "About to install by apt-get: ${packages[*]}"
  say "(Their services are not started; private throwaway servers are.)"
  if [ "${1:-}" != --yes ] && [ -t 0 ]; then
    read -r -p "Go ahead? [y/N] " answer
    case $answer in
      [yY] | [yY][eE][sS]) ;;
      *) say "Nothing was installed."; return 1 ;;
    esac
  fi
  # A subshell, so that the traps end with it.
  (install_packages "${packages[@]}") || {
    say "The installation failed. By hand: apt-get install ${packages[*]}"
    return 1
  }
  if ! have_postgres || ! have_rabbitmq; then
    say "The packages are installed, but initdb or rabbitmq-server is not where it was expected."
    return 1
  fi
}

have_postgres() {
  [ -n "${WALRELAY_TEST_PG_BIN:-}" ] || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ||
    [ -x "$(pg_config --bindir 2>/dev/null)/initdb" ]
}

have_rabbitmq() {
  [ -n "${WALRELAY_TEST_RABBITMQ_BIN:-}" ] || [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]
}

have_faketime() {
  compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null
}

install_packages() {
  saved=
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    say "Not root, and there is no sudo."
    return 1
  fi
  trap restore_policy EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  forbid_services || return 1
  local install=(as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends)
  lists_present "$@" || as_root apt-get update || return 1
  # Old lists name versions that the mirror no longer has.
  "${install[@]}" "$@" || { as_root apt-get update && "${install[@]}" "$@"; }
}

lists_present() {
  local package candidates
  for package in "$@"; do
    candidates=$(apt-cache madison "$package" 2>/dev/null)
    [ -n "$candidates" ] || return 1
  done
}

# Keeps packages from starting services until restore_policy; a policy of the machine's own is set aside for as long.
forbid_services() {
  local verdict=0
  if [ -e "$policy" ]; then
    "$policy" walrelay start >/dev/null 2>&1 || verdict=$?
    [ "$verdict" -eq 101 ] && return 0
  fi
  if [ -e "$policy" ]; then
    saved=$policy.before-walrelay
    as_root mv "$policy" "$saved" || return 1
  else
    saved=none
  fi
  printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null && as_root chmod 755 "$policy"
}

restore_policy() {
  case $saved in
    '') ;;
    none) as_root rm -f "$policy" ;;
    *) as_root mv "$saved" "$policy" ;;
  esac
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

say() {
  printf '%s\n' "$*" >&2
}
