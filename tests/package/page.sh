#!/bin/sh
# page.sh PAGE INCLUDE LIBRARY WORK: the program in a page of docs/ compiles, links and runs.
set -eu
page=$1 include=$2 library=$3 work=$4
mkdir -p "$work"
awk '/^```/ {if (on) on = 0; else if ($0 == "```cpp") on = 1; next} on' "$page" >"$work/page.cpp"
grep -q 'int main' "$work/page.cpp"
c++ -std=c++20 -Wall -Wextra -Werror -I"$include" "$work/page.cpp" "$library" -Wl,-rpath,"$(dirname "$library")" -o "$work/page"
"$work/page"
