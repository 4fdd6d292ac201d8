"""`understudy completion SHELL`: a short script that asks `understudy __complete WORDS ...` for each completion.

Answers follow from the settings classes, also those of the chosen policy, so a script outlives an upgrade. Imports no
torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_type_hints

from understudy.cli.commands import COMMANDS
from understudy.cli.help_texts import GENERAL, LAUNCH
from understudy.config import help
from understudy.config.declare import Positional
from understudy.config.flags import chosen_type, is_policy

SCRIPTS = {
    "bash": r"""# Completion of understudy in bash; `understudy completion bash` prints it.
_understudy() {
    local IFS=$'\n'
    COMPREPLY=($("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -F _understudy understudy
""",
    "zsh": r"""#compdef understudy
# Completion of understudy in zsh; `understudy completion zsh` prints it.
_understudy() {
    local -a found options
    found=("${(@f)$(${words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -z $found ]] && { _files; return }
    [[ ${words[CURRENT]} == -* ]] && options=(-o)
    found=("${(@)found//:/\\:}")
    found=("${(@)found/$'\t'/:}")
    _describe $options -t values understudy found
}
if [[ $funcstack[1] == _understudy ]]; then
    _understudy "$@"
else
    compdef _understudy understudy
fi
""",
    "fish": r"""# Completion of understudy in fish; `understudy completion fish` prints it.
function __understudy_complete
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    set -l found ($words[1] __complete $words[2..-1] "$last" 2>/dev/null)
    if count $found >/dev/null
        printf '%s\n' $found
    else
        __fish_complete_path "$last"
    end
end
complete -c understudy -f -a '(__understudy_complete)'
""",
}


@dataclass(frozen=True)
class CompletionConfig:
    """Print a script that completes commands, settings and their choices."""

    shell: Positional[Literal["bash", "zsh", "fish", ""]] = ""
    """Shell that reads the script."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        return [] if self.shell else ["shell: required, one of bash, zsh, fish: understudy completion bash"]


def completion(config: CompletionConfig) -> None:
    """Print the script."""
    print(SCRIPTS[config.shell], end="")


def complete(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of the words behind `understudy`, each with a tab and its meaning.

    Empty where any text or a file is possible.
    """
    pieces = [word for word in words if word != "="]  # bash splits --flag=value into three words
    *before, current = pieces if words and words[-1] != "=" else [*pieces, ""]
    flag, equals, _ = current.partition("=")
    head = f"{flag}=" if equals and flag.startswith("--") else ""
    candidates = _choices([*before, flag], "") if head else _choices(before, current)
    return [f"{head}{line}" for line in candidates if f"{head}{line}".startswith(current)]


def _choices(before: list[str], current: str) -> list[str]:
    """Return the words that may follow `before`, whether or not they begin like `current`."""
    asks = before[:1] == ["help"]
    before = before[asks:]
    name = next((name for name in COMMANDS if before[: name.count(" ") + 1] == name.split()), None)
    if name is None:
        depth = len(before)
        commands = {
            name.split()[depth]: command.summary
            for name, command in reversed(COMMANDS.items())
            if name.split()[:depth] == before
        }
        if not before and not asks:
            commands |= {"help": "help of a command", "--help": "list the commands", "--version": "print the version"}
        return [f"{word}\t{text}" for word, text in commands.items()]
    cls = COMMANDS[name].settings_class()
    flags = {flag: (setting, text) for flag, setting, text in flags_of(cls, chosen_type(before))}
    if current.startswith("-"):
        options = [(words.split(", ")[-1].split()[0], text) for words, text in GENERAL]
        options += [("--launch", LAUNCH[1])] * COMMANDS[name].launchable
        return [f"{flag}\t{text}" for flag, (_, text) in flags.items()] + [f"{flag}\t{text}" for flag, text in options]
    flag_numbers = [number for number, word in enumerate(before) if word.startswith("--")]
    setting = flags.get(before[flag_numbers[-1]].replace("_", "-"), (None, ""))[0] if flag_numbers else None
    if setting is not None and (flag_numbers[-1] == len(before) - 1 or help.takes_many(setting.kind)):
        return list(help.choices(setting.kind))
    return next((list(help.choices(field.kind)) for field in next(help.groups(cls)).settings if field.positional), [])


def flags_of(cls: type, policy: str) -> Iterator[tuple[str, help.Setting, str]]:
    """Yield each flag of a settings class, its setting and the first sentence of its meaning.

    Args:
        cls: the class.
        policy: type of policy whose flags are wanted; an unknown one counts as the default.
    """
    default, kind = None, get_type_hints(cls).get("policy")
    if policy and is_policy(kind):
        base: Any = kind
        try:
            default = replace(cls(), policy=base.select({"type": policy})())
        except (ValueError, ImportError):
            default = None
    for group in help.groups(cls, default):
        for setting in group.settings:
            if setting.positional:
                continue
            text = help.first_sentence(setting.meaning())
            yield help.flag_of(setting.path), setting, text
            if setting.kind is bool:
                yield help.negation_of(setting.path), setting, text
