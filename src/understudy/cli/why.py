"""`understudy why TRACE`: why a policy does not grasp, of the trace of a server or a replay."""

from dataclasses import dataclass
from pathlib import Path

from understudy.config.declare import Positional
from understudy.errors import ConfigError


@dataclass(frozen=True)
class WhyConfig:
    """Errors per phase and joint, gripper transitions, likelihood of states and images, and ages of observations."""

    trace: Positional[str] = ""
    """File of `understudy serve --trace` or `replay --trace`."""
    page: str = ""
    """HTML page to write; the default is the file with the suffix .html."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        return [] if self.trace else ["trace: required, the file of a trace: understudy why TRACE"]


def why(config: WhyConfig) -> None:
    """Write the page, and print its findings."""
    from understudy.contract.trace import diagnose
    from understudy.report.page import refuse_foreign, write_page
    from understudy.report.why import findings, why_page

    page = Path(config.page or Path(config.trace).with_suffix(".html"))
    refuse_foreign(page)
    try:
        diagnosis = diagnose(config.trace)
    except (ValueError, OSError) as error:
        raise ConfigError(f"trace: {error}") from error
    write_page(page, why_page(diagnosis, Path(config.trace).stem))
    print("\n".join([*findings(diagnosis), str(page)]))
