#!/usr/bin/env bash
# Documentation that has come apart from the code: files named in it that do not exist, programs in it that do not compile,
# pages that are older than the headers they are made of, functions that the page on PyTorch does not name.
source "$(dirname "$0")/setup.sh"
status=0 files=0 programs=0
include=$(mktemp -d)
trap 'rm -rf "$include"' EXIT
mkdir "$include/halo"
for room in core ops cuda autograd nn optim io data; do ln -s "$PWD/$room" "$include/halo/$room"; done
ln -s "$PWD/halo.h" "$include/halo/halo.h"
for document in README.md docs/*.md; do
  # Links, and paths in backticks.
  while read -r path; do
    files=$((files + 1))
    [ -e "$path" ] || [ -e "docs/$path" ] || compgen -G "$path" >/dev/null || { echo "$document: $path does not exist"; status=1; }
  done < <(grep -oE '\]\([^)#: ]+\)|`(core|ops|cuda|autograd|nn|optim|io|data|examples|bench|tests|scripts|docs)/[A-Za-z0-9_./*-]*`' "$document" |
    sed -E 's/^\]\(|\)$|`//g' | grep -vE '\bname[._]' | sort -u)
  # C++ blocks that are whole programs; a block that begins with `// name.h` is a header for the others.
  rm -f "$include"/block*
  awk -v to="$include/" '/^```/ {if (on) on = 0; else if ($0 == "```cpp") {on = 1; name = "block" ++n ".cpp"}; next}
    on && /^\/\/ [a-z_]+\.h$/ {name = $2} on {print > (to name)}' "$document"
  for block in "$include"/block*.cpp; do
    grep -q 'int main' "$block" 2>/dev/null || continue
    programs=$((programs + 1))
    c++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I"$include" "$block" || { echo "$document: a program does not compile"; status=1; }
  done
done
# Pages that comments in the code point to.
while read -r path; do
  files=$((files + 1))
  [ -e "$path" ] || { echo "a comment names $path, which does not exist"; status=1; }
done < <(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs grep -hoE '\bdocs/[A-Za-z0-9_]+\.md' | sort -u)
# Pages that are generated from the headers.
python3 scripts/generate_op_pages.py --check || status=1
# Public functions and modules that the page for people from PyTorch lacks.
python3 scripts/check_from_pytorch.py || status=1
echo "$files paths, $programs programs, $(git ls-files 'docs/*/*.md' | wc -l) generated pages"
exit $status
