#!/usr/bin/env bash
# What action.yml runs: compares MODEL with that of the commit BASE; exits with 1 if it exceeds RAM or FLASH.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
after=$folder/after.tar before=$folder/before.tar
mlfc compile "$MODEL" --target "$TARGET" -o "$after" >"$folder/log"
if [ -n "$BASE" ] && git cat-file -e "$BASE:$MODEL" 2>/dev/null; then
  mkdir "$folder/base"
  git show "$BASE:$MODEL" >"$folder/base/$(basename "$MODEL")"
  mlfc compile "$folder/base/$(basename "$MODEL")" --target "$TARGET" -o "$before" >"$folder/log"
else
  cp "$after" "$before"
fi
limits=()
[ -z "$RAM" ] || limits+=(--ram "$RAM")
[ -z "$FLASH" ] || limits+=(--flash "$FLASH")
# a changed C interface is shown, and no failure: whoever changed the model knows
mlfc diff "$before" "$after" >"$folder/changes" || [ $? = 1 ]
status=0
mlfc diff "$after" "$after" "${limits[@]}" >"$folder/verdict" || status=$?
{
  printf '### %s\n\n```\n' "$MODEL"
  grep -v '^nothing changed$' "$folder/verdict" || true
  cat "$folder/changes"
  printf '```\n'
} | tee -a "${GITHUB_STEP_SUMMARY:-/dev/null}"
exit "$status"
