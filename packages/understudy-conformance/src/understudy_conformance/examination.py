"""A worker process with a time limit: a requirement that hangs or crashes has failed, and the next
one is examined.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import Any, Self

from understudy_conformance.requirement import FactoryError, Requirement, Result, require_packages

START_LIMIT = 600.0
"""Seconds in which the module of a factory must be imported."""


class Examination:
    """Examines a factory in processes of its own. A context manager.

    Args:
        path: MODULE:FACTORY, importable from the current folder or PYTHONPATH.
        timeout: seconds for one requirement.
    """

    def __init__(self, path: str, timeout: float = 120) -> None:
        self._path = path
        self._timeout = timeout
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        # closed with the examination
        self._errors = tempfile.TemporaryFile(  # noqa: SIM115
            "w+", encoding="utf-8", errors="replace"
        )
        # of all processes, which may be killed
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and remove its files."""
        self._kill()
        self._errors.close()
        self._folder.cleanup()

    def examine(self, requirement: Requirement) -> Result:
        """Examine one requirement.

        Raises:
            FactoryError: the module cannot be imported or has no such function, or a package is
                missing.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(requirement.number + "\n")
            process.stdin.flush()
            answer = self._read(self._timeout)
        except TimeoutError:
            self._kill()
            return Result(
                requirement.number, "failed", f"no answer within {self._timeout:g} s", self._timeout
            )
        except (EOFError, OSError):
            code = process.wait()
            cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            facts = ": ".join([f"the process ended with {cause}", *self._tail()])
            self._kill()
            require_packages(facts)
            return Result(requirement.number, "failed", facts)
        self._refuse(answer)
        return Result(**{name: answer[name] for name in ("number", "status", "facts", "seconds")})

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "understudy_conformance.worker", self._path]
        path = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # a group, which is killed with its workers
            env=os.environ | {"PYTHONPATH": path, "TMPDIR": self._folder.name},
        )
        self._answers = queue.SimpleQueue()
        threading.Thread(
            target=_forward, args=(self._process.stdout, self._answers), daemon=True
        ).start()
        try:
            answer = self._read(START_LIMIT)
        except TimeoutError:
            self._kill()
            raise FactoryError(f"{self._path}: no import within {START_LIMIT:g} s") from None
        except EOFError:
            answer = {"error": ": ".join(["the process ended", *self._tail()])}
        self._refuse(answer)
        return self._process

    def _refuse(self, answer: dict[str, Any]) -> None:
        if "error" in answer:
            self._kill()
            raise FactoryError(f"{self._path}: {answer['error']}")

    def _read(self, limit: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=limit)
        except queue.Empty:
            raise TimeoutError from None
        if not line:
            raise EOFError
        return json.loads(line)

    def _tail(self) -> list[str]:
        """Return the last line of stderr."""
        self._errors.seek(0)
        return [line.strip()[:300] for line in self._errors.read().splitlines() if line.strip()][
            -1:
        ]

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def _forward(stream: Any, answers: "queue.SimpleQueue[str]") -> None:
    with suppress(ValueError):  # closed
        for line in stream:
            answers.put(line)
    answers.put("")
