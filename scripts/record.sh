# Sourced: collects the results of a script's steps and puts them into a section of docs/verification.md.
#   begin_record TITLE MACHINE; run_step NAME COMMAND...; add_row NAME passed|FAILED TEXT SECONDS; ...; end_record
# A step's last line of output stands for it; add_row records what ran elsewhere. end_record fails where one failed.

record_title='' record_rows='' record_status=0

begin_record() {
  record_title=$1
  record_rows="$(date -u +%Y-%m-%d), commit $(git describe --always --dirty 2>/dev/null || echo unknown), $2."$'\n\n| step | result | seconds |\n|---|---|---|\n'
}

add_row() {
  [ "$2" = passed ] || record_status=1
  record_rows+="| $1 | $2: $(echo "$3" | tr -s ' ' | tr '|' '/' | cut -c 1-300) | $4 |"$'\n'
  echo "$1: $2: $3"
}

run_step() {
  local name=$1 start=$SECONDS output result=passed
  shift
  echo "== $name"
  output=$("$@" 2>&1) || result=FAILED
  echo "$output"
  add_row "$name" $result "$(echo "$output" | tail -n 1)" $((SECONDS - start))
}

end_record() {
  local file=docs/verification.md
  [ -f $file ] || echo "# What was verified, where and when" >$file
  # The section of that title, if there is one, makes room for the new one.
  awk -v title="## $record_title" '/^## / {skip = ($0 == title)} !skip' $file >$file.new
  printf '\n## %s\n\n%s' "$record_title" "$record_rows" | cat -s $file.new - | cat -s >$file.all
  mv $file.all $file
  rm -f $file.new
  return $record_status
}
