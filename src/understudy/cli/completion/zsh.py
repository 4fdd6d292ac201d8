"""The completion script for zsh."""

from collections.abc import Sequence

from understudy.cli.completion.tables import Flag, Table, alike, first_words, second_words


def script(tables: Sequence[Table]) -> str:
    """Return the script."""
    parts = {
        "FIRST": _lines([_described(word, text) for word, text in first_words(tables).items()], 8),
        "SECOND": "\n".join(
            f"        {one}) second=({' '.join(rest)}) ;;" for one, rest in second_words(tables).items()
        ),
        "CASES": "\n".join(_case(names, table) for names, table in alike(tables)),
    }
    text = _SCRIPT
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def _case(names: Sequence[str], table: Table) -> str:
    """Case of the commands with the same flags: sets `flags`, `choices` and `many`."""
    lines = [f"        {_patterns(names)})"]
    lines.append(f"            flags=(\n{_flags(table.flags)}\n            )")
    lines += _choices(table.flags, 12)
    if table.choices:
        lines.append(f"            choices[-]='{' '.join(table.choices)}'")
    if table.policies:
        lines.append('            case "$policy" in')
        default, *others = table.policies
        for policy in [*others, default]:
            flags = table.policies[policy]
            lines.append(f"                {'*' if policy == default else policy})")
            lines.append(f"                    flags+=(\n{_flags(flags)}\n                    )")
            lines += [*_choices(flags, 20), "                    ;;"]
        lines.append("            esac")
    return "\n".join([*lines, "            ;;"])


def _choices(flags: Sequence[Flag], indent: int) -> list[str]:
    lines = [f"choices[{flag.name}]='{' '.join(flag.choices)}'" for flag in flags if flag.choices]
    many = [flag.name for flag in flags if flag.takes_many]
    return [" " * indent + line for line in [*lines, *([f"many+=({' '.join(many)})"] if many else [])]]


def _flags(flags: Sequence[Flag]) -> str:
    return _lines([_described(flag.name, flag.text) for flag in flags], 16)


def _lines(words: Sequence[str], indent: int) -> str:
    return "\n".join(" " * indent + word for word in words)


def _described(name: str, text: str) -> str:
    return "'" + f"{name}:{text}".replace("'", "'\\''") + "'"


def _patterns(words: Sequence[str]) -> str:
    return "|".join(f"'{word}'" for word in words)


_SCRIPT = r"""#compdef understudy
# Completion of understudy in zsh; `understudy completion zsh` prints it.

_understudy_table() {
    case "$1" in
@CASES@
    esac
}

_understudy() {
    emulate -L zsh
    local -a first second flags many
    local -A choices
    local current="${words[CURRENT]}" command="${words[2]}" policy="" flag="" before
    local -i start=3 at
    first=(
@FIRST@
    )
    if (( CURRENT == 2 )); then
        _describe -t commands command first
        return
    fi
    if [[ $command == help ]]; then
        command="${words[3]}" start=4
        (( CURRENT == 3 )) && { _describe -t commands command first; return }
    fi
    case "$command" in
@SECOND@
    esac
    if (( $#second )); then
        (( CURRENT == start )) && { _describe -t commands command second; return }
        command="$command ${words[start]}"
    fi
    for (( at = 2; at < CURRENT; at++ )); do
        before="${words[at]}"
        [[ $before == --* ]] && flag="${before%%=*}"
        [[ $before == --policy.type ]] && policy="${words[at + 1]}"
        [[ $before == --policy.type=* ]] && policy="${before#*=}"
    done
    _understudy_table "$command"
    if [[ $current == --*=* ]]; then
        flag="${current%%=*}"
        compset -P '*='
    elif [[ $current == -* ]]; then
        _describe -o -t options setting flags
        return
    elif [[ -n $flag && $flag != "${words[CURRENT - 1]}" ]] && (( ! ${many[(Ie)$flag]} )); then
        flag=""
    fi
    if [[ -n ${choices[${flag:--}]} ]]; then
        second=(${=choices[${flag:--}]})
        _describe -t values value second
    else
        _files
    fi
}

if [[ $funcstack[1] == _understudy ]]; then
    _understudy "$@"
else
    compdef _understudy understudy
fi
"""
