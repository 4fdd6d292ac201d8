"""The completion script for fish."""

from collections.abc import Sequence

from understudy.cli.completion.tables import Flag, Table, alike, first_words, second_words


def script(tables: Sequence[Table]) -> str:
    """Return the script."""
    lines = [_HEAD]
    for word, text in first_words(tables).items():
        lines.append(f"complete -c understudy -n __understudy_first -f -a {word} -d {_quoted(text)}")
    for first, rest in second_words(tables).items():
        lines.append(f"complete -c understudy -n '__understudy_second {first}' -f -a {_quoted(' '.join(rest))}")
    for names, table in alike(tables):
        commands = " ".join(f'"{name}"' for name in names)
        lines += [_line(f"__understudy_in {commands}", flag) for flag in table.flags]
        for flag in table.flags:
            if flag.takes_many and flag.choices:  # fish itself completes the first value alone
                condition = f"__understudy_in {commands}; and __understudy_after {flag.name}"
                lines.append(f"complete -c understudy -n {_quoted(condition)} -f -a {_quoted(' '.join(flag.choices))}")
        if table.choices:
            lines.append(
                f"complete -c understudy -n {_quoted(f'__understudy_in {commands}')} -f -a "
                + _quoted(" ".join(table.choices))
            )
        for policy, flags in table.policies.items():
            default = next(iter(table.policies))
            condition = f"__understudy_in {commands}; and __understudy_policy {policy} {default}"
            lines += [_line(condition, flag) for flag in flags]
    return "\n".join(lines) + "\n"


def _line(condition: str, flag: Flag) -> str:
    words = f"complete -c understudy -n {_quoted(condition)} -l {flag.name.removeprefix('--')} -d {_quoted(flag.text)}"
    if flag.choices:
        return f"{words} -x -a {_quoted(' '.join(flag.choices))}"
    return f"{words} -r" if flag.takes_value else words


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_HEAD = r"""# Completion of understudy in fish; `understudy completion fish` prints it.

function __understudy_words
    set -l words (commandline -opc)
    test "$words[2]" = help; and set -e words[2]
    string join -- \n $words[2..-1]
end

function __understudy_first
    test (count (__understudy_words)) -eq 0
end

function __understudy_second
    set -l words (__understudy_words)
    test (count $words) -eq 1 -a "$words[1]" = "$argv[1]"
end

function __understudy_in
    set -l words (__understudy_words)
    contains -- "$words[1]" $argv; or contains -- "$words[1] $words[2]" $argv
end

function __understudy_policy
    set -l policy $argv[2]
    set -l words (__understudy_words)
    for at in (seq (count $words))
        test "$words[$at]" = --policy.type -a $at -lt (count $words); and set policy $words[(math $at + 1)]
        string match -q -- '--policy.type=*' $words[$at]; and set policy (string split -m 1 = -- $words[$at])[2]
    end
    test "$policy" = $argv[1]
end

function __understudy_after
    set -l words (__understudy_words)
    set -l flags (string match -- '--*' $words)
    test "$flags[-1]" = $argv[1]; and not test "$words[-1]" = $argv[1]
end
"""
