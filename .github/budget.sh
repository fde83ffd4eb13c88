#!/usr/bin/env bash
# What action.yml runs: compares MODEL with that of the commit BASE; exits with 1 if it exceeds RAM, FLASH, MAX_GROWTH
# or the memory of BOARD.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
before=$MODEL
if [ -n "$BASE" ] && git cat-file -e "$BASE:$MODEL" 2>/dev/null; then
  before=$folder/$(basename "$MODEL")
  git show "$BASE:$MODEL" >"$before"
  # weights beside it
  git ls-tree --name-only "$BASE" "$(dirname "$MODEL")/" | while read -r path; do
    case $path in "$MODEL"?*) git show "$BASE:$path" >"$folder/$(basename "$path")" ;; esac
  done
fi
options=(--allow-breaks)
if [ -n "$BOARD" ]; then options+=(--board "$BOARD"); else options+=(--target "$TARGET"); fi
[ -z "$RAM" ] || options+=(--ram "$RAM")
[ -z "$FLASH" ] || options+=(--flash "$FLASH")
for growth in $MAX_GROWTH; do options+=(--max-growth "$growth"); done
status=0
mlfc diff "$before" "$MODEL" "${options[@]}" >"$folder/changes" || status=$?
{
  printf '### %s\n\n```\n' "$MODEL"
  cat "$folder/changes"
  printf '```\n'
} | tee -a "${GITHUB_STEP_SUMMARY:-/dev/null}"
exit "$status"
