# shellcheck shell=bash
# To be sourced. stage NAME COMMAND...: runs a command or function in a shell of its own, says how long it took, and ends
# the script, naming the stage, when it fails.

stage() {
  local name=$1 started=$SECONDS status=0
  shift
  printf '\n==== %s\n' "$name"
  # Not `"$@" || status=$?`: there, bash would go on after a failing line of a function.
  set +e
  (
    set -e
    "$@"
  )
  status=$?
  set -e
  if [ "$status" -ne 0 ]; then
    printf '==== %s: FAILED after %d s (exit status %d)\n' "$name" $((SECONDS - started)) "$status"
    exit "$status"
  fi
  printf '==== %s: ok, %d s\n' "$name" $((SECONDS - started))
}
