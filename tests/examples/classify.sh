#!/usr/bin/env bash
# classify.sh BIN WORK: dna_classify learns two classes, goes on after a kill, and dna_use finds them again in a new file.
set -euo pipefail
bin=$1 work=$2
mkdir -p "$work"
fasta() {  # fasta SEED COUNT: repeats with one base in ten replaced
  awk -v seed="$1" -v count="$2" 'BEGIN {
    srand(seed)
    for (i = 0; i < count; ++i) {
      kind = i % 2
      print ">sequence" i " " (kind ? "ggt" : "ac")
      line = ""
      for (k = 0; k < 40; ++k) line = line (rand() < 0.1 ? substr("ACGT", int(4 * rand()) + 1, 1) : substr(kind ? "GGT" : "ACA", k % 3 + 1, 1))
      print line
    }
  }'
}
fasta 1 64 >"$work/train.fa"
fasta 2 32 >"$work/test.fa"
"$(dirname "$0")/resume.sh" "$bin" "$work/resume" dna_classify --train "$work/train.fa" --test "$work/test.fa" --d-model 16 --layers 1 \
  --l-max 64 --epochs 12 --batch 8 --lr 5e-3 --save-every 3 --at-least 0.9

model=$work/resume/whole/model.safetensors
fasta 3 20 | gzip >"$work/new.fa.gz"
"$bin/dna_use" "$model" --device cpu classify "$work/new.fa.gz" >"$work/answers"
# Each line repeats the header, whose last word is the true class, and begins its answer with the likeliest one.
right=$(awk -F '[ :]+' '$2 == $3' "$work/answers" | wc -l)
[ "$(wc -l <"$work/answers")" -eq 20 ] && [ "$right" -ge 18 ] || { echo "Of 20 sequences $right are right:"; cat "$work/answers"; exit 1; }
# Both classes of one sequence, and what the other commands say of such a model.
[ "$("$bin/dna_use" "$model" --device cpu classify "$work/new.fa.gz" --top 5 | head -n 1 | grep -o '%' | wc -l)" -eq 2 ]
if "$bin/dna_use" "$model" --device cpu score ACGT >"$work/refused" 2>&1; then exit 1; fi
grep -q "expected a language model" "$work/refused"
echo "Classified: $right of 20"
