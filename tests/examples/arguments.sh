#!/usr/bin/env bash
# arguments.sh BIN WORK: every program answers --help with 0, and a wrong command line with 1 or 2 and one line that says what is
# wrong.
set -uo pipefail
bin=$1 work=$2 status=0
rm -rf "$work" && mkdir -p "$work"
echo "not a folder" >"$work/file"
printf '>a x\nACGT\n>b y\nAAAA\n' >"$work/two.fa"
printf '>a z\nACGT\n' >"$work/one.fa"
printf '>no_class\nACGT\n' >"$work/bare.fa"
: >"$work/empty"

help() {  # help PROGRAM OPTION...: --help names them all
  local program=$1 text
  shift
  text=$("$bin/$program" --help 2>&1) || { echo "$program --help: exit code $?"; status=1; }
  for option in "$@"; do
    grep -qe "$option" <<<"$text" || { echo "$program --help does not name $option"; status=1; }
  done
}
wrong() {  # wrong WORDS PROGRAM ARGUMENTS...: refused in one line that holds the words
  local words=$1 code
  shift
  local program=$1
  shift
  (cd "$work" && timeout 60 "$bin/$program" "$@" >"$work/out" 2>"$work/err")
  code=$?
  if { [ $code -ne 1 ] && [ $code -ne 2 ]; } || [ "$(wc -l <"$work/err")" -ne 1 ] || [ "$(wc -c <"$work/err")" -gt 300 ] || ! grep -qF -e "$words" "$work/err" ||
    ! grep -q "^$program: " "$work/err"; then
    echo "$program $*: exit code $code, expected 1 or 2 and one line with \"$words\", got:"
    head -c 1000 "$work/err"
    status=1
  fi
}

training=(--out --batch --lr --seed --device --save-every --resume)
help alexnet_train "${training[@]}" --data --epochs --width --limit --at-least
help dna_train "${training[@]}" --data --d-model --layers --length --steps
help dna_classify "${training[@]}" --train --test --pretrained --epochs --at-least
help recall "${training[@]}" --vocab --pairs --steps --until --at-least
help volume "${training[@]}" --steps --at-most
help alexnet_classify --top --device
help dna_use --device score continue classify
help convert_checkpoint in out

classify=(dna_classify --train "$work/two.fa" --test "$work/two.fa" --d-model 8 --layers 1 --l-max 16 --epochs 1)
for program in alexnet_train dna_train recall volume; do
  wrong "--unknown" $program --unknown
  wrong "--batch" $program --batch 0
  wrong "--batch" $program --batch -3
  wrong "--batch" $program --batch many
  wrong "--batch" $program --batch 99999999999999999999
  wrong "--batch" $program --batch
  wrong "--lr" $program --lr nan
  wrong "--lr" $program --lr inf
  wrong "--lr" $program --lr -1
  wrong "--seed" $program --seed -1
  wrong "--save-every" $program --save-every 0
  wrong "tpu" $program --device tpu
  wrong "folder cannot be made" $program --device cpu --out "$work/file"
  wrong "checkpoint.safetensors" $program --device cpu --out "$work/none" --resume
  wrong "positional" $program positional
done
wrong "--epochs" alexnet_train --epochs 0
wrong "--width" alexnet_train --width -1
wrong "--width" alexnet_train --width nan
wrong "--limit" alexnet_train --limit -5
wrong "--at-least" alexnet_train --at-least 80
wrong "--data" alexnet_train --data "$work/none"
wrong "--data" alexnet_train --data "$work/file"
wrong "--length" dna_train --length 1
wrong "--length" dna_train --length 0
wrong "--baseline-order" dna_train --baseline-order 13
wrong "--eval-windows" dna_train --eval-windows -1
wrong "--d-model" dna_train --d-model 0
wrong "--data" dna_train --data "$work/none.fa"
wrong "$work/file" dna_train --device cpu --data "$work/file"
wrong "--vocab" recall --vocab 1
wrong "vocab_size" recall --device cpu --vocab 7
wrong "--until" recall --until -1
wrong "--steps" volume --steps 0
wrong "--train is required" dna_classify
wrong "--test" dna_classify --train "$work/two.fa" --test "$work/none"
wrong "class as its last word" dna_classify --device cpu --train "$work/bare.fa" --test "$work/two.fa"
wrong "class x has no training example" dna_classify --device cpu --train "$work/one.fa" --test "$work/two.fa"
wrong "$work/empty" dna_classify --device cpu --train "$work/empty" --test "$work/two.fa"
wrong "--length" "${classify[@]}" --device cpu --length 17
wrong "$work/file" "${classify[@]}" --device cpu --pretrained "$work/file"
wrong "model is required" alexnet_classify
wrong "$work/file" alexnet_classify "$work/file" "$work/file"
wrong "--top" alexnet_classify "$work/file" "$work/file" --top 0
wrong "$work/none" dna_use "$work/none" score ACGT
wrong "$work/file" dna_use "$work/file" score ACGT
wrong "subcommand" dna_use "$work/file"
wrong "--bases" dna_use "$work/file" continue ACGT --bases -1
wrong "--seed" dna_use "$work/file" continue ACGT --seed -1
wrong "--temperature" dna_use "$work/file" continue ACGT --temperature nan
wrong "files" dna_use "$work/file" classify "$work/none"
wrong "in is required" convert_checkpoint
wrong "$work/file" convert_checkpoint "$work/file" "$work/to"
wrong "out" convert_checkpoint "$work/file"

# A model of one program given to another.
"$bin/recall" --device cpu --steps 1 --pairs 2 --batch 1 --d-model 8 --out "$work/recall" >/dev/null || status=1
wrong '"channels"' alexnet_classify "$work/recall/model.safetensors" "$work/file"
wrong '"layers"' dna_use "$work/recall/model.safetensors" score ACGT
wrong '"layers"' dna_use "$work/recall/model.safetensors" classify "$work/two.fa"
wrong "expected the d_model of this training, 16, found 8" recall --device cpu --steps 1 --pairs 2 --batch 1 --d-model 16 \
  --out "$work/recall" --resume
exit $status
