#!/usr/bin/env bash
# Sets up what a part of the work needs; the Makefile calls it, once for each part.
#   tools/setup_dev.sh base|test|demo|lint
# base: compiler, Python headers, .venv with torch and the build tools      demo: the model library of the demo
# test: Open MPI, GoogleTest, spin, pytest                                  lint: the pinned checkers
#
# PYTHON names the interpreter that .venv is made with. System packages come by apt-get where they are missing and we
# are root or may use sudo; otherwise the script says what to install and stops.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly torch_version=2.13.0
readonly venv=.venv

say() { printf '[setup] %s\n' "$*"; }
die() {
  printf '[setup] error: %s\n' "$*" >&2
  exit 1
}

has_header() { printf '#include <%s>\n' "$1" | g++ -x c++ -fsyntax-only - 2>/dev/null; }
has() { command -v "$1" >/dev/null 2>&1; }

# One line for each thing that may be missing: its Debian package, and how to see that it is there.
missing_packages() {
  local part=$1
  case $part in
    base)
      has g++ || echo g++
      if [ ! -x "$venv/bin/python" ]; then
        "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "$(python_package)-venv"
      fi
      "$python" -c 'import os, sysconfig, sys
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || echo "$(python_package)-dev"
      ;;
    test)
      has mpirun || echo openmpi-bin
      has mpicxx || echo libopenmpi-dev
      has_header gtest/gtest.h || echo libgtest-dev
      has gcc || echo gcc
      has spin || echo spin
      ;;
    lint)
      has clang-tidy || echo clang-tidy
      has shellcheck || echo shellcheck
      ;;
  esac
}

python_package() { "$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])'; }

run_as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    sudo "$@"
  fi
}

# May we install system packages? Not by a password prompt that nobody answers.
may_install() {
  has apt-get || return 1
  if [ "$(id -u)" -eq 0 ]; then return 0; fi
  has sudo || return 1
  sudo -n true 2>/dev/null || [ -t 0 ]
}

install_packages() {
  local part=$1 missing
  missing=$(missing_packages "$part" | sort -u | tr '\n' ' ')
  missing=${missing% }
  if [ -z "$missing" ]; then return 0; fi
  local by_hand="install them by hand (Debian: sudo apt-get install $missing), then run make again"
  may_install || die "these system packages are missing, and cannot be installed from here: $missing
[setup] $by_hand"
  say "installing system packages: $missing"
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o DPkg::Lock::Timeout=300)
  local packages=()
  read -ra packages <<<"$missing"
  local log
  log=$(mktemp)
  if ! {
    run_as_root "${apt[@]}" update &&
      run_as_root "${apt[@]}" install --no-install-recommends "${packages[@]}"
  } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "apt-get could not install: $missing
[setup] $by_hand"
  fi
  rm -f "$log"
  missing=$(missing_packages "$part" | sort -u | tr '\n' ' ')
  if [ -n "$missing" ]; then die "still missing after apt-get: $missing"; fi
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.11 python3.12}; do
    if has "$candidate" && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

check_compiler() {
  local probe='#include <optional>
#if !defined(__x86_64__) || !defined(__linux__)
#error not Linux on x86-64
#endif
int main() { return std::optional<int>(0).value(); }'
  printf '%s\n' "$probe" | g++ -std=c++17 -x c++ -fsyntax-only - ||
    die "g++ does not compile C++17 for Linux on x86-64 (tried with g++ 12); see the message above"
}

pip_install() { "$venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }

# The requirements of one extra in pyproject.toml, one a line.
extra() {
  "$venv/bin/python" - "$1" <<'PYTHON'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"][sys.argv[1]], sep="\n")
PYTHON
}

build_requirements() {
  "$venv/bin/python" -c 'import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["build-system"]["requires"], sep="\n")'
}

setup_base() {
  check_compiler
  if [ ! -x "$venv/bin/python" ]; then
    say "making $venv with $python ($("$python" -V 2>&1))"
    "$python" -m venv "$venv"
  fi
  local requirements
  mapfile -t requirements < <(build_requirements)
  say "Python packages: torch==$torch_version (the large one), numpy, ${requirements[*]}"
  pip_install "torch==$torch_version" numpy "${requirements[@]}"
}

setup_extra() {
  local requirements
  mapfile -t requirements < <(for name in "$@"; do extra "$name"; done)
  say "Python packages: ${requirements[*]}"
  pip_install "torch==$torch_version" "${requirements[@]}"
}

main() {
  local part=${1:?usage: setup_dev.sh base|test|demo|lint}
  python=$(find_python) || die "Python 3.11 or newer is needed (tried: ${PYTHON:-python3 python3.11 python3.12}); \
Debian 12 has it: apt-get install python3; another one: make PYTHON=/path/to/python3"
  install_packages "$part"
  case $part in
    base) setup_base ;;
    test) setup_extra test demo ;; # the tests of the model integration need the model library
    demo) setup_extra demo ;;
    lint) setup_extra dev ;;
    *) die "unknown part: $part" ;;
  esac
  say "$part: ready"
}

main "$@"
