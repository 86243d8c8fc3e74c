#!/usr/bin/env bash
# Every test stage in order; `make test` calls it after the set-up. Stops at the first stage that fails and names it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/stages.sh
source tools/stages.sh

make=${MAKE:-make}
stage "build" "$make" --no-print-directory build
stage "C++ tests" "$make" --no-print-directory cpp-test
stage "protocol models" "$make" --no-print-directory models
stage "Python tests" "$make" --no-print-directory py-test
printf '\nAll test stages passed in %d s.\n' "$SECONDS"
