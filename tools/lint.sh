#!/usr/bin/env bash
# The checks of `make lint`, pre-commit and CI: one list. Needs .venv with the extra `dev` and a configured build/release.
#   tools/lint.sh           check everything; every check runs, and those that failed are named at the end
#   tools/lint.sh --fix     format what can be formatted
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin=.venv/bin
jobs=${JOBS:-$(nproc)}

existing() {
  local path
  for path in "$@"; do
    if [ -e "$path" ]; then printf '%s\n' "$path"; fi
  done
}

mapfile -t python_paths < <(existing setup.py python py_tests tools examples benchmarks)
mapfile -t cpp_dirs < <(existing include src cpp_tests examples benchmarks)
mapfile -t cpp_files < <(find "${cpp_dirs[@]}" -name '*.h' -o -name '*.cc' -o -name '*.cuh' -o -name '*.cu' | sort)
mapfile -t tidy_files < <(find src -name '*.cc' | sort)
mapfile -t shell_files < <({
  existing .ci/run
  find . \( -name .venv -o -name build -o -name .git \) -prune -o -name '*.sh' -print
} | sort)
mapfile -t text_paths < <(existing README.md CHANGELOG.md CONTRIBUTING.md Makefile CMakeLists.txt docs include src python \
  cpp_tests py_tests tools examples benchmarks third_party cmake)

if [ "${1:-}" = --fix ]; then
  "$bin/ruff" check --fix --quiet "${python_paths[@]}" || true
  "$bin/ruff" format --quiet "${python_paths[@]}"
  "$bin/clang-format" -i "${cpp_files[@]}"
  exit 0
fi

tidy() {
  printf '%s\n' "${tidy_files[@]}" | xargs -P "$jobs" -n 1 clang-tidy --quiet -p build/release 2>&1 |
    { grep -vE '^[0-9]+ warnings? (generated|treated)' || true; }
}

failed=()
check() {
  local name=$1
  shift
  printf -- '-- %s\n' "$name"
  if ! "$@"; then failed+=("$name"); fi
}

check "ruff check" "$bin/ruff" check --quiet "${python_paths[@]}"
check "ruff format" "$bin/ruff" format --check --quiet "${python_paths[@]}"
check "mypy --strict" "$bin/mypy" --no-error-summary
check "clang-format" "$bin/clang-format" --dry-run -Werror "${cpp_files[@]}"
check "clang-tidy" tidy
check "shellcheck" shellcheck "${shell_files[@]}"
check "codespell" "$bin/codespell" "${text_paths[@]}"

if [ ${#failed[@]} -gt 0 ]; then
  printf 'lint failed:'
  printf ' [%s]' "${failed[@]}"
  printf '   (make format mends layout)\n'
  exit 1
fi
echo "lint: all checks passed"
