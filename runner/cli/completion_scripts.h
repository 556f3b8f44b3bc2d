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
  local line=${COMP_LINE:0:COMP_POINT} words answer directive candidate before=
  # COMP_WORDS is broken at "=" and ":", which stand in flags and addresses.
  read -ra words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=("")
  local current=${words[-1]}
  mapfile -t answer < <("${1/#\~\//$HOME/}" __complete "${words[@]:1}" 2>/dev/null)
  [[ ${#answer[@]} -gt 0 ]] || return
  directive=${answer[-1]}
  unset 'answer[-1]'
  [[ $current == *=* && $COMP_WORDBREAKS == *=* ]] && before=${current%%=*}=
  COMPREPLY=()
  for candidate in "${answer[@]}"; do
    candidate=${candidate%%$'\t'*}
    COMPREPLY+=("${candidate#"$before"}")
  done
  # What is left to the shell when there is no candidate: paths, or nothing.
  case $directive in
    :file) ;;
    :folder) compopt +o default +o bashdefault -o dirnames ;;
    *) compopt +o default +o bashdefault ;;
  esac
}
complete -o default -o bashdefault -F _lockstep lockstep
)script"},
    {"zsh", R"script(#compdef lockstep
# Completion of lockstep for zsh: source <(lockstep completion zsh), or this as a file _lockstep in fpath
_lockstep() {
  local -a answer candidates
  local directive line
  answer=("${(@f)$("${${(Q)words[1]}/#\~\//$HOME/}" __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
  directive=$answer[-1]
  answer[-1]=()
  for line in "${answer[@]}"; do
    candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
  done
  (( $#candidates )) && _describe -V lockstep candidates
  case $directive in
    :file) compset -P '--*='; _files ;;
    :folder) compset -P '--*='; _path_files -/ ;;
  esac
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
    set -l answer ($words[1] __complete $words[2..-1] "$current" 2>/dev/null)
    test (count $answer) -gt 0; or return
    set -l directive $answer[-1]
    set -e answer[-1]
    test (count $answer) -gt 0; and printf '%s\n' $answer
    set -l before (string match -r -- '^--[^=]*=' "$current")
    set -l path (string replace -r -- '^--[^=]*=' '' "$current")
    switch $directive
        case :file
            printf '%s\n' "$before"(__fish_complete_path "$path")
        case :folder
            printf '%s\n' "$before"(__fish_complete_directories "$path" '')
    end
end
complete -c lockstep -f -a '(__lockstep_complete)'
)script"},
};

}  // namespace lockstep
