#!/bin/sh
# library.sh LIBHALO.so LIMIT: the library shows its own namespace only, and is not larger than LIMIT bytes when stripped.
set -eu
library=$1 limit=$2
nm -D --defined-only "$library" | awk '{print $3}' >"$library.symbols"
if grep -vE '^_Z(N|NK|TVN|TIN|TSN|TTN|Thn[0-9]+_N)4halo' "$library.symbols"; then
  echo "these symbols are not Halo's own"; exit 1
fi
if grep -E '^_ZN4halo3cpu' "$library.symbols"; then
  echo "these symbols are internal"; exit 1
fi
grep -q '^_ZN4halo6conv2d' "$library.symbols" || { echo "conv2d is missing: the check cannot see"; exit 1; }
strip --strip-unneeded -o "$library.stripped" "$library"
bytes=$(stat -c %s "$library.stripped")
echo "$(wc -l <"$library.symbols") symbols, $bytes bytes stripped (limit $limit)"
[ "$bytes" -le "$limit" ]
