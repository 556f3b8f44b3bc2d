// The scripts that shells load for completion. Each calls `lockstep __complete` (completion.h) and offers its
// candidates.
#pragma once

namespace lockstep {

struct CompletionScript {
  const char* shell;
  const char* text;
};

inline constexpr CompletionScript kCompletionScripts[] = {
    {"bash", R"script(# Completion of lockstep for bash: source <(lockstep completion bash)
_lockstep() {
  local line=${COMP_LINE:0:COMP_POINT} words before=
  # COMP_WORDS is broken at "=" and ":", which stand in flags and addresses.
  read -ra words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=("")
  local current=${words[-1]}
  [[ $current == *=* && $COMP_WORDBREAKS == *=* ]] && before=${current%%=*}=
  mapfile -t COMPREPLY < <("${1/#\~\//$HOME/}" __complete "${words[@]:1}" 2>/dev/null)
  COMPREPLY=("${COMPREPLY[@]#"$before"}")
}
complete -o default -o bashdefault -F _lockstep lockstep
)script"},
    {"zsh", R"script(#compdef lockstep
# Completion of lockstep for zsh: source <(lockstep completion zsh), or this as a file _lockstep in fpath
_lockstep() {
  local -a candidates
  candidates=("${(@f)$("${${(Q)words[1]}/#\~\//$HOME/}" __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
  if [[ -n $candidates ]]; then
    compadd -V lockstep -- "${candidates[@]}"
  else
    compset -P '--*='
    _files
  fi
}
if [[ $funcstack[1] == _lockstep ]]; then
  _lockstep "$@"
else
  compdef _lockstep lockstep
fi
)script"},
    {"fish", R"script(# Completion of lockstep for fish: lockstep completion fish | source
function __lockstep_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l candidates ($words[1] __complete $words[2..-1] "$current" 2>/dev/null)
    if test (count $candidates) -gt 0
        printf '%s\n' $candidates
    else
        set -l before (string match -r -- '^--[^=]*=' "$current")
        printf '%s\n' "$before"(__fish_complete_path (string replace -r -- '^--[^=]*=' '' "$current"))
    end
end
complete -c lockstep -f -a '(__lockstep_complete)'
)script"},
};

}  // namespace lockstep
