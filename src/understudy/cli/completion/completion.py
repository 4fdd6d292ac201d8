"""`understudy completion bash|zsh|fish`: print a completion script."""

from dataclasses import dataclass
from typing import Literal

from understudy.config.declare import Positional


@dataclass(frozen=True)
class CompletionConfig:
    """Print a script that completes commands, settings and their choices.

    The script holds all names, so a shell starts no process for a completion. Write it again after an upgrade.
    """

    shell: Positional[Literal["bash", "zsh", "fish", ""]] = ""
    """Shell that reads the script."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        return [] if self.shell else ["shell: required, one of bash, zsh, fish: understudy completion bash"]


def completion(config: CompletionConfig) -> None:
    """Print the script."""
    from understudy.cli.completion import bash, fish, zsh
    from understudy.cli.completion.tables import command_tables

    script = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}[config.shell]
    print(script(command_tables()), end="")
