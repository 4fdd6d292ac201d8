"""The completion script for bash 3.2 or newer."""

from collections.abc import Sequence

from understudy.cli.completion.tables import Flag, Table, alike, first_words, second_words


def script(tables: Sequence[Table]) -> str:
    """Return the script."""
    parts = {
        "FIRST": " ".join(first_words(tables)),
        "SECOND": "\n".join(f"        {one}) echo '{' '.join(rest)}' ;;" for one, rest in second_words(tables).items()),
        "FLAGS": "\n".join(_flag_cases(tables)),
        "CHOICES": "\n".join(_choice_cases(tables)),
        "MANY": _patterns(sorted({flag.name for table in tables for flag in _all(table) if flag.takes_many})),
    }
    text = _SCRIPT
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def _all(table: Table) -> list[Flag]:
    return [*table.flags, *(flag for own in table.policies.values() for flag in own)]


def _flag_cases(tables: Sequence[Table]) -> list[str]:
    """Cases of `command` for the flags besides those of the policy, and of `command/policy type` for those."""
    cases = []
    for names, table in alike(tables):
        cases.append(f"        {_patterns(names)}) echo '{_names(table.flags)}' ;;")
        default, *others = table.policies or [""]
        for policy in [*others, *([default] if default else [])]:  # the default last: it matches every type
            flags = table.policies[policy]
            pattern = "|".join(f"'{name}/'*" if policy == default else f"'{name}/{policy}'" for name in names)
            cases.append(f"        {pattern}) echo '{_names(flags)}' ;;")
    return cases


def _choice_cases(tables: Sequence[Table]) -> list[str]:
    """Cases of `command flag`, and of `command` for its positional argument."""
    cases = []
    for names, table in alike(tables):
        choices = {flag.name: flag.choices for flag in _all(table) if flag.choices}
        for flag, values in choices.items():
            pattern = _patterns([f"{name} {flag}" for name in names])
            cases.append(f"        {pattern}) echo '{' '.join(values)}' ;;")
        if table.choices:
            cases.append(f"        {_patterns(names)}) echo '{' '.join(table.choices)}' ;;")
    return cases


def _names(flags: Sequence[Flag]) -> str:
    return " ".join(flag.name for flag in flags)


def _patterns(words: Sequence[str]) -> str:
    return "|".join(f"'{word}'" for word in words)


_SCRIPT = r"""# Completion of understudy in bash; `understudy completion bash` prints it.

_understudy_second() {
    case "$1" in
@SECOND@
    esac
}

_understudy_flags() {
    case "$1" in
@FLAGS@
    esac
}

_understudy_choices() {
    case "$1" in
@CHOICES@
    esac
}

_understudy() {
    local cur="${COMP_WORDS[COMP_CWORD]}" last=$((COMP_CWORD - 1)) IFS=$' \t\n'
    [ "$cur" = "=" ] && cur=""
    [ "${COMP_WORDS[last]}" = "=" ] && last=$((last - 1))
    local command="${COMP_WORDS[1]}" start=2 second word flag="" at policy=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W '@FIRST@' -- "$cur"))
        return
    fi
    if [ "$command" = help ]; then
        command="${COMP_WORDS[2]}" start=3
        [ "$COMP_CWORD" -eq 2 ] && COMPREPLY=($(compgen -W '@FIRST@' -- "$cur")) && return
    fi
    second="$(_understudy_second "$command")"
    if [ -n "$second" ]; then
        if [ "$COMP_CWORD" -eq "$start" ]; then
            COMPREPLY=($(compgen -W "$second" -- "$cur"))
            return
        fi
        command="$command ${COMP_WORDS[start]}"
    fi
    for ((at = 1; at <= last; at++)); do
        word="${COMP_WORDS[at]}"
        case "$word" in --*) flag="$word" ;; esac
        if [ "$word" = --policy.type ]; then
            policy="${COMP_WORDS[at + 1]}"
            [ "$policy" = "=" ] && policy="${COMP_WORDS[at + 2]}"
        fi
    done
    case "$cur" in
        -*)
            word="$(_understudy_flags "$command") $(_understudy_flags "$command/$policy")"
            COMPREPLY=($(compgen -W "$word" -- "$cur"))
            return
            ;;
    esac
    if [ -n "$flag" ] && [ "$flag" != "${COMP_WORDS[last]}" ]; then
        case "$flag" in
            @MANY@) ;;
            *) flag="" ;;
        esac
    fi
    word="$(_understudy_choices "$command${flag:+ $flag}")"
    [ -n "$word" ] && COMPREPLY=($(compgen -W "$word" -- "$cur"))
}

complete -o default -F _understudy understudy
"""
