# bash completion of Incipit's programs: what each says of itself in --help, asked when it is needed.
# Installed under the name of each of them.
_incipit() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command= i help
    COMPREPLY=()
    case $1 in
    *incipitctl | *incipit-bench)
        for ((i = 1; i < COMP_CWORD; i++)); do
            [[ ${COMP_WORDS[i]} == -* || ${COMP_WORDS[i - 1]} == --[a-z]* ]] || {
                command=${COMP_WORDS[i]}
                break
            }
        done
        ;;
    esac
    help=$("$1" ${command:+"$command"} --help 2>/dev/null) || return 0
    case $prev in
    --*file | --model | --config | --json | --request | --*dir | --cachesvc | --llama-bench)
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
        ;;
    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(grep -oE '^  --[a-z-]+' <<<"$help")" -- "$cur")
    elif [[ -z $command ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(grep -oE '^  [a-z]+ ' <<<"$help")" -- "$cur")
    fi
}
complete -F _incipit incipitctl incipit-bench incipit-cachesvc incipit-worker
